// SPDX-License-Identifier: Apache-2.0

// Package podbounds says what a pod as a whole is bounded to on its node, and what of that its
// containers inherit: the rules of KEP-2837, in pure functions. Who makes cgroups, writes statuses or
// plans a resize asks here, so that all of them mean the same.
package podbounds

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Resizable are the resources that may change while a pod runs.
var Resizable = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// Bounds of a pod's cgroup, its overhead counted in; CPU in thousandths, memory in bytes. 0 is none.
type Bounds struct{ CPU, CPULimit, Memory, MemoryLimit int64 }

// Of a pod is what it asks for as a whole (KEP-2837), else the sum of its containers. It has a limit
// if it says one, or if all its containers do.
func Of(p *corev1.Pod) Bounds {
	requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})
	for _, name := range Resizable {
		if !limited(p, name) {
			delete(limits, name)
		}
	}
	b := Bounds{
		CPU: requests.Cpu().MilliValue(), CPULimit: limits.Cpu().MilliValue(),
		Memory: requests.Memory().Value(), MemoryLimit: limits.Memory().Value(),
	}
	if _, ok := requests[corev1.ResourceCPU]; !ok {
		b.CPU = b.CPULimit
	}
	return b
}

func limited(p *corev1.Pod, name corev1.ResourceName) bool {
	if r := p.Spec.Resources; r != nil {
		if q := r.Limits[name]; !q.IsZero() {
			return true
		}
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if q := list[i].Resources.Limits[name]; q.IsZero() {
				return false
			}
		}
	}
	return true
}

// With is the larger of both in all: what a cgroup needs while a pod is on its way from one to the other.
func (b Bounds) With(c Bounds) Bounds {
	limit := func(x, y int64) int64 {
		if x == 0 || y == 0 {
			return 0
		}
		return max(x, y)
	}
	return Bounds{max(b.CPU, c.CPU), limit(b.CPULimit, c.CPULimit), max(b.Memory, c.Memory), limit(b.MemoryLimit, c.MemoryLimit)}
}

// Resources that the bounds are worth.
func (b Bounds) Resources() *corev1.ResourceRequirements {
	r := &corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for list, values := range map[*corev1.ResourceList][2]int64{&r.Requests: {b.CPU, b.Memory}, &r.Limits: {b.CPULimit, b.MemoryLimit}} {
		if values[0] > 0 {
			(*list)[corev1.ResourceCPU] = *resource.NewMilliQuantity(values[0], resource.DecimalSI)
		}
		if values[1] > 0 {
			(*list)[corev1.ResourceMemory] = *resource.NewQuantity(values[1], resource.BinarySI)
		}
	}
	return r
}

// Bounded is the pod with these bounds and no others, for who makes its cgroup.
func (b Bounds) Bounded(p *corev1.Pod) *corev1.Pod {
	q := p.DeepCopy()
	q.Spec.Overhead, q.Spec.Resources = nil, b.Resources()
	for _, list := range [][]corev1.Container{q.Spec.InitContainers, q.Spec.Containers} {
		for i := range list {
			list[i].Resources = corev1.ResourceRequirements{}
		}
	}
	return q
}

// Inherit is what a container with own resources is bounded to in a pod that has level as a whole:
// a limit that it has not is its pod's.
func Inherit(own, level *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	if level == nil || own == nil {
		return own
	}
	var out *corev1.ResourceRequirements
	for name, q := range level.Limits {
		have := own.Limits[name]
		known := name == corev1.ResourceCPU || name == corev1.ResourceMemory || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if !known || q.IsZero() || !have.IsZero() {
			continue
		}
		if out == nil {
			out = own.DeepCopy()
			if out.Limits == nil {
				out.Limits = corev1.ResourceList{}
			}
		}
		out.Limits[name] = q
	}
	if out == nil {
		return own
	}
	return out
}

// Same tells whether both have the same of what may change; nil is nothing.
func Same(a, b *corev1.ResourceRequirements) bool {
	for _, name := range Resizable {
		if Differ(a, b, name) {
			return false
		}
	}
	return true
}

// Differ tells whether both have not the same of one resource.
func Differ(a, b *corev1.ResourceRequirements, name corev1.ResourceName) bool {
	none := &corev1.ResourceRequirements{}
	if a == nil {
		a = none
	}
	if b == nil {
		b = none
	}
	x, y := a.Requests[name], b.Requests[name]
	v, w := a.Limits[name], b.Limits[name]
	return x.Cmp(y) != 0 || v.Cmp(w) != 0
}
