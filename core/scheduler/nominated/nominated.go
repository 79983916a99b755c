// SPDX-License-Identifier: Apache-2.0

// Package nominated knows which pods wait for room on a node that was promised to them.
package nominated

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Nominations are the pods that wait for room on a node which was promised to
// them, because others are being removed from it. Pods of lower priority must not
// take that room. It is safe for concurrent use.
type Nominations struct {
	mu   sync.Mutex
	pods map[types.UID]promise
}

// promise is a pod with the node that it was promised.
type promise struct {
	info *framework.PodInfo
	node string
}

// Set records what a pod is promised; "" takes it back.
func (n *Nominations) Set(p *framework.PodInfo, node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pods == nil {
		n.pods = map[types.UID]promise{}
	}
	if node == "" {
		delete(n.pods, p.Pod.UID)
		return
	}
	n.pods[p.Pod.UID] = promise{p, node}
}

// Drop returns the node that the pod was promised; "" where there was none.
func (n *Nominations) Drop(uid types.UID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	node := n.pods[uid].node
	delete(n.pods, uid)
	return node
}

// Of is the node that a pod was promised; "" where there is none.
func (n *Nominations) Of(uid types.UID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pods[uid].node
}

// Ahead lists, by node, the nominated pods whose room a pod may not take: those of
// its own priority or a higher one.
func (n *Nominations) Ahead(p *corev1.Pod) map[string][]*framework.PodInfo {
	return n.list(func(other *corev1.Pod) bool {
		return other.UID != p.UID && corev1helpers.PodPriority(other) >= corev1helpers.PodPriority(p)
	})
}

// Others lists all nominated pods by node, but for this one.
func (n *Nominations) Others(uid types.UID) map[string][]*framework.PodInfo {
	return n.list(func(other *corev1.Pod) bool { return other.UID != uid })
}

func (n *Nominations) list(which func(*corev1.Pod) bool) map[string][]*framework.PodInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out map[string][]*framework.PodInfo
	for _, other := range n.pods {
		if !which(other.info.Pod) {
			continue
		}
		if out == nil {
			out = map[string][]*framework.PodInfo{}
		}
		out[other.node] = append(out[other.node], other.info)
	}
	// Not in the map's order: a decision that is made again meets them in the same one.
	for _, infos := range out {
		slices.SortFunc(infos, func(a, b *framework.PodInfo) int { return cmp.Compare(a.Pod.UID, b.Pod.UID) })
	}
	return out
}

// Behind lists the pods nominated to a node whose priority is lower.
func (n *Nominations) Behind(node string, priority int32) []*corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*corev1.Pod
	for _, other := range n.pods {
		if other.node == node && corev1helpers.PodPriority(other.info.Pod) < priority {
			out = append(out, other.info.Pod)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.Pod) int { return cmp.Compare(a.UID, b.UID) })
	return out
}

// Clone copies what is promised now.
func (n *Nominations) Clone() *Nominations {
	n.mu.Lock()
	defer n.mu.Unlock()
	return &Nominations{pods: maps.Clone(n.pods)}
}
