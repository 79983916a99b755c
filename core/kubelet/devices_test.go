// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/deviceplugin"
)

const gadget = corev1.ResourceName("example.com/gadget")

// drawer has one gadget.
type drawer struct {
	mu       sync.Mutex
	holder   types.UID
	broken   bool
	refused  int // how many asked in vain
	equipped []string
}

func (d *drawer) Resources() (capacity, allocatable corev1.ResourceList) {
	d.mu.Lock()
	defer d.mu.Unlock()
	healthy := resource.MustParse("1")
	if d.broken {
		healthy = resource.MustParse("0")
	}
	return corev1.ResourceList{gadget: resource.MustParse("2")}, corev1.ResourceList{gadget: healthy}
}

func (d *drawer) Has(uid types.UID) bool { return d.has() == uid }

func (d *drawer) Allocate(_ context.Context, p *corev1.Pod) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.Name == "unlucky" {
		return deviceplugin.Refuse("UnexpectedAdmissionError", "Allocate failed due to no power, which is unexpected")
	}
	if d.holder != "" && d.holder != p.UID {
		d.refused++
		return deviceplugin.Refuse("UnexpectedAdmissionError", "Allocate failed due to no gadget being free, which is unexpected")
	}
	d.holder = p.UID
	return nil
}

func (d *drawer) Equip(_ context.Context, uid types.UID, container string, _ *cri.ContainerConfig) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.equipped = append(d.equipped, string(uid)+" "+container)
	return nil
}

func (d *drawer) Release(uid types.UID) {
	d.Retain(func(holder types.UID) bool { return holder != uid })
}

func (d *drawer) Retain(holds func(types.UID) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.holder != "" && !holds(d.holder) {
		d.holder = ""
	}
}

func (d *drawer) has() types.UID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holder
}

func wants(n string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		list := corev1.ResourceList{gadget: resource.MustParse(n)}
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: list, Requests: list}
	}
}

// TestDevicesOfPods: the node has them, pods get them when they are admitted, and give
// them back when they have ended; who gets none is told why.
func TestDevicesOfPods(t *testing.T) {
	w := newWorld(t)
	w.start()
	d := &drawer{}
	w.node("n1", w.engine(), func(c *kubelet.Config) { c.Devices = d })
	w.eventually("the node has gadgets", func() bool {
		n, err := w.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			return false
		}
		capacity, allocatable := n.Status.Capacity[gadget], n.Status.Allocatable[gadget]
		return capacity.Value() == 2 && allocatable.Value() == 1
	})
	w.create("n1", "lucky", wants("1"))
	w.until("lucky", "running", running)
	d.mu.Lock()
	if d.holder != "uid-lucky" || !slices.Equal(d.equipped, []string{"uid-lucky web"}) {
		t.Errorf("%q has the gadget, equipped are %q", d.holder, d.equipped)
	}
	d.mu.Unlock()
	p := w.create("n1", "late", wants("1"))
	p = w.until(p.Name, "refused", phase(corev1.PodFailed))
	if p.Status.Reason != "OutOfexample.com/gadget" {
		t.Errorf("the pod is %s", describe(p))
	}
	w.remove("lucky")
	w.gone("lucky")
	w.eventually("the gadget is free", func() bool { return d.has() == "" })
	w.create("n1", "unlucky", wants("1"))
	p = w.until("unlucky", "refused", phase(corev1.PodFailed))
	if p.Status.Reason != "UnexpectedAdmissionError" ||
		p.Status.Message != "Pod was rejected: Allocate failed due to no power, which is unexpected" {
		t.Errorf("the pod is %s", describe(p))
	}
	// Its place is free again.
	w.create("n1", "next", wants("1"))
	w.until("next", "running", running)
	w.remove("next")
	w.gone("next")
	w.eventually("the gadget is free", func() bool { return d.has() == "" })
	// One that was given to the pod before the kubelet started is not there yet: its plugin comes later.
	d.mu.Lock()
	d.holder, d.broken = "uid-early", true
	d.mu.Unlock()
	w.create("n1", "early", wants("1"))
	w.until("early", "running", running)
}

// TestDevicesOfAPodDeletedByForce: two pods never have one device, so the next one waits until the first
// has ended. It was refused, though the scheduler had counted right.
func TestDevicesOfAPodDeletedByForce(t *testing.T) {
	w := newWorld(t)
	w.start()
	d, e := &drawer{}, w.engine()
	w.node("n1", e, func(c *kubelet.Config) { c.Devices = d })
	hour := int64(3600)
	w.create("n1", "stubborn", wants("1"), sim("stop-time", "1h"), func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &hour })
	w.until("stubborn", "running", running)
	if err := w.client.CoreV1().Pods("default").Delete(t.Context(), "stubborn", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.create("n1", "next", wants("1"))
	w.eventually("the next pod has asked twice in vain", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.refused > 1
	})
	containers, err := e.ListContainers(t.Context())
	if err != nil || len(containers) != 1 {
		t.Fatalf("of containers there are %d (%v), expected that of the first pod", len(containers), err)
	}
	if err := e.StopContainer(t.Context(), containers[0].GetId(), 0); err != nil {
		t.Fatal(err)
	}
	if p := w.until("next", "decided", func(p *corev1.Pod) bool { return running(p) || failed(p) }); failed(p) {
		t.Errorf("the next pod is %s", describe(p))
	}
}

// gauge says how the device of every container is.
type gauge struct {
	mu      sync.Mutex
	health  corev1.ResourceHealthStatus
	of      []types.UID
	changed chan struct{}
}

func (g *gauge) Health(_ *corev1.Pod, container string) []corev1.ResourceStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	return []corev1.ResourceStatus{{Name: "claim:gpu", Resources: []corev1.ResourceHealth{{
		ResourceID: corev1.ResourceID("gpu-of-" + container), Health: g.health,
	}}}}
}

func (g *gauge) HealthChanged() <-chan struct{} { return g.changed }

func (g *gauge) Affected() []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.of
}

// TestTheStatusSaysHowDevicesAre: at first, and when that changes, without anything else that happens to the pod.
func TestTheStatusSaysHowDevicesAre(t *testing.T) {
	w := newWorld(t)
	w.start()
	g := &gauge{health: corev1.ResourceHealthStatusHealthy, of: []types.UID{"uid-web", "uid-nobody"}, changed: make(chan struct{}, 1)}
	w.node("n1", w.engine(), func(c *kubelet.Config) { c.Health = []kubelet.DeviceHealth{g} })
	w.create("n1", "web")
	is := func(want corev1.ResourceHealthStatus) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			return len(p.Status.ContainerStatuses) == 1 && len(p.Status.ContainerStatuses[0].AllocatedResourcesStatus) == 1 &&
				p.Status.ContainerStatuses[0].AllocatedResourcesStatus[0].Resources[0] == corev1.ResourceHealth{ResourceID: "gpu-of-web", Health: want}
		}
	}
	w.until("web", "running", running)
	w.until("web", "said to have a healthy device", is(corev1.ResourceHealthStatusHealthy))
	g.mu.Lock()
	g.health = corev1.ResourceHealthStatusUnhealthy
	g.mu.Unlock()
	g.changed <- struct{}{}
	w.until("web", "said to have an unhealthy device", is(corev1.ResourceHealthStatusUnhealthy))
}
