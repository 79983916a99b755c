// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/evict"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// population is the node's pods, as its upkeep sees them.
type population struct{ *Kubelet }

// all workers there are.
func (k *Kubelet) all() []*worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make([]*worker, 0, len(k.workers))
	for _, w := range k.workers {
		out = append(out, w)
	}
	return out
}

// that are the pods which is chooses, by whether they have ended, and whether they are over: they have no volumes either.
func (k *Kubelet) that(is func(p *corev1.Pod, ended, over bool) bool) (out []*corev1.Pod) {
	for _, w := range k.all() {
		if p, ended, over := w.occupant(); is(p, ended, over) {
			out = append(out, p)
		}
	}
	return out
}

// Running implements upkeep.Pods.
func (k population) Running() []*corev1.Pod {
	return k.that(func(p *corev1.Pod, ended, _ bool) bool { return !ended && p.DeletionTimestamp == nil })
}

// Ended implements upkeep.Pods.
func (k population) Ended() []*corev1.Pod {
	return k.that(func(p *corev1.Pod, ended, _ bool) bool { return ended && p.DeletionTimestamp == nil })
}

// Remaining implements shutdown.Pods.
func (k *Kubelet) Remaining() []*corev1.Pod {
	return k.that(func(_ *corev1.Pod, _, over bool) bool { return !over })
}

// Terminate implements shutdown.Pods.
func (k *Kubelet) Terminate(uid types.UID, reason, message string, grace int64) {
	if w := k.worker(uid); w != nil {
		w.beginEviction()
		w.send(pod.Evicted{Reason: reason, Message: message, Grace: &grace})
	}
}

// Logs implements upkeep.Pods.
func (k population) Logs() map[string]string {
	out := map[string]string{}
	for _, w := range k.all() {
		maps.Copy(out, w.logFiles())
	}
	return out
}

// Evicting implements upkeep.Pods.
func (k population) Evicting() bool { return slices.ContainsFunc(k.all(), (*worker).givesBack) }

// ending reports whether a pod that was to end for another has not ended yet.
func (k population) ending() bool { return slices.ContainsFunc(k.all(), (*worker).evicting) }

// Evict implements upkeep.Pods.
func (k population) Evict(uid types.UID, message string, grace int64) bool {
	return k.end(uid, evict.Reason, message, &grace)
}

// end a pod that another needs the place of, or the node; grace is its own if nil. It reports whether the pod ends for this.
func (k population) end(uid types.UID, reason, message string, grace *int64) bool {
	w := k.worker(uid)
	if w == nil {
		return false
	}
	p, first := w.beginEviction()
	if !first || p.DeletionTimestamp != nil {
		return false
	}
	k.Event(p, "", corev1.EventTypeWarning, reason, message)
	w.send(pod.Evicted{Reason: reason, Message: message, Grace: grace, Empty: reason == evict.Reason})
	return true
}
