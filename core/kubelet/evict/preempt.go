// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Preempting is the reason of a pod that goes for a critical one, in its status and its event.
const (
	Preempting        = "Preempting"
	PreemptingMessage = "Preempted in order to admit critical pod"
)

// Lack is how much of which resources a pod finds missing, in the resource's smallest unit
// that counts (thousandths of CPUs).
type Lack map[corev1.ResourceName]int64

// less is what is missing still without some pods.
func (l Lack) less(without []*corev1.Pod) Lack {
	out := Lack{}
	for name, missing := range l {
		for _, p := range without {
			missing -= amount(p, name)
		}
		if missing > 0 {
			out[name] = missing
		}
	}
	return out
}

// amount of a resource that a pod's end gives back.
func amount(p *corev1.Pod, name corev1.ResourceName) int64 {
	if name == corev1.ResourcePods {
		return 1
	}
	q := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})[name]
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// Preempt chooses the pods that go so that a critical one has its place, by upstream's rule:
// as few of the better classes of service as will do, and of one class those whose requests come
// closest to what is missing. An error says that the end of all that may go would not do.
func Preempt(critical *corev1.Pod, running []*corev1.Pod, missing Lack, class func(*corev1.Pod) corev1.PodQOSClass) ([]*corev1.Pod, error) {
	by := map[corev1.PodQOSClass][]*corev1.Pod{}
	var all []*corev1.Pod
	for _, p := range running {
		if p.UID != critical.UID && preemptable(critical, p) {
			by[class(p)] = append(by[class(p)], p)
			all = append(all, p)
		}
	}
	if left := missing.less(all); len(left) > 0 {
		return nil, fmt.Errorf("preemption: no set of running pods found to reclaim resources: %v", left)
	}
	bestEffort, burstable := by[corev1.PodQOSBestEffort], by[corev1.PodQOSBurstable]
	guaranteed := closest(by[corev1.PodQOSGuaranteed], missing.less(slices.Concat(bestEffort, burstable)))
	burstable = closest(burstable, missing.less(slices.Concat(bestEffort, guaranteed)))
	bestEffort = closest(bestEffort, missing.less(slices.Concat(burstable, guaranteed)))
	return slices.Concat(bestEffort, burstable, guaranteed), nil
}

// preemptable are pods that are not critical, and those of lower priority.
func preemptable(critical, p *corev1.Pod) bool {
	return !Critical(p) || critical.Spec.Priority != nil && p.Spec.Priority != nil && *critical.Spec.Priority > *p.Spec.Priority
}

// closest takes pods, one after another, until nothing is missing.
func closest(from []*corev1.Pod, missing Lack) (out []*corev1.Pod) {
	from = slices.Clone(from)
	for len(missing) > 0 && len(from) > 0 {
		slices.SortStableFunc(from, func(a, b *corev1.Pod) int {
			x, y := distance(a, missing), distance(b, missing)
			switch {
			case x < y, x == y && smaller(a, b):
				return -1
			case x > y, smaller(b, a):
				return 1
			}
			return 0
		})
		out, from = append(out, from[0]), from[1:]
		missing = missing.less(out[len(out)-1:])
	}
	return out
}

// distance between what is missing and what a pod gives back: 0 where that is enough.
func distance(p *corev1.Pod, missing Lack) (sum float64) {
	for name, n := range missing {
		if left := float64(n - amount(p, name)); left > 0 {
			sum += (left / float64(n)) * (left / float64(n))
		}
	}
	return sum
}

// smaller of two pods by the memory, then the CPUs, that they ask for.
func smaller(a, b *corev1.Pod) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceCPU} {
		if x, y := amount(a, name), amount(b, name); x != y {
			return x < y
		}
	}
	return false
}
