// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/guarded"
)

// slowFirewall says of a pod what comes by answers, when it comes.
type slowFirewall struct {
	asked   atomic.Int32
	answers chan error
}

func (f *slowFirewall) Guard(ctx context.Context, _ *corev1.Pod, _ []string, _ string) error {
	f.asked.Add(1)
	select {
	case err := <-f.answers:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (*slowFirewall) Follow(*corev1.Pod, []string, string) {}
func (*slowFirewall) Forget(*corev1.Pod)                   {}

// The runtime tells of a sandbox before the firewall has its rules, and of one that the firewall
// refused. No container starts in either.
func TestNothingStartsInASandboxThatIsNotGuarded(t *testing.T) {
	w := newWorld(t)
	w.start()
	e, f := w.engine(), &slowFirewall{answers: make(chan error)}
	t.Cleanup(func() { close(f.answers) })
	w.node("n1", e, func(c *kubelet.Config) { c.Engine = guarded.New(e, f, nil) })
	containers := func(when string) {
		t.Helper()
		list, err := e.ListContainers(t.Context())
		if err != nil || len(list) > 0 {
			t.Fatalf("%s, there are containers: %v, %v", when, list, err)
		}
	}
	w.create("n1", "a")
	w.eventually("the firewall is asked", func() bool { return f.asked.Load() == 1 })
	// The pod's address is in its status as soon as the kubelet has seen the sandbox.
	w.until("a", "the sandbox is seen", func(p *corev1.Pod) bool { return p.Status.PodIP != "" })
	containers("while the firewall has not answered")
	f.answers <- errors.New("not in force")
	w.event("a", "FailedCreatePodSandBox")
	w.eventually("the firewall is asked again", func() bool { return f.asked.Load() == 2 })
	containers("after the firewall has refused")
	f.answers <- nil
	w.until("a", "running", running)
}
