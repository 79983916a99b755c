// SPDX-License-Identifier: Apache-2.0

// Package nodecache keeps the scheduler's picture of the cluster: nodes with the
// pods that run on them or are about to. A snapshot costs a copy of one slice of
// pointers, and nothing where nothing has changed.
package nodecache

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Cache is the picture. It is safe for concurrent use.
type Cache struct {
	mu    sync.Mutex
	nodes map[string]*framework.NodeInfo
	// strays are nodes that pods name but that we have not been told of (yet).
	strays map[string]*framework.NodeInfo
	pods   map[types.UID]*entry
	images map[string]int // on how many nodes each is
	lent   bool           // the last snapshot has images: it is copied before it changes

	generation      int64
	nodesGeneration int64
	last            *framework.Snapshot
	dirty           map[string]bool // nodes changed since last
	memo            *framework.Memo // what plugins keep between snapshots
}

type entry struct {
	info    *framework.PodInfo
	node    string
	assumed bool
}

// New makes an empty cache.
func New() *Cache {
	return &Cache{
		nodes: map[string]*framework.NodeInfo{}, strays: map[string]*framework.NodeInfo{},
		pods: map[types.UID]*entry{}, images: map[string]int{}, dirty: map[string]bool{},
		memo: framework.NewMemo(),
	}
}

// Size is how many nodes and pods there are, those included whose binding is on its way.
func (c *Cache) Size() (nodes, pods int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.nodes), len(c.pods)
}

// SetNode adds or changes a node, and says what that means for waiting pods.
func (c *Cache) SetNode(n *corev1.Node) framework.ClusterEvent {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, known := c.nodes[n.Name]
	if !known {
		info := framework.NewNodeInfo(n)
		if stray, ok := c.strays[n.Name]; ok {
			info = stray.WithNode(n)
			delete(c.strays, n.Name)
		}
		c.countImages(nil, info)
		c.nodesGeneration++
		c.put(n.Name, info)
		return framework.NodeAdded
	}
	info := old.WithNode(n)
	c.countImages(old, info)
	c.put(n.Name, info)
	return changes(old, info)
}

func changes(old, now *framework.NodeInfo) framework.ClusterEvent {
	var e framework.ClusterEvent
	a, b := old.Allocatable, now.Allocatable
	if b.MilliCPU > a.MilliCPU || b.Memory > a.Memory || b.Pods > a.Pods || b.EphemeralStorage > a.EphemeralStorage || !maps.Equal(a.Scalar,
		b.Scalar) {
		e |= framework.NodeAllocatableGrew
	}
	if !maps.Equal(old.Node.Labels, now.Node.Labels) {
		e |= framework.NodeLabelsChanged
	}
	if old.Node.Spec.Unschedulable != now.Node.Spec.Unschedulable || !slices.EqualFunc(old.Node.Spec.Taints, now.Node.Spec.Taints, sameTaint) {
		e |= framework.NodeTaintsChanged
	}
	if !slices.Equal(old.Node.Status.DeclaredFeatures, now.Node.Status.DeclaredFeatures) {
		e |= framework.NodeFeaturesChanged
	}
	return e
}

func sameTaint(a, b corev1.Taint) bool {
	return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect
}

// RemoveNode forgets a node, and says what that means for waiting pods. Its pods stay known, in case it comes
// back, but no snapshot has them any more.
func (c *Cache) RemoveNode(name string) framework.ClusterEvent {
	c.mu.Lock()
	defer c.mu.Unlock()
	info, ok := c.nodes[name]
	if !ok {
		return 0
	}
	e := framework.NodeRemoved
	c.countImages(info, nil)
	delete(c.nodes, name)
	if len(info.Pods) > 0 {
		c.strays[name] = info
		e |= framework.PodRemoved
	}
	c.nodesGeneration++
	c.generation++
	c.last = nil
	return e
}

// SetPod records a bound pod as the API has it; it confirms an assumed one.
func (c *Cache) SetPod(p *corev1.Pod) (e framework.ClusterEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var info *framework.PodInfo
	if was, known := c.pods[p.UID]; known {
		info = was.info.Changed(p)
		if was.info.Requests.ShrinksTo(&info.Requests) {
			e = framework.PodShrank
		}
	} else {
		info = framework.NewPodInfo(p)
	}
	c.drop(p.UID)
	c.add(&entry{info: info, node: p.Spec.NodeName})
	return e
}

// Node is a node as it is now; nil where there is none of that name.
func (c *Cache) Node(name string) *framework.NodeInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[name]
}

// RemovePod forgets a pod; it says whether it was known.
func (c *Cache) RemovePod(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drop(uid)
}

// Assume places a pod on a node before the API knows of it, so that the next
// cycle sees its resources taken.
func (c *Cache) Assume(p *framework.PodInfo, node string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.pods[p.Pod.UID]; ok {
		return fmt.Errorf("pod %s/%s is already on node %s", p.Pod.Namespace, p.Pod.Name, e.node)
	}
	c.add(&entry{info: p, node: node, assumed: true})
	return nil
}

// Forget undoes Assume. A pod that the API has confirmed in the meantime stays.
func (c *Cache) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.pods[uid]; ok && e.assumed {
		c.drop(uid)
	}
}

// Holds says whether the pod occupies a node here, assumed or bound.
func (c *Cache) Holds(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.pods[uid]
	return ok
}

// NodeOf is the node that the pod occupies here, assumed or bound; "" = none.
func (c *Cache) NodeOf(uid types.UID) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.pods[uid]; ok {
		return e.node
	}
	return ""
}

func (c *Cache) add(e *entry) {
	c.pods[e.info.Pod.UID] = e
	if info, ok := c.nodes[e.node]; ok {
		c.put(e.node, info.WithPod(e.info))
		return
	}
	stray, ok := c.strays[e.node]
	if !ok {
		stray = &framework.NodeInfo{}
	}
	c.strays[e.node] = stray.WithPod(e.info)
}

func (c *Cache) drop(uid types.UID) bool {
	e, ok := c.pods[uid]
	if !ok {
		return false
	}
	delete(c.pods, uid)
	if info, ok := c.nodes[e.node]; ok {
		c.put(e.node, info.WithoutPod(e.info))
	} else if stray, ok := c.strays[e.node]; ok {
		if stray = stray.WithoutPod(e.info); len(stray.Pods) == 0 {
			delete(c.strays, e.node)
		} else {
			c.strays[e.node] = stray
		}
	}
	return true
}

func (c *Cache) put(name string, info *framework.NodeInfo) {
	c.generation++
	info.Generation = c.generation
	c.nodes[name] = info
	c.dirty[name] = true
}

// countImages keeps on how many nodes each image is. A map that a snapshot holds is replaced, not
// changed.
func (c *Cache) countImages(old, now *framework.NodeInfo) {
	var before, after map[string]int64
	if old != nil {
		before = old.ImageSizes
	}
	if now != nil {
		after = now.ImageSizes
	}
	if maps.Equal(before, after) {
		return
	}
	if c.lent {
		c.images, c.lent = maps.Clone(c.images), false
	}
	images := c.images
	for name := range before {
		if images[name]--; images[name] == 0 {
			delete(images, name)
		}
	}
	for name := range after {
		images[name]++
	}
}

// Snapshot is the picture as of now. It is never changed afterwards, but for its memo,
// which the next one has too.
func (c *Cache) Snapshot() *framework.Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil && c.last.Generation == c.generation {
		return c.last
	}
	c.lent = true
	s := &framework.Snapshot{Generation: c.generation, NodesGeneration: c.nodesGeneration, ImageNodes: c.images, Memo: c.memo}
	if c.last != nil && c.last.NodesGeneration == c.nodesGeneration {
		s.Nodes, s.Index = slices.Clone(c.last.Nodes), c.last.Index
		for name := range c.dirty {
			s.Nodes[s.Index[name]] = c.nodes[name]
		}
	} else {
		s.Nodes, s.Index = c.inOrder()
	}
	clear(c.dirty)
	c.last = s
	return s
}

// inOrder lists the nodes so that neighbours lie in different zones: a search
// that stops early has then looked at all zones alike.
func (c *Cache) inOrder() ([]*framework.NodeInfo, map[string]int) {
	zones := map[string][]*framework.NodeInfo{}
	for _, info := range c.nodes {
		zone := info.Node.Labels[corev1.LabelTopologyRegion] + "/" + info.Node.Labels[corev1.LabelTopologyZone]
		zones[zone] = append(zones[zone], info)
	}
	names := slices.Sorted(maps.Keys(zones))
	for _, name := range names {
		slices.SortFunc(zones[name], func(a, b *framework.NodeInfo) int {
			if a.Node.Name < b.Node.Name {
				return -1
			}
			return 1
		})
	}
	nodes := make([]*framework.NodeInfo, 0, len(c.nodes))
	index := make(map[string]int, len(c.nodes))
	for row := 0; len(nodes) < len(c.nodes); row++ {
		for _, name := range names {
			if row < len(zones[name]) {
				info := zones[name][row]
				index[info.Node.Name] = len(nodes)
				nodes = append(nodes, info)
			}
		}
	}
	return nodes, index
}
