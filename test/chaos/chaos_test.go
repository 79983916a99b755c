// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

const (
	objects  = 6
	workers  = 12
	watchers = 3
	label    = "chaos"
)

// kills is how often the server dies.
func kills(t *testing.T) int {
	t.Helper()
	text := os.Getenv("CHAOS_KILLS")
	if text == "" {
		return 4
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("CHAOS_KILLS is %q: give how often the server is killed", text)
	}
	return n
}

func TestKilledUnderLoad(t *testing.T) {
	s := newServer(t)
	s.start()
	s.prepare()
	h := &history{began: time.Now()}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients, followers sync.WaitGroup
	for i := range workers {
		clients.Go(func() { s.work(ctx, h, i) })
	}
	follow, stopFollowing := context.WithCancel(t.Context())
	defer stopFollowing()
	seen := make([]*follower, watchers)
	for i := range seen {
		seen[i] = &follower{client: s.client(), reached: make(chan struct{})}
		followers.Go(func() { seen[i].run(follow) })
	}
	for range kills(t) {
		// Long enough for some hundred operations, at a point that nobody chose.
		wait(t, 300*time.Millisecond+rand.N(900*time.Millisecond))
		s.crash()
		s.start()
	}
	wait(t, time.Second)
	stop()
	clients.Wait()
	last := s.lastWrite()
	for _, f := range seen {
		f.reach(t, last)
	}
	stopFollowing()
	followers.Wait()
	h.judge(t)
	for i, f := range seen {
		f.judge(t, i, h, last)
	}
}

func wait(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal("the test was ended")
	}
}

// server is the process that is killed.
type server struct {
	*harness.Cluster
	t    *testing.T
	kube *kubernetes.Clientset
	cfg  *rest.Config

	process *harness.Process
}

func newServer(t *testing.T) *server {
	t.Helper()
	return &server{Cluster: harness.NewFor(t, harness.Binary(t), t.TempDir()), t: t}
}

// start runs the server until it says that it is ready.
func (s *server) start() {
	s.t.Helper()
	var err error
	s.process, err = s.Start("apiserver", exec.Command(s.Binary, "apiserver", "--data-dir", s.Data, "--listen", s.Listen, "--log-level",
		"warn"))
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), harness.Patience)
	defer cancel()
	err = harness.Poll(ctx, 20*time.Millisecond, func() error {
		select {
		case <-s.process.Done():
			s.t.Fatal("the server ended by itself")
		default:
		}
		return s.ready()
	})
	if err != nil {
		s.t.Fatalf("the server was not ready within %s: %v", harness.Patience, err)
	}
}

func (s *server) ready() (err error) {
	if s.cfg == nil {
		if s.cfg, err = s.Config(); err != nil {
			return err
		}
		if s.kube, err = kubernetes.NewForConfig(s.cfg); err != nil {
			s.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
	defer cancel()
	return s.kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// crash kills the process, and waits for its end.
func (s *server) crash() {
	s.t.Helper()
	if err := s.process.End(os.Kill); err != nil {
		s.t.Fatal(err)
	}
}

// client has connections of its own.
func (s *server) client() *kubernetes.Clientset {
	s.t.Helper()
	c, err := kubernetes.NewForConfig(s.cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *server) prepare() {
	s.t.Helper()
	_, err := s.kube.CoreV1().Namespaces().Create(s.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: label}},
		metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
}

// lastWrite makes one more write, and answers its revision.
func (s *server) lastWrite() int64 {
	s.t.Helper()
	cm, err := s.kube.CoreV1().ConfigMaps(label).Create(s.t.Context(), object("last", "last"), metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return revision(cm)
}

func object(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": value}}
}

func revision(o metav1.Object) int64 {
	n, _ := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	return n
}

// work is one client: it reads, then tries something with what it read.
func (s *server) work(ctx context.Context, h *history, me int) {
	c := s.client().CoreV1().ConfigMaps(label)
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("object-%d", rand.N(objects))
		value := fmt.Sprintf("%d-%d", me, n)
		in := input{object: name, verb: get}
		if rand.N(3) == 0 {
			in.verb = list
		}
		found := h.do(me, in, func() output {
			return bounded(s.t, func(ctx context.Context) (*corev1.ConfigMap, error) {
				if in.verb == get {
					return c.Get(ctx, name, metav1.GetOptions{})
				}
				l, err := c.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
				if err != nil || len(l.Items) == 0 {
					return nil, err
				}
				return &l.Items[0], nil
			})
		})
		switch found.outcome {
		case unknown:
			wait(s.t, 20*time.Millisecond) // it is being killed
			continue
		case missing:
			in = input{object: name, verb: create, value: value}
		default:
			in = input{object: name, verb: []verb{update, update, patch, remove}[rand.N(4)], value: value, expected: found.revision}
		}
		h.do(me, in, func() output {
			return bounded(s.t, func(ctx context.Context) (*corev1.ConfigMap, error) {
				switch in.verb {
				case create:
					return c.Create(ctx, object(name, value), metav1.CreateOptions{})
				case update:
					o := object(name, value)
					o.ResourceVersion = strconv.FormatInt(in.expected, 10)
					return c.Update(ctx, o, metav1.UpdateOptions{})
				case patch:
					return c.Patch(ctx, name, "application/merge-patch+json", fmt.Appendf(nil, `{"data":{"value":%q}}`, value), metav1.PatchOptions{})
				case remove:
					version := strconv.FormatInt(in.expected, 10)
					return &corev1.ConfigMap{}, c.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
				default:
					return nil, fmt.Errorf("%v writes nothing", in.verb)
				}
			})
		})
	}
}

// bounded runs a request and says what its answer means. A nil object without an error is none.
func bounded(t *testing.T, request func(context.Context) (*corev1.ConfigMap, error)) output {
	// Not the workers' context: a request that was sent is waited for.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cm, err := request(ctx)
	var status apierrors.APIStatus
	switch {
	case err == nil && cm == nil, apierrors.IsNotFound(err):
		return output{outcome: missing}
	case err == nil:
		return output{done, cm.Data["value"], revision(cm)}
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return output{outcome: conflict}
	case errors.As(err, &status) && status.Status().Code < 500 && status.Status().Code != 429 && status.Status().Code != 0:
		t.Errorf("an answer that nobody expects: %v", err)
	}
	return output{outcome: unknown}
}
