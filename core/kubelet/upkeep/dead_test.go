// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/node"
)

// graveyard has containers, and images too.
type graveyard struct {
	*shelf
	containers []*cri.Container
}

func (g *graveyard) ListContainers(context.Context) ([]*cri.Container, error) {
	return slices.Clone(g.containers), nil
}

func (g *graveyard) RemoveContainer(_ context.Context, id string) error {
	g.containers = slices.DeleteFunc(g.containers, func(c *cri.Container) bool { return c.Id == id })
	return nil
}

func (g *graveyard) left() (out []string) {
	for _, c := range g.containers {
		out = append(out, c.Id)
	}
	return out
}

func buried(id, pod, name string, attempt uint32, state cri.ContainerState) *cri.Container {
	return &cri.Container{
		Id: id, State: state, Metadata: &cri.ContainerMetadata{Name: name, Attempt: attempt},
		Labels: map[string]string{"io.kubernetes.pod.uid": pod},
	}
}

// Before a pod goes for the disk's sake, containers go that have ended, then images; those of living pods that others have
// come after, and all of pods that are over.
func TestTheDeadGoBeforeTheLiving(t *testing.T) {
	const running, exited = cri.ContainerState_CONTAINER_RUNNING, cri.ContainerState_CONTAINER_EXITED
	p := &crowd{pods: pods{
		running: []*corev1.Pod{limited("a", "")}, ended: []*corev1.Pod{limited("over", "")}, evicted: map[types.UID]string{},
	}}
	g := &graveyard{
		shelf: &shelf{runtime: &runtime{stats: []*cri.PodSandboxStats{stats("a", 8<<20)}}, images: []*cri.Image{{Id: "unused", Size: 1}}},
		containers: []*cri.Container{
			buried("a-c-0", "a", "c", 0, exited), buried("a-c-2", "a", "c", 2, running), buried("a-c-1", "a", "c", 1, exited),
			buried("a-init", "a", "init", 0, exited), buried("over-c", "over", "c", 0, exited),
			buried("going-c", "going", "c", 0, exited), buried("going-c-1", "going", "c", 1, running),
		},
	}
	m := &machine{short: []node.Short{{Resource: corev1.ResourceEphemeralStorage}}}
	k := New(Config{Pods: p, Engine: g, Host: m, Logger: slog.New(slog.DiscardHandler)})
	now := time.Now()
	k.collect(t.Context(), now)
	now = now.Add(3 * time.Minute) // the image may go
	k.relieve(t.Context(), now)
	if want := []string{"a-c-2", "a-init", "going-c", "going-c-1"}; !slices.Equal(g.left(), want) {
		t.Errorf("left are %v, want %v", g.left(), want)
	}
	if len(p.evicted) > 0 || len(g.images) != 1 {
		t.Errorf("evicted at once: %v, images %v", p.evicted, g.images)
	}
	k.relieve(t.Context(), now)
	if len(g.images) > 0 || len(p.evicted) > 0 {
		t.Errorf("images %v, evicted %v", g.images, p.evicted)
	}
	k.relieve(t.Context(), now)
	if len(p.evicted) != 1 {
		t.Errorf("evicted: %v", p.evicted)
	}
}
