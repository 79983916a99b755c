// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/feeds"
	"github.com/wasmplane/wasmplane/core/kubelet/objects"
	"github.com/wasmplane/wasmplane/core/kubelet/podlifecycle"
	"github.com/wasmplane/wasmplane/core/kubelet/simulated"
)

// world is a cluster of simulated nodes around a client.
type world struct {
	t      *testing.T
	client kubernetes.Interface
	net    *simulated.Network
	feeds  *feeds.Feeds
}

func newWorld(t *testing.T) *world {
	t.Helper()
	n, err := simulated.NewNetwork(netip.MustParsePrefix("10.99.0.0/16"))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, client: fake.NewClientset(), net: n}
	if w.feeds, err = feeds.New(w.client, ""); err != nil {
		t.Fatal(err)
	}
	return w
}

// node runs a kubelet over eng until the test ends or stop is called.
func (w *world) node(name string, eng *simulated.Engine, change ...func(*kubelet.Config)) (stop func()) {
	w.t.Helper()
	k, stop := w.begin(name, eng, change...)
	select {
	case <-k.Ready():
	case <-time.After(time.Minute):
		w.t.Fatal("kubelet is not ready")
	}
	return stop
}

// begin begins to run a kubelet; it may be that it cannot register.
func (w *world) begin(name string, eng *simulated.Engine, change ...func(*kubelet.Config)) (k *kubelet.Kubelet, stop func()) {
	w.t.Helper()
	cfg := kubelet.Config{
		NodeName: name, Client: w.client, Engine: eng,
		Host:    simulated.NewHost(simulated.HostConfig{Name: name, Address: "127.0.0.1", Engine: eng}),
		Volumes: simulated.Volumes{}, Handler: simulated.Handler{}, Objects: objects.New(w.client, nil), Feeds: w.feeds,
		Delays: podlifecycle.Options{
			CrashInitial: 50 * time.Millisecond, CrashMax: time.Second, ImageInitial: 50 * time.Millisecond,
			RetryInitial: 20 * time.Millisecond,
		},
		Logger: slog.New(slog.NewTextHandler(w.t.Output(), nil)),
	}
	for _, c := range change {
		c(&cfg)
	}
	k, err := kubelet.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("kubelet of %s: %v", name, err)
		}
	}
	w.t.Cleanup(stop)
	return k, stop
}

func (w *world) start() {
	w.t.Helper()
	run(w.t, w.feeds.Run)
	select {
	case <-w.feeds.Synced():
	case <-time.After(time.Minute):
		w.t.Fatal("feeds do not sync")
	}
}

// run until the test ends.
func run(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = f(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

func (w *world) engine() *simulated.Engine {
	w.t.Helper()
	e, err := simulated.New(simulated.Config{Network: w.net})
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

func (w *world) create(node, name string, change ...func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	grace := int64(5)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-" + name), Generation: 1,
			Annotations: map[string]string{},
		},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "web", Image: "example.org/web:1", ImagePullPolicy: corev1.PullIfNotPresent}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, c := range change {
		c(p)
	}
	got, err := w.client.CoreV1().Pods(p.Namespace).Create(w.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// until waits for a pod to be as wanted.
func (w *world) until(name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	wt, err := w.client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	defer wt.Stop()
	p, err := w.client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
	if err == nil && ok(p) {
		return p
	}
	for {
		select {
		case ev := <-wt.ResultChan():
			if q, is := ev.Object.(*corev1.Pod); is && q.Name == name {
				p = q
				if ok(p) {
					return p
				}
			}
		case <-ctx.Done():
			w.t.Fatalf("pod %s is never %s; it is %s", name, what, describe(p))
		}
	}
}

func describe(p *corev1.Pod) string {
	if p == nil {
		return "not there"
	}
	return fmt.Sprintf("%s %s %q %+v %+v %v", p.Status.Phase, p.Status.Reason, p.Status.Message, p.Status.ContainerStatuses,
		p.Status.Conditions, p.Annotations)
}

func running(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && ready(p) }

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func TestPodsRunOnSimulatedNodes(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.node("n1", w.engine())
	w.node("n2", w.engine())
	w.create("n1", "a")
	w.create("n2", "b")
	a, b := w.until("a", "running", running), w.until("b", "running", running)
	if a.Status.PodIP == "" || a.Status.PodIP == b.Status.PodIP {
		t.Errorf("addresses %q and %q", a.Status.PodIP, b.Status.PodIP)
	}
	st := a.Status.ContainerStatuses[0]
	if st.ContainerID == "" || st.ImageID == "" || st.State.Running == nil || !st.Ready || a.Status.StartTime == nil || a.Status.HostIP != "127.0.0.1" {
		t.Errorf("status %+v", a.Status)
	}
	n, err := w.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || n.Status.Capacity.Pods().Value() != 110 {
		t.Errorf("node %+v, %v", n, err)
	}
}

// crowded counts the sandboxes that are being made, all of which wait for a word.
type crowded struct {
	*simulated.Engine
	goOn      chan struct{}
	now, most atomic.Int32
}

func (c *crowded) RunSandbox(ctx context.Context, cfg *cri.PodSandboxConfig, handler string) (string, error) {
	n := c.now.Add(1)
	for m := c.most.Load(); n > m && !c.most.CompareAndSwap(m, n); m = c.most.Load() {
	}
	<-c.goOn
	defer c.now.Add(-1)
	return c.Engine.RunSandbox(ctx, cfg, handler)
}

// TestManyPodsAreStartedInTurns: as many at a time as the node is configured for, and each of them runs in the end.
func TestManyPodsAreStartedInTurns(t *testing.T) {
	const pods, bound = 24, 3
	w := newWorld(t)
	w.start()
	e := &crowded{Engine: w.engine(), goOn: make(chan struct{})}
	w.node("n1", e.Engine, func(c *kubelet.Config) { c.Engine, c.ParallelSandboxes = e, bound })
	for i := range pods {
		w.create("n1", fmt.Sprintf("pod-%d", i))
	}
	for i := range pods { // all want a sandbox
		w.until(fmt.Sprintf("pod-%d", i), "seen", func(p *corev1.Pod) bool { return p.Status.StartTime != nil })
	}
	high := int32(2_000_000_000)
	w.create("n1", "critical", func(p *corev1.Pod) { p.Spec.Priority = &high })
	for e.now.Load() <= bound { // it does not wait
		runtime.Gosched()
	}
	close(e.goOn)
	for i := range pods {
		w.until(fmt.Sprintf("pod-%d", i), "running", running)
	}
	if n := e.most.Load(); n != bound+1 {
		t.Errorf("%d sandboxes were made at the same time, with a bound of %d and a critical one", n, bound)
	}
}

// A port that the machine is reached by goes to no pod, whatever address it names; a
// pod in the node's own network, and the same port of UDP, are as upstream.
func TestReservedPortsGoToNoPod(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.node("n1", w.engine(), func(c *kubelet.Config) { c.ReservedTCPPorts, c.ReservedUDPPorts = []int32{22, 6443}, []int32{51820} })
	port := func(c corev1.ContainerPort) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{c} }
	}
	w.create("n1", "api", port(corev1.ContainerPort{ContainerPort: 80, HostPort: 6443, Protocol: corev1.ProtocolTCP}))
	w.create("n1", "ssh", port(corev1.ContainerPort{ContainerPort: 80, HostPort: 22, HostIP: "127.0.0.1"}))
	w.create("n1", "tunnel", port(corev1.ContainerPort{ContainerPort: 80, HostPort: 51820, HostIP: "127.0.0.1", Protocol: corev1.ProtocolUDP}))
	w.create("n1", "udp", port(corev1.ContainerPort{ContainerPort: 80, HostPort: 6443, Protocol: corev1.ProtocolUDP}))
	w.create("n1", "host", port(corev1.ContainerPort{ContainerPort: 22, HostPort: 22, Protocol: corev1.ProtocolTCP}),
		func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	for _, name := range []string{"api", "ssh", "tunnel"} {
		p := w.until(name, "refused", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if p.Status.Reason != "HostPortReserved" || !strings.Contains(p.Status.Message, "is reserved for the node itself") {
			t.Errorf("pod %s is %s", name, describe(p))
		}
	}
	w.until("udp", "running", running)
	w.until("host", "running", running)
}
