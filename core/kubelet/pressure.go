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

// Running implements upkeep.Pods.
func (k population) Running() (out []*corev1.Pod) {
	for _, w := range k.all() {
		if p, ended := w.occupant(); !ended && p.DeletionTimestamp == nil {
			out = append(out, p)
		}
	}
	return out
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
func (k population) Evict(uid types.UID, message string) bool {
	grace := int64(1)
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
	k.event(p, "", corev1.EventTypeWarning, reason, message)
	w.send(pod.Evicted{Reason: reason, Message: message, Grace: grace, Empty: reason == evict.Reason})
	return true
}
