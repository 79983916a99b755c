// SPDX-License-Identifier: Apache-2.0

package guarded_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/guarded"
	"github.com/wasmplane/wasmplane/core/kubelet/simulated"
	"github.com/wasmplane/wasmplane/core/run"
)

// firewall writes down what it is told.
type firewall struct {
	log    []string
	pods   []*corev1.Pod
	ips    []string
	refuse error
}

func (f *firewall) Guard(_ context.Context, p *corev1.Pod, ips []string, link string) error {
	f.log, f.pods, f.ips = append(f.log, "guard "+p.Name+link), append(f.pods, p), ips
	return f.refuse
}

func (f *firewall) Follow(p *corev1.Pod, ips []string, link string) {
	f.log, f.ips = append(f.log, "follow "+p.Name+link), ips
}

func (f *firewall) Forget(p *corev1.Pod) { f.log = append(f.log, "forget "+p.Name) }

func veth(string) (string, error) { return " by veth", nil }

func sandbox(attempt uint32, network cri.NamespaceMode) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Namespace: "x", Name: "one", Uid: "u", Attempt: attempt},
		Labels:   map[string]string{"app": "a", "io.kubernetes.pod.name": "one"},
		Linux: &cri.LinuxPodSandboxConfig{
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Network: network}},
		},
	}
}

func newEngine(t *testing.T) *simulated.Engine {
	t.Helper()
	n, err := simulated.NewNetwork(netip.MustParsePrefix("10.99.0.0/16"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := simulated.New(simulated.Config{Network: n})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// A sandbox is there once the firewall has said so; the firewall hears of its end, and
// another process of those that run.
func TestLifeOfASandbox(t *testing.T) {
	ctx, inner, f := t.Context(), newEngine(t), &firewall{}
	e := guarded.New(inner, f, veth)
	first, err := e.RunSandbox(ctx, sandbox(0, cri.NamespaceMode_POD), "")
	if err != nil {
		t.Fatal(err)
	}
	p := f.pods[0]
	if p.Namespace != "x" || p.Name != "one" || p.UID != "u" || len(p.Labels) != 1 || p.Labels["app"] != "a" || p.Spec.HostNetwork ||
		p.Status.Phase != "" || len(f.ips) == 0 {
		t.Errorf("the firewall is asked about %+v at %v", p, f.ips)
	}
	given := f.ips
	if _, err := e.SandboxStatus(ctx, first); err != nil {
		t.Fatal(err)
	}
	second, err := e.RunSandbox(ctx, sandbox(1, cri.NamespaceMode_NODE), "")
	if err != nil {
		t.Fatal(err)
	}
	if p := f.pods[1]; !p.Spec.HostNetwork || p.Status.Phase != "" {
		t.Errorf("the firewall is asked about %+v", p)
	}
	later := &firewall{}
	after := guarded.New(inner, later, veth)
	for range 2 {
		if _, err := after.SandboxStatus(ctx, first); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(later.log, []string{"follow one by veth"}) || !slices.Equal(later.ips, given) {
		t.Errorf("a later process says %v, with the addresses %v", later.log, later.ips)
	}
	for _, id := range []string{first, second} {
		if err := e.StopSandbox(ctx, id); err != nil {
			t.Fatal(err)
		}
		if err := e.RemoveSandbox(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"guard one by veth", "guard one", "forget one"}; !slices.Equal(f.log, want) {
		t.Errorf("the firewall was told %v, want %v", f.log, want)
	}
}

// create makes a container in a sandbox.
func create(t *testing.T, e *guarded.Engine, sb string, attempt uint32) error {
	t.Helper()
	c := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "web", Attempt: attempt}, Image: &cri.ImageSpec{Image: "example.org/web:1"},
		Labels: map[string]string{"io.kubernetes.pod.uid": "u", "io.kubernetes.container.name": "web"},
	}
	_, err := e.CreateContainer(t.Context(), sb, c, sandbox(0, cri.NamespaceMode_POD))
	return err
}

// An earlier process may have died between a sandbox and its rules: the firewall is asked before
// anything is created there. What has containers was guarded when they were created.
func TestNothingIsCreatedInASandboxThatWasNeverGuarded(t *testing.T) {
	ctx, inner := t.Context(), newEngine(t)
	if _, err := inner.PullImage(ctx, &cri.ImageSpec{Image: "example.org/web:1"}, nil, nil); err != nil {
		t.Fatal(err)
	}
	id, err := inner.RunSandbox(ctx, sandbox(0, cri.NamespaceMode_POD), "")
	if err != nil {
		t.Fatal(err)
	}
	f := &firewall{refuse: errors.New("not in force")}
	e := guarded.New(inner, f, nil)
	if _, err := e.SandboxStatus(ctx, id); err != nil {
		t.Fatal(err)
	}
	if err := create(t, e, id, 0); !errors.Is(err, f.refuse) {
		t.Errorf("a container is created: %v", err)
	}
	if list, err := inner.ListContainers(ctx); err != nil || len(list) > 0 {
		t.Errorf("there are containers: %v, %v", list, err)
	}
	f.refuse = nil
	for attempt := range uint32(2) {
		if err := create(t, e, id, attempt); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"follow one", "guard one", "guard one"}; !slices.Equal(f.log, want) || f.pods[1].Status.Phase != "" {
		t.Errorf("the firewall was told %v, want %v; the pod is %q", f.log, want, f.pods[1].Status.Phase)
	}
	later := &firewall{refuse: errors.New("the API does not answer")}
	if err := create(t, guarded.New(inner, later, nil), id, 2); err != nil {
		t.Errorf("the pod has run there before, and %v", err)
	}
	// Another sandbox of a pod that has run.
	f.log, f.pods = nil, nil
	if _, err := e.RunSandbox(ctx, sandbox(1, cri.NamespaceMode_POD), ""); err != nil || f.pods[0].Status.Phase != corev1.PodRunning {
		t.Errorf("%v, the pod is %q", err, f.pods[0].Status.Phase)
	}
}

// slow answers when it is told to.
type slow struct {
	firewall
	asked, answer chan struct{}
}

func (s *slow) Guard(context.Context, *corev1.Pod, []string, string) error {
	close(s.asked)
	<-s.answer
	return nil
}

// The runtime tells of a sandbox before the firewall has answered; who believes it waits.
func TestNothingIsCreatedBeforeTheFirewallHasAnswered(t *testing.T) {
	inner, f := newEngine(t), &slow{asked: make(chan struct{}), answer: make(chan struct{})}
	if _, err := inner.PullImage(t.Context(), &cri.ImageSpec{Image: "example.org/web:1"}, nil, nil); err != nil {
		t.Fatal(err)
	}
	e := guarded.New(inner, f, nil)
	ran := run.Go("sandbox", func() error {
		_, err := e.RunSandbox(t.Context(), sandbox(0, cri.NamespaceMode_POD), "")
		return err
	})
	<-f.asked
	list, err := e.ListSandboxes(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	hasty, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.CreateContainer(hasty, list[0].Id, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a container is created without waiting: %v", err)
	}
	created := run.Go("container", func() error { return create(t, e, list[0].Id, 0) })
	close(f.answer)
	if err := errors.Join(<-ran, <-created); err != nil {
		t.Error(err)
	}
}

// A sandbox that cannot be guarded is none.
func TestUnguarded(t *testing.T) {
	f := &firewall{refuse: errors.New("not in force")}
	lost := errors.New("no link")
	if id, err := guarded.New(newEngine(t), &firewall{}, func(string) (string, error) { return "", lost }).RunSandbox(t.Context(),
		sandbox(0, cri.NamespaceMode_POD), ""); id != "" || !errors.Is(err, lost) {
		t.Errorf("sandbox %q, %v", id, err)
	}
	if id, err := guarded.New(newEngine(t), f, nil).RunSandbox(t.Context(), sandbox(0, cri.NamespaceMode_POD), ""); id != "" ||
		!errors.Is(err, f.refuse) {
		t.Errorf("sandbox %q, %v", id, err)
	}
}
