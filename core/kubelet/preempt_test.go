// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestACriticalPodHasItsPlace: others go for it, no more of them than have to, and none for a
// pod that is not critical, or where the end of all would not do. A simulated node has 8 CPUs.
func TestACriticalPodHasItsPlace(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.node("n1", w.engine())
	asks := func(cpus string, priority int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Priority = &priority
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpus)}
		}
	}
	const critical = 2_000_000_000
	w.create("n1", "large", asks("5", 0))
	w.create("n1", "small", asks("3", 0))
	w.until("large", "running", running)
	w.until("small", "running", running)
	for name, want := range map[string]func(*corev1.Pod){"plain": asks("2", critical-1), "too-large": asks("9", critical)} {
		w.create("n1", name, want)
		if p := w.until(name, "refused", failed); p.Status.Reason != "OutOfcpu" {
			t.Errorf("%s is %s", name, describe(p))
		}
	}
	w.create("n1", "critical", asks("2", critical))
	w.until("critical", "running", running)
	p := w.until("small", "preempted", failed)
	if p.Status.Reason != "Preempting" || p.Status.Message != "Preempted in order to admit critical pod" {
		t.Errorf("small is %s", describe(p))
	}
	if w.until("large", "running", running).Status.Phase != corev1.PodRunning {
		t.Error("the other pod went, too")
	}
	// One critical pod does not go for another.
	w.create("n1", "second", asks("7", critical))
	if p := w.until("second", "refused", failed); p.Status.Reason != "OutOfcpu" {
		t.Errorf("second is %s", describe(p))
	}
}

func failed(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed }
