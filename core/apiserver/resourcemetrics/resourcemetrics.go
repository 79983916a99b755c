// SPDX-License-Identifier: Apache-2.0

// Package resourcemetrics is what nodes and pods use, as metrics.k8s.io has it: it
// asks the kubelets for their /metrics/resource from time to time and makes the
// objects of the last two answers when somebody wants to see them.
//
// It guarantees that a node speaks for its own pods only, that an answer is never
// older than it says, and that asking is bounded: in nodes at a time, in seconds
// and bytes for each. Nodes that are not ready are not asked. It stores nothing,
// and each server of a cluster asks for itself.
package resourcemetrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	nodeutil "k8s.io/component-helpers/node/util"
)

const (
	// Resolution is how often nodes are asked while somebody looks, as metrics-server's.
	Resolution = 15 * time.Second
	// rest is how often they are asked otherwise, so that the first who looks sees
	// something: 5,000 pods cost less than a hundredth of a processor then.
	rest = time.Minute
	// interest is how long somebody who looked counts.
	interest = 2 * time.Minute
	// second is when a node that has just been found is asked again, and nobody else: one answer
	// makes no rate. While thousands of nodes come, there is always one that has just been found.
	second = 5 * time.Second
	// patience with one node.
	patience = 5 * time.Second
	// atOnce is how many nodes are asked at a time.
	atOnce = 16
	// stale is how old an answer may be and still be shown.
	stale = 2*rest + patience
)

// Cluster is what is read of the API; core/registry/view.View is one.
type Cluster interface {
	Get(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (runtime.Object, error)
	List(ctx context.Context, kind schema.GroupVersionKind, namespace string, selector labels.Selector) ([]runtime.Object, error)
}

// Kubelets ask a node for a page. The caller closes it.
type Kubelets interface {
	Page(ctx context.Context, node *corev1.Node) (io.ReadCloser, error)
}

// Config is what a Source is made of.
type Config struct {
	Cluster  Cluster
	Kubelets Kubelets
	Logger   *slog.Logger     // nil = discard
	Now      func() time.Time // nil = time.Now
}

// Source knows what nodes and pods use. It is safe for concurrent use.
type Source struct {
	cfg    Config
	wanted chan struct{} // somebody looks who was not expected

	mu    sync.Mutex
	asked time.Time // when somebody looked last
	began time.Time // when nodes were asked last
	whole time.Time // when all of them had been asked last
	nodes map[string]*answers
}

// answers are a node's last two.
type answers struct {
	last, earlier *page
	at            time.Time // of the last
	failing       bool
}

// New makes a source; it asks while Run runs.
func New(cfg Config) (*Source, error) {
	if cfg.Cluster == nil || cfg.Kubelets == nil {
		return nil, errors.New("resource metrics: Config.Cluster and Config.Kubelets are needed")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Source{cfg: cfg, wanted: make(chan struct{}, 1), nodes: map[string]*answers{}}, nil
}

// Run asks the nodes until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	all := true
	for {
		found := s.round(ctx, all)
		wait := time.NewTimer(s.pause(found))
		all = false
		for due := false; !due; {
			select {
			case <-ctx.Done():
				wait.Stop()
				return nil
			case <-wait.C:
				due = true
			case <-s.wanted:
				wait.Reset(s.soon())
				all = true
			}
		}
		all = all || s.left() <= 0
	}
}

// soon is when those who did not look before are served: at once, unless the nodes
// have just been asked.
func (s *Source) soon() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(second-s.cfg.Now().Sub(s.began), 0)
}

// pause until nodes are asked again.
func (s *Source) pause(found bool) time.Duration {
	if found {
		return min(second, s.left())
	}
	return s.left()
}

// left is the time until all nodes are asked again.
func (s *Source) left() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, every := s.cfg.Now(), rest
	if now.Sub(s.asked) < interest {
		every = Resolution
	}
	return every - now.Sub(s.whole)
}

// look marks that somebody looks, and has the nodes asked soon where nobody did.
func (s *Source) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Now()
	idle := now.Sub(s.asked) >= interest
	s.asked = now
	if idle {
		select {
		case s.wanted <- struct{}{}:
		default: // it has been said
		}
	}
}

// round asks nodes that are ready: all, or those that have not been asked or have given one answer only. found is
// true where one has given one answer only, and where there are no nodes yet.
func (s *Source) round(ctx context.Context, all bool) (found bool) {
	objects, err := s.cfg.Cluster.List(ctx, corev1.SchemeGroupVersion.WithKind("Node"), "", labels.Everything())
	if err != nil {
		if ctx.Err() == nil {
			s.cfg.Logger.DebugContext(ctx, "what nodes use is not known: they cannot be listed", "error", err)
		}
		return true // the server starts
	}
	s.mu.Lock()
	s.began = s.cfg.Now()
	s.mu.Unlock()
	turns, asking := make(chan struct{}, atOnce), sync.WaitGroup{}
	there := make(map[string]bool, len(objects))
	for _, o := range objects {
		node, ok := o.(*corev1.Node)
		if !ok {
			continue
		}
		there[node.Name] = true
		if !ready(node) || !all && !s.lacks(node.Name) {
			continue
		}
		turns <- struct{}{}
		asking.Go(func() {
			s.ask(ctx, node)
			<-turns
		})
	}
	asking.Wait()
	if all {
		s.mu.Lock()
		s.whole = s.cfg.Now()
		s.mu.Unlock()
	}
	return s.forget(there) || len(there) == 0
}

// lacks says whether a node's next answer is wanted soon. One that did not answer waits until all are asked.
func (s *Source) lacks(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.nodes[name]
	return a == nil || a.single()
}

// single says whether one answer is all that a node has given.
func (a *answers) single() bool { return a.last != nil && a.earlier == nil }

// forget nodes that are no more. It says whether one of the others has given one
// answer only.
func (s *Source) forget(there map[string]bool) (found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, a := range s.nodes {
		if !there[name] {
			delete(s.nodes, name)
			continue
		}
		found = found || a.single()
	}
	return found
}

func ready(node *corev1.Node) bool {
	_, c := nodeutil.GetNodeCondition(&node.Status, corev1.NodeReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

func (s *Source) ask(ctx context.Context, node *corev1.Node) {
	p, err := s.page(ctx, node)
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.nodes[node.Name]
	if a == nil {
		a = &answers{}
		s.nodes[node.Name] = a
	}
	if err != nil {
		if !a.failing {
			s.cfg.Logger.InfoContext(ctx, "what a node uses cannot be found out", "kind", "Node", "name", node.Name, "error", err)
		}
		a.failing = true
		return
	}
	a.failing = false
	a.earlier, a.last, a.at = a.last, p, s.cfg.Now()
}

func (s *Source) page(ctx context.Context, node *corev1.Node) (*page, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	body, err := s.cfg.Kubelets.Page(ctx, node)
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet for /metrics/resource: %w", err)
	}
	defer body.Close()
	return readPage(body, s.cfg.Now())
}

// of are a node's answers, as long as they are fresh.
func (s *Source) of(node string) (last, earlier *page) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.nodes[node]
	if a == nil || a.last == nil || s.cfg.Now().Sub(a.at) > stale {
		return nil, nil
	}
	return a.last, a.earlier // nobody changes them
}
