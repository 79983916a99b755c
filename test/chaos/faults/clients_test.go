// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/run"
)

const (
	// again is how long a client waits before it tries the same server again: there is no other.
	again = time.Second
	// writers write this often each.
	writers, writeEvery = 4, 100 * time.Millisecond
	// keeps is how many objects a writer has at a time: then it deletes the oldest.
	keeps = 100
)

// tryFor is how long a client waits for an answer before it tries elsewhere.
var tryFor = 3 * time.Second * slack

// gaps measures the longest time in which something did not succeed.
type gaps struct {
	last    time.Time
	longest time.Duration
}

func (g *gaps) succeeded(now time.Time) {
	g.longest = max(g.longest, now.Sub(g.last))
	g.last = now
}

// take answers the longest gap since the last take, the one that still is included.
func (g *gaps) take(now time.Time) seconds {
	longest := max(g.longest, now.Sub(g.last))
	g.last, g.longest = now, 0
	return seconds(longest)
}

// servers is a client of several servers that stays with one while it answers.
type servers struct {
	all []*kubernetes.Clientset
	at  int
	// pool, where it is there, is what all is made from: client makes one of a machine, own are those that were made.
	pool   *pool
	client func(*machine) (*kubernetes.Clientset, error)
	own    map[*machine]*kubernetes.Clientset
}

// pool are the servers that clients know, as a balancer or a name in DNS has them. Servers join, and leave.
type pool struct {
	mu  sync.Mutex
	all []*machine
}

func (p *pool) set(all []*machine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = slices.Clone(all)
}

func (p *pool) get() []*machine {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

// known are the clients of all servers that are known just now.
func (s *servers) known() []*kubernetes.Clientset {
	if s.pool == nil {
		return s.all
	}
	s.all = s.all[:0]
	for _, m := range s.pool.get() {
		if s.own[m] == nil {
			c, err := s.client(m)
			if err != nil {
				panic(err) // the kubeconfig that it is made from was read before
			}
			s.own[m] = c
		}
		s.all = append(s.all, s.own[m])
	}
	return s.all
}

// current is the client of the server that it stays with.
func (s *servers) current() *kubernetes.Clientset {
	all := s.known()
	return all[s.at%len(all)]
}

// do asks a server, and if that fails once another, or the same one after a while.
func (s *servers) do(ctx context.Context, request func(context.Context, *kubernetes.Clientset, bool) error) (retried bool, err error) {
	try := func(second bool) error {
		one, cancel := context.WithTimeout(ctx, tryFor)
		defer cancel()
		return request(one, s.current(), second)
	}
	if err = try(false); err == nil {
		return false, nil
	}
	s.at++
	if len(s.known()) == 1 {
		run.Sleep(ctx, again)
	}
	return true, try(true)
}

// fate is what a client knows of an object.
type fate int

const (
	there fate = iota + 1 // its creation was acknowledged
	gone                  // its deletion was acknowledged
	maybe                 // nobody answered
)

// written is what all writers know, and have counted since the last take.
type written struct {
	mu      sync.Mutex
	fates   map[string]fate
	created map[string]int64 // the revision of acknowledged creations, where it is known

	acknowledged, retried int
	failed                []string
	gaps                  gaps
}

func newWritten() *written {
	return &written{fates: map[string]fate{}, created: map[string]int64{}, gaps: gaps{last: time.Now()}}
}

// record counts a write that was tried.
func (w *written) record(name string, then fate, revision int64, retried bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if retried {
		w.retried++
	}
	if err != nil {
		w.fates[name] = maybe
		w.failed = append(w.failed, fmt.Sprintf("%s %s: %v", time.Now().Format("15:04:05.000"), name, err))
		return
	}
	w.acknowledged++
	w.gaps.succeeded(time.Now())
	w.fates[name] = then
	if revision > 0 {
		w.created[name] = revision
	}
}

// lost names what differs between what was acknowledged and what there is.
func (w *written) lost(is map[string]int64) (lost []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, f := range w.fates {
		_, found := is[name]
		if f == there && !found {
			lost = append(lost, name+" was created and is not there")
		}
		if f == gone && found {
			lost = append(lost, name+" was deleted and is there")
		}
	}
	return lost
}

// write is one client. It ends with ctx, but not in the middle of a request.
func (w *written) write(ctx context.Context, s servers, namespace string, me int, gate *sync.RWMutex) {
	tick := time.NewTicker(writeEvery)
	defer tick.Stop()
	var mine []string
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		gate.RLock()
		name := fmt.Sprintf("w%d-%d", me, n)
		w.create(ctx, &s, namespace, name)
		if mine = append(mine, name); len(mine) > keeps {
			w.remove(ctx, &s, namespace, mine[0])
			mine = mine[1:]
		}
		gate.RUnlock()
	}
}

func (w *written) create(ctx context.Context, s *servers, namespace, name string) {
	var revision int64
	retried, err := s.do(ctx, func(ctx context.Context, c *kubernetes.Clientset, second bool) error {
		cm, err := c.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
		if second && apierrors.IsAlreadyExists(err) {
			return nil // the first try was done, and not said to be
		}
		if err == nil {
			revision = revisionOf(cm)
		}
		return err
	})
	if ctx.Err() != nil {
		return
	}
	w.record(name, there, revision, retried, err)
}

func (w *written) remove(ctx context.Context, s *servers, namespace, name string) {
	w.mu.Lock()
	was := w.fates[name]
	w.fates[name] = maybe // from here on it may be gone
	w.mu.Unlock()
	retried, err := s.do(ctx, func(ctx context.Context, c *kubernetes.Clientset, second bool) error {
		err := c.CoreV1().ConfigMaps(namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if (second || was == maybe) && apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	if ctx.Err() != nil {
		return
	}
	w.record(name, gone, 0, retried, err)
}

// take fills in what happened since the last take, without what was lost.
func (w *written) take(r *result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Acknowledged, r.Retried, r.Failed, r.Writes = w.acknowledged, w.retried, len(w.failed), w.gaps.take(time.Now())
	w.acknowledged, w.retried, w.failed = 0, 0, nil
	// What is gone need not be known any longer: names are never used again.
	for name, f := range w.fates {
		if f == gone {
			delete(w.fates, name)
			delete(w.created, name)
		}
	}
}

// complaints are the first writes that failed.
func (w *written) complaints() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed[:min(len(w.failed), 3)]
}

// calls is what clients of the Service have seen since the last take.
type calls struct {
	mu      sync.Mutex
	good    int
	failed  []string
	gaps    gaps
	request func(context.Context) error
}

const callers, callEvery = 2, 100 * time.Millisecond

// callFor is how long a client of the Service waits for an answer before it tries again.
var callFor = time.Second * slack

// callAgain is when it tries again: at once it might meet the same endpoint, which has just died, and of which
// the proxy is about to hear.
var callAgain = 100 * time.Millisecond * slack

// run calls until ctx ends, each time by a new connection, and tries again once.
func (c *calls) run(ctx context.Context) {
	tick := time.NewTicker(callEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var err error
		for try := range 2 {
			if try > 0 {
				run.Sleep(ctx, callAgain)
			}
			one, cancel := context.WithTimeout(ctx, callFor)
			err = c.request(one)
			cancel()
			if err == nil {
				break
			}
		}
		if ctx.Err() == nil {
			c.record(err)
		}
	}
}

func (c *calls) record(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failed = append(c.failed, fmt.Sprintf("%s %v", time.Now().Format("15:04:05.000"), err))
		return
	}
	c.good++
	c.gaps.succeeded(time.Now())
}

func (c *calls) take(r *result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.Calls, r.CallsFailed, r.Service = c.good, len(c.failed), c.gaps.take(time.Now())
	c.good, c.failed = 0, nil
}

func (c *calls) complaints() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed[:min(len(c.failed), 3)]
}
