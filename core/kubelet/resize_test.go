// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/simulated"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

// quotas is what a kernel with cgroup v1 knows of one pod of one container: the container's time of the processors
// never exceeds the pod's, whichever of them is written.
type quotas struct {
	mu             sync.Mutex
	pod, container int64
}

var errInvalid = errors.New("write cpu.cfs_quota_us: invalid argument")

// boundedHost has a pod's cgroup.
type boundedHost struct {
	kubelet.Host
	*quotas
}

func (h boundedHost) Claim(ctx context.Context, p *corev1.Pod) (spec.Place, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	to := spec.PodResources(p).CpuQuota
	if to < h.container {
		return spec.Place{}, errInvalid
	}
	h.pod = to
	return h.Host.Claim(ctx, p)
}

// boundedEngine has a container's.
type boundedEngine struct {
	*simulated.Engine
	*quotas
}

func (e boundedEngine) UpdateResources(ctx context.Context, id string, r *cri.LinuxContainerResources) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.CpuQuota > e.pod {
		return errInvalid
	}
	e.container = r.CpuQuota
	return e.Engine.UpdateResources(ctx, id, r)
}

// A container may grow after its pod, and a pod shrink after its containers: a kernel with cgroup v1 refuses both the
// other way round.
func TestAPodGrowsBeforeItsContainersAndShrinksAfterThem(t *testing.T) {
	w := newWorld(t)
	w.start()
	e, q := w.engine(), &quotas{}
	w.node("n1", e, func(c *kubelet.Config) {
		c.Engine, c.Host = boundedEngine{e, q}, boundedHost{c.Host, q}
	})
	w.create("n1", "a", func(p *corev1.Pod) { p.Spec.Containers[0].Resources = cores("300m") })
	w.until("a", "running", running)
	for _, to := range []string{"400m", "200m", "600m"} {
		p, err := w.client.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Generation++
		p.Spec.Containers[0].Resources = cores(to)
		if _, err := w.client.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.until("a", "resized to "+to, func(p *corev1.Pod) bool {
			r, whole := p.Status.ContainerStatuses[0].Resources, p.Status.Resources
			return r != nil && r.Limits.Cpu().String() == to && whole != nil && whole.Limits.Cpu().String() == to
		})
		m := resource.MustParse(to)
		want := spec.Quota(m.MilliValue())
		q.mu.Lock()
		if q.pod != want || q.container != want {
			t.Errorf("with %s the pod has %d us and the container %d, want %d", to, q.pod, q.container, want)
		}
		q.mu.Unlock()
	}
	events, err := w.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range events.Items {
		if ev.Reason == "ResizeError" {
			t.Errorf("the user was told of an error: %s", ev.Message)
		}
	}
}

func cores(n string) corev1.ResourceRequirements {
	l := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n), corev1.ResourceMemory: resource.MustParse("64Mi")}
	return corev1.ResourceRequirements{Requests: l, Limits: l}
}

// Room that comes free is for the pod of the highest priority that waits for it, though another has waited longer, and for that one when
// the first takes back what it asked for.
func TestRoomIsForWhoComesFirst(t *testing.T) {
	for name, takesBack := range map[string]bool{"waits": false, "takes it back": true} {
		t.Run(name, func(t *testing.T) { roomComesFree(t, takesBack) })
	}
}

func roomComesFree(t *testing.T, takesBack bool) {
	w := newWorld(t)
	w.start()
	w.node("n1", w.engine(), func(c *kubelet.Config) { c.Delays.RetryMax = 20 * time.Millisecond })
	n, err := w.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	share := func(percent int64) corev1.ResourceRequirements {
		return cores(resource.NewMilliQuantity(n.Status.Allocatable.Cpu().MilliValue()*percent/100, resource.DecimalSI).String())
	}
	for name, percent := range map[string]int64{"large": 70, "first": 5, "second": 5} {
		w.create("n1", name, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = share(percent)
			if name == "first" {
				p.Spec.Priority = new(int32(1000))
			}
		})
		w.until(name, "running", running)
	}
	asks := func(name string, percent int64) {
		t.Helper()
		p, err := w.client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Generation++
		p.Spec.Containers[0].Resources = share(percent)
		if _, err := w.client.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pending := func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizePending })
	}
	for _, name := range []string{"second", "first"} {
		asks(name, 60)
		w.until(name, "deferred", pending)
	}
	gets, stays := "first", "second"
	if takesBack {
		gets, stays = stays, gets
		asks("first", 5)
		w.until("first", "no longer deferred", func(p *corev1.Pod) bool { return !pending(p) })
	}
	w.remove("large")
	has := func(percent int64) func(*corev1.Pod) bool {
		want := share(percent).Limits[corev1.ResourceCPU]
		return func(p *corev1.Pod) bool {
			r := p.Status.ContainerStatuses[0].Resources
			return r != nil && r.Limits.Cpu().Cmp(want) == 0
		}
	}
	w.until(gets, "resized", has(60))
	w.until(stays, "as it was", has(5))
}
