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
	if p := f.pods[1]; !p.Spec.HostNetwork || p.Status.Phase != corev1.PodRunning {
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
