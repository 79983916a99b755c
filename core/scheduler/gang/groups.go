// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// Key names a group.
type Key = types.NamespacedName

// KeyOf is the group that a pod belongs to.
func KeyOf(p *corev1.Pod) (Key, bool) {
	if g := p.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		return Key{Namespace: p.Namespace, Name: *g.PodGroupName}, true
	}
	return Key{}, false
}

// Groups knows which pods belong together. It is safe for concurrent use; nil is one
// without any group.
type Groups struct {
	mu     sync.Mutex
	groups map[Key]*schedulingv1beta1.PodGroup
	pods   map[Key]map[types.UID]*corev1.Pod
	fresh  map[Key]bool // groups of which the pods that wait do not know yet
}

// NewGroups makes an empty one.
func NewGroups() *Groups {
	return &Groups{groups: map[Key]*schedulingv1beta1.PodGroup{}, pods: map[Key]map[types.UID]*corev1.Pod{}, fresh: map[Key]bool{}}
}

// SetGroup adds a group or changes it; it says whether pods that wait for it may be helped.
func (g *Groups) SetGroup(now *schedulingv1beta1.PodGroup) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := Key{Namespace: now.Namespace, Name: now.Name}
	old := g.groups[key]
	g.groups[key] = now
	changed := old == nil || !equality.Semantic.DeepEqual(old.Spec, now.Spec) // a PodGroup has no generation
	g.fresh[key] = g.fresh[key] || changed
	return changed
}

// RemoveGroup forgets a group. Its pods stay known.
func (g *Groups) RemoveGroup(gone *schedulingv1beta1.PodGroup) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := Key{Namespace: gone.Namespace, Name: gone.Name}
	delete(g.groups, key)
	delete(g.fresh, key)
}

// SetPod is told of a pod that may have or get a node.
func (g *Groups) SetPod(p *corev1.Pod) {
	key, member := KeyOf(p)
	if g == nil || !member {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pods[key] == nil {
		g.pods[key] = map[types.UID]*corev1.Pod{}
	}
	g.pods[key][p.UID] = p
}

// RemovePod is told of a pod that will not get a node, or has ended.
func (g *Groups) RemovePod(p *corev1.Pod) {
	key, member := KeyOf(p)
	if g == nil || !member {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if delete(g.pods[key], p.UID); len(g.pods[key]) == 0 {
		delete(g.pods, key)
	}
}

// Group is a PodGroup with its pods.
type Group struct {
	Key
	Object *schedulingv1beta1.PodGroup // nil = there is none, although pods name it
	Pods   []*corev1.Pod               // the oldest first
	// Count of the pods. Where there are fewer than the group needs, Pods are left out, but for the
	// first time after the group has changed: what they wait for is said once, not at each that comes.
	Count int
}

// Of is the group that a pod belongs to, if its pods are decided together; else nil.
func (g *Groups) Of(p *corev1.Pod) *Group {
	key, member := KeyOf(p)
	if g == nil || !member {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	group := &Group{Key: key, Object: g.groups[key], Count: len(g.pods[key])}
	if group.Object == nil {
		return group
	}
	if group.Object.Spec.SchedulingPolicy.Gang == nil && group.Topology() == "" {
		return nil // each of them for itself
	}
	if group.Count >= group.Need() || g.fresh[key] {
		delete(g.fresh, key)
		group.Pods = g.list(key)
	}
	return group
}

func (g *Groups) list(key Key) []*corev1.Pod {
	pods := make([]*corev1.Pod, 0, len(g.pods[key]))
	for _, p := range g.pods[key] {
		pods = append(pods, p)
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	return pods
}

// together says whether the pods of a group are removed together or not at all.
func (g *Groups) together(key Key) bool {
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	object := g.groups[key]
	return object != nil && object.Spec.DisruptionMode != nil && object.Spec.DisruptionMode.All != nil
}

// Whole says whether the pods of a pod's group make room together or not at all where what they hold is
// reclaimed: a gang is of no use without one of its pods.
func (g *Groups) Whole(p *corev1.Pod) bool {
	key, member := KeyOf(p)
	if g == nil || !member {
		return false
	}
	if g.together(key) {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	object := g.groups[key]
	return object != nil && object.Spec.SchedulingPolicy.Gang != nil
}

// WithIt lists the other pods of a pod's group that have to go when it is removed to make
// room; nil where they may stay.
func (g *Groups) WithIt(p *corev1.Pod) []*corev1.Pod {
	key, member := KeyOf(p)
	if g == nil || !member {
		return nil
	}
	if !g.together(key) {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.DeleteFunc(g.list(key), func(o *corev1.Pod) bool { return o.UID == p.UID || o.Spec.NodeName == "" })
}

// Need is how many pods the group needs at least.
func (g *Group) Need() int {
	if gang := g.Object.Spec.SchedulingPolicy.Gang; gang != nil {
		return int(gang.MinCount)
	}
	return 1
}

// GroupPriority is the priority of a group's pods.
func GroupPriority(g *schedulingv1beta1.PodGroup) int32 {
	if g.Spec.Priority != nil {
		return *g.Spec.Priority
	}
	return 0
}

// Topology is the label whose value the nodes of the group's pods have in common.
func (g *Group) Topology() string {
	if c := g.Object.Spec.SchedulingConstraints; c != nil && len(c.Topology) > 0 {
		return c.Topology[0].Key
	}
	return ""
}

// Waiting are the pods that have no node.
func Waiting(pods []*corev1.Pod) (uids []types.UID) {
	for _, p := range pods {
		if p.Spec.NodeName == "" {
			uids = append(uids, p.UID)
		}
	}
	return uids
}

// Each is why a single pod waits, where the group waits for that. How many pods there are is the
// group's to say: it changes with each that comes.
func (g *Group) Each(why string) string {
	if g.Object != nil && g.Count < g.Need() {
		return fmt.Sprintf("waiting for all of the %d pods that its gang needs", g.Need())
	}
	return why
}
