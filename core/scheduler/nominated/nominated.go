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
	// expected are the nodes of which it is written to pods that they are about to be bound there: those have
	// their room, and nothing is promised to them.
	expected map[types.UID]string
}

// promise is a pod with the node that it was promised.
type promise struct {
	info    *framework.PodInfo
	node    string
	foreign bool // the API says so, and another component does
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
	n.pods[p.Pod.UID] = promise{info: p, node: node}
}

// Drop returns the node that the pod was promised; "" where there was none.
func (n *Nominations) Drop(uid types.UID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	node := n.pods[uid].node
	delete(n.pods, uid)
	delete(n.expected, uid)
	return node
}

// Expect says that it is written to a pod where it is about to be bound.
func (n *Nominations) Expect(uid types.UID, node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.expected == nil {
		n.expected = map[types.UID]string{}
	}
	n.expected[uid] = node
}

// Heard takes on what the API says of a pod's nomination: before, "" for a pod that is new, and now. What another component
// has nominated holds like a promise of our own, but not against one. It returns the node whose room is
// anybody's again; "" = none.
func (n *Nominations) Heard(p *corev1.Pod, before, now string) (free string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	was, promised := n.pods[p.UID]
	switch {
	case before == now || promised && !was.foreign || now != "" && n.expected[p.UID] == now:
		return ""
	case now == "":
		delete(n.pods, p.UID)
		delete(n.expected, p.UID)
		return was.node
	}
	if n.pods == nil {
		n.pods = map[types.UID]promise{}
	}
	n.pods[p.UID] = promise{framework.NewPodInfo(p), now, true}
	return was.node
}

// Own says whether this scheduler has promised the pod a node.
func (n *Nominations) Own(uid types.UID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, ok := n.pods[uid]
	return ok && !p.foreign
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
