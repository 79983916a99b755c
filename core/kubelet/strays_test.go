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

// What a runtime says has ended may run on, where a start was cut off: the host is asked for it with the end of each
// container and sandbox.
func TestWhatTheRuntimeDoesNotKnowOfEnds(t *testing.T) {
	w := newWorld(t)
	w.start()
	eng := w.engine()
	host := &swept{Host: simulated.NewHost(simulated.HostConfig{Name: "n1", Address: "127.0.0.1", Engine: eng})}
	w.node("n1", eng, func(c *kubelet.Config) { c.Host = host })
	w.create("n1", "p")
	p := w.until("p", "running", running)
	_, container, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	sandboxes, err := eng.ListSandboxes(t.Context())
	if err != nil || len(sandboxes) != 1 {
		t.Fatalf("%d sandboxes, %v", len(sandboxes), err)
	}
	w.remove("p")
	w.gone("p")
	for _, id := range []string{container, sandboxes[0].Id} {
		w.eventually("strays of "+id+" are looked for", func() bool {
			host.mu.Lock()
			defer host.mu.Unlock()
			return slices.Contains(host.asked, id)
		})
	}
}
