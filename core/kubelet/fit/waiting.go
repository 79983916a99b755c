// SPDX-License-Identifier: Apache-2.0

package fit

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/wasmplane/wasmplane/core/kubelet/status"
)

// waiter is a pod that asks for more than the node had.
type waiter struct {
	pod   *corev1.Pod
	since time.Time
}

// Resize changes the place of a pod that asks for other resources, if the node has them, and does not have to keep them for
// pods that wait and come first. A pod that is refused waits.
func (r *Room) Resize(p *corev1.Pod, node *corev1.Node) Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.grows(p) {
		delete(r.waiting, p.UID)
		return r.take(p, node)
	}
	w, ok := r.waiting[p.UID]
	if !ok {
		w.since = asksSince(p)
	}
	w.pod = p
	had := map[types.UID]*corev1.Pod{}
	for _, first := range r.before(w) {
		old := r.admitted[first.pod.UID]
		if v := r.take(first.pod, node); !v.Refused {
			had[first.pod.UID] = old
		}
	}
	v := r.take(p, node)
	for uid, old := range had { // they get it when they ask themselves
		r.admitted[uid] = old
	}
	delete(r.waiting, p.UID)
	if v.Refused && p.DeletionTimestamp == nil {
		r.waiting[p.UID] = w
	}
	return v
}

// Changed takes note of what a pod asks for by now: nothing is kept for one that no longer waits.
func (r *Room) Changed(p *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, ok := r.waiting[p.UID]
	if !ok {
		return
	}
	if p.DeletionTimestamp != nil || !r.grows(p) {
		delete(r.waiting, p.UID)
		return
	}
	w.pod = p
	r.waiting[p.UID] = w
}

// GiveUp keeps nothing for a pod that asks for more than the node could ever give.
func (r *Room) GiveUp(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, uid)
}

// take gives a pod a place for what it asks for, if there is one. Lock held.
func (r *Room) take(p *corev1.Pod, node *corev1.Node) Verdict {
	v := r.fits(p, node)
	if !v.Refused {
		r.admitted[p.UID] = p
	}
	return v
}

// grows says whether a pod asks for more of anything than its place has. Lock held.
func (r *Room) grows(p *corev1.Pod) bool {
	place := r.admitted[p.UID]
	if place == nil {
		return true
	}
	has := resourcehelper.PodRequests(place, resourcehelper.PodResourcesOptions{})
	for name, q := range resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{}) {
		if q.Cmp(has[name]) > 0 {
			return true
		}
	}
	return false
}

// before are those that wait and come before w, in upstream's order: by priority, then those of class Guaranteed, then who has
// waited longest. Lock held.
func (r *Room) before(w waiter) []waiter {
	order := func(a, b waiter) int {
		return cmp.Or(cmp.Compare(priority(b.pod), priority(a.pod)), cmp.Compare(class(a.pod), class(b.pod)), a.since.Compare(b.since),
			strings.Compare(string(a.pod.UID), string(b.pod.UID)))
	}
	var first []waiter
	for _, other := range r.waiting {
		if other.pod.UID != w.pod.UID && order(other, w) < 0 {
			first = append(first, other)
		}
	}
	slices.SortFunc(first, order)
	return first
}

func priority(p *corev1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

func class(p *corev1.Pod) int {
	if status.QOS(p) == corev1.PodQOSGuaranteed {
		return 0
	}
	return 1
}

// asksSince is when a pod was refused for the first time, as its status has it: it may have been by a process before this one.
func asksSince(p *corev1.Pod) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonDeferred {
			return c.LastTransitionTime.Time
		}
	}
	return time.Now()
}
