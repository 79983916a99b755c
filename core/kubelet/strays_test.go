// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/simulated"
)

// swept is a host that is asked to end what the runtime does not know of.
type swept struct {
	*simulated.Host
	mu    sync.Mutex
	asked []string
}

func (s *swept) KillStrays(_ context.Context, _ *corev1.Pod, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, id)
	return nil
}

func (s *swept) wasAsked(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.asked, id)
}

// What a runtime says has ended may run on, where a start was cut off: the host is asked for it with the end of each
// container that another one follows, and of each sandbox.
func TestWhatTheRuntimeDoesNotKnowOfEnds(t *testing.T) {
	w := newWorld(t)
	w.start()
	eng := w.engine()
	host := &swept{Host: simulated.NewHost(simulated.HostConfig{Name: "n1", Address: "127.0.0.1", Engine: eng})}
	w.node("n1", eng, func(c *kubelet.Config) { c.Host = host })
	w.create("n1", "p", sim("run-time", "10ms"))
	var first string
	w.until("p", "started again and again", func(p *corev1.Pod) bool {
		if len(p.Status.ContainerStatuses) == 0 {
			return false
		}
		st := p.Status.ContainerStatuses[0]
		if _, id, _ := strings.Cut(st.ContainerID, "://"); first == "" {
			first = id
		}
		return st.RestartCount >= 2
	})
	w.eventually("the first container's strays are looked for", func() bool { return host.wasAsked(first) })
	sandboxes, err := eng.ListSandboxes(t.Context())
	if err != nil || len(sandboxes) != 1 {
		t.Fatalf("%d sandboxes, %v", len(sandboxes), err)
	}
	if host.wasAsked(sandboxes[0].Id) {
		t.Error("a sandbox that is used was looked at for strays")
	}
	w.remove("p")
	w.gone("p")
	if !host.wasAsked(sandboxes[0].Id) {
		t.Error("nobody looked for the sandbox's strays")
	}
}
