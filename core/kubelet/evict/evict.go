// SPDX-License-Identifier: Apache-2.0

// Package evict chooses which pod is to go when a node runs short: purely, from
// what each uses, asked for, and is worth. Those go first that use more than they
// asked for; among equals those of lower priority, then those furthest beyond
// what they asked for. Pods that the node cannot do without never go.
package evict

import (
	"fmt"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/static"
)

// Reason of an eviction, in the pod's status.
const Reason = "Evicted"

// systemCritical is the priority from which a pod is never evicted.
const systemCritical = 2_000_000_000

// Usage of one pod.
type Usage struct {
	Pod *corev1.Pod
	// Containers use so much of the resource, by name.
	Containers map[string]int64
	// Shared is what the pod uses beside that: its volumes on the node's disk, or its processes, which are not
	// counted by container.
	Shared int64
}

func (u *Usage) total() int64 {
	n := u.Shared
	for _, v := range u.Containers {
		n += v
	}
	return n
}

// Choice is the pod that goes, and why.
type Choice struct {
	Pod     *corev1.Pod
	Message string
}

// worthwhile is the least that a pod gives back of what the node is short of: a disk that others filled does not get emptier
// by the end of all pods that hold next to nothing.
var worthwhile = map[corev1.ResourceName]int64{corev1.ResourceEphemeralStorage: 1 << 20, node.Inodes: 100}

// Choose the pod that goes; nil if none may, or none would help.
func Choose(s node.Short, pods []Usage) *Choice {
	var may []Usage
	for _, u := range pods {
		if !Critical(u.Pod) && u.total() >= worthwhile[s.Resource] {
			may = append(may, u)
		}
	}
	if len(may) == 0 {
		return nil
	}
	sort.SliceStable(may, func(i, j int) bool { return before(&may[i], &may[j], s.Resource) })
	return &Choice{Pod: may[0].Pod, Message: message(s, &may[0])}
}

// Critical tells the pods that are never evicted: those of files, and of the highest priorities.
func Critical(p *corev1.Pod) bool {
	return static.Is(p) || p.Spec.Priority != nil && *p.Spec.Priority >= systemCritical
}

func request(p *corev1.Pod, name corev1.ResourceName) int64 {
	q := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})[name]
	return q.Value()
}

func before(a, b *Usage, name corev1.ResourceName) bool {
	overA, overB := a.total()-request(a.Pod, name), b.total()-request(b.Pod, name)
	if (overA > 0) != (overB > 0) {
		return overA > 0
	}
	if x, y := priority(a.Pod), priority(b.Pod); x != y {
		return x < y
	}
	if overA != overB {
		return overA > overB
	}
	return a.Pod.UID < b.Pod.UID
}

func priority(p *corev1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// message in upstream's words.
func message(s node.Short, u *Usage) string {
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %v. Threshold quantity: %s, available: %s. ", s.Resource, s.Threshold.String(),
		s.Available.String())
	for i := range u.Pod.Spec.Containers {
		c := &u.Pod.Spec.Containers[i]
		used, ask := u.Containers[c.Name], c.Resources.Requests[s.Resource]
		if used > ask.Value() {
			fmt.Fprintf(&b, "Container %s was using %s, request is %s, has larger consumption of %v. ",
				c.Name, resource.NewQuantity(used, s.Available.Format), ask.String(), s.Resource)
		}
	}
	switch {
	case u.Shared == 0:
	case s.Resource == node.PIDs:
		fmt.Fprintf(&b, "It had %d processes. ", u.Shared)
	default:
		fmt.Fprintf(&b, "Its emptyDir volumes were using %s. ", resource.NewQuantity(u.Shared, s.Available.Format))
	}
	return b.String()
}
