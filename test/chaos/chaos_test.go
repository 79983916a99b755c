package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
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
	t    *testing.T
	dir  string
	bin  string
	addr string
	kube *kubernetes.Clientset
	cfg  *rest.Config

	cmd  *exec.Cmd
	log  *os.File
	done chan struct{}
}

func newServer(t *testing.T) *server {
	t.Helper()
	bin, err := filepath.Abs("../../bin/wasmplane")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatalf("%v: run `make build` first", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, dir: t.TempDir(), bin: bin, addr: l.Addr().String()}
	_ = l.Close()
	if s.log, err = os.Create(filepath.Join(s.dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.crash()
		_ = s.log.Close()
		if text, err := os.ReadFile(s.log.Name()); t.Failed() && err == nil {
			t.Logf("the server logged last:\n%s", text[max(0, len(text)-8<<10):])
		}
	})
	return s
}

// start runs the server until it says that it is ready.
func (s *server) start() {
	s.t.Helper()
	data := filepath.Join(s.dir, "data")
	s.cmd = exec.Command(s.bin, "apiserver", "--data-dir", data, "--listen", s.addr, "--log-level", "warn")
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	done := make(chan struct{})
	go func(cmd *exec.Cmd) { defer close(done); _ = cmd.Wait() }(s.cmd) // ends with the process
	s.done = done
	limit := time.NewTimer(2 * time.Minute)
	defer limit.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !s.ready(filepath.Join(data, "kubeconfig")) {
		select {
		case <-tick.C:
		case <-s.done:
			s.t.Fatal("the server ended by itself")
		case <-limit.C:
			s.t.Fatal("the server was not ready within 2 minutes")
		}
	}
}

func (s *server) ready(kubeconfig string) bool {
	if s.cfg == nil {
		cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return false
		}
		cfg.QPS, cfg.Timeout = -1, 0
		s.cfg = cfg
		if s.kube, err = kubernetes.NewForConfig(cfg); err != nil {
			s.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
	defer cancel()
	return s.kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil
}

// crash kills the process, and waits for its end.
func (s *server) crash() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.done
	s.cmd = nil
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
	_, err := s.kube.CoreV1().Namespaces().Create(s.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: label}}, metav1.CreateOptions{})
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
