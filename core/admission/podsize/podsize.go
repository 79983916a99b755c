// SPDX-License-Identifier: Apache-2.0

// Package podsize is the PodSizeLimits plugin: it bounds of how many parts a pod is made.
//
// A pod's parts cost more than its bytes: the scheduler compares each term with every node, and with the terms of every other
// pod; the node pulls, starts, reports and measures each container. The API takes pods of up to 1.5 MB, in which there is room
// for 10,000 containers or 5,000 terms: a few such pods kept everybody else's waiting for minutes. The limits are far above what
// pods need. They are on pods, whoever makes them, and not on templates: a controller reports what it could not create.
package podsize

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
)

// Name of the plugin.
const Name = "PodSizeLimits"

// limits by what they count, in the order in which they are looked at.
var limits = []struct {
	what  string
	most  int
	count func(*corev1.PodSpec) int
}{
	{"containers, with init and ephemeral ones", 250, containers},
	{"volumes, with the sources of projected ones", 1000, volumes},
	{"ports", 5000, ports},
	{"kinds of resources, counted in each container", 1000, resources},
	{"resource claims", 250, func(s *corev1.PodSpec) int { return len(s.ResourceClaims) }},
	{"image pull secrets", 100, func(s *corev1.PodSpec) int { return len(s.ImagePullSecrets) }},
	{"labels of its node selector", 500, func(s *corev1.PodSpec) int { return len(s.NodeSelector) }},
	{"tolerations", 500, func(s *corev1.PodSpec) int { return len(s.Tolerations) }},
	{"terms of affinity and anti-affinity", 500, func(s *corev1.PodSpec) int { n, _ := terms(s); return n }},
	{"requirements in the terms of affinity and anti-affinity", 5000, func(s *corev1.PodSpec) int { _, n := terms(s); return n }},
	{"topology spread constraints", 50, func(s *corev1.PodSpec) int { return len(s.TopologySpreadConstraints) }},
}

// Plugin is the PodSizeLimits plugin.
type Plugin struct{}

// Name is the plugin's, in the configuration too.
func (Plugin) Name() string { return Name }

// Handles takes pods, and their subresources by which they grow.
func (Plugin) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "", admission.Create, admission.Update).Handles(r) ||
		reading.On("", "pods", "ephemeralcontainers", admission.Update).Handles(r) ||
		reading.On("", "pods", "resize", admission.Update).Handles(r)
}

// Validate refuses a pod with more parts than a limit, unless it had as many before.
func (Plugin) Validate(_ context.Context, r *admission.Request) error {
	pod, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	var old *corev1.Pod
	for _, l := range limits {
		n := l.count(&pod.Spec)
		if n <= l.most {
			continue
		}
		if old == nil && r.OldObject != nil {
			if old, err = reading.Typed[*corev1.Pod](r.OldObject); err != nil {
				return err
			}
		}
		if old != nil && l.count(&old.Spec) >= n {
			continue
		}
		return admission.Forbidden(r, fmt.Errorf("the pod has %d %s; %s allows %d", n, l.what, Name, l.most))
	}
	return nil
}

func containers(s *corev1.PodSpec) int {
	return len(s.InitContainers) + len(s.Containers) + len(s.EphemeralContainers)
}

func volumes(s *corev1.PodSpec) int {
	n := len(s.Volumes)
	for i := range s.Volumes {
		if p := s.Volumes[i].Projected; p != nil {
			n += len(p.Sources)
		}
	}
	return n
}

func ports(s *corev1.PodSpec) (n int) {
	for i := range s.InitContainers {
		n += len(s.InitContainers[i].Ports)
	}
	for i := range s.Containers {
		n += len(s.Containers[i].Ports)
	}
	return n
}

func resources(s *corev1.PodSpec) (n int) {
	one := func(r *corev1.ResourceRequirements) { n += max(len(r.Requests), len(r.Limits)) }
	for i := range s.InitContainers {
		one(&s.InitContainers[i].Resources)
	}
	for i := range s.Containers {
		one(&s.Containers[i].Resources)
	}
	if s.Resources != nil {
		one(s.Resources)
	}
	return n + len(s.Overhead)
}

// terms counts the terms of all kinds of affinity, and the requirements in them.
func terms(s *corev1.PodSpec) (n, requirements int) {
	a := s.Affinity
	if a == nil {
		return 0, 0
	}
	if a.NodeAffinity != nil {
		n, requirements = nodeTerms(a.NodeAffinity)
	}
	var all []corev1.PodAffinityTerm
	weighted := func(list []corev1.WeightedPodAffinityTerm) {
		for i := range list {
			all = append(all, list[i].PodAffinityTerm)
		}
	}
	if p := a.PodAffinity; p != nil {
		all = append(all, p.RequiredDuringSchedulingIgnoredDuringExecution...)
		weighted(p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if p := a.PodAntiAffinity; p != nil {
		all = append(all, p.RequiredDuringSchedulingIgnoredDuringExecution...)
		weighted(p.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	for i := range all {
		requirements += len(all[i].Namespaces) + len(all[i].MatchLabelKeys) + len(all[i].MismatchLabelKeys)
		if sel := all[i].LabelSelector; sel != nil {
			requirements += len(sel.MatchLabels) + len(sel.MatchExpressions)
		}
		if sel := all[i].NamespaceSelector; sel != nil {
			requirements += len(sel.MatchLabels) + len(sel.MatchExpressions)
		}
	}
	return n + len(all), requirements
}

func nodeTerms(a *corev1.NodeAffinity) (n, requirements int) {
	one := func(t *corev1.NodeSelectorTerm) {
		n++
		requirements += len(t.MatchExpressions) + len(t.MatchFields)
	}
	if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
		for i := range r.NodeSelectorTerms {
			one(&r.NodeSelectorTerms[i])
		}
	}
	for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		one(&a.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference)
	}
	return n, requirements
}
