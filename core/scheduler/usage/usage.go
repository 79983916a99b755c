// SPDX-License-Identifier: Apache-2.0

// Package usage counts what groups of pods have, for plugins that tell groups apart. Counts are
// kept from one cycle to the next: of a large cluster only the nodes that changed are counted
// again, those of a simulation too.
package usage

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Of counts the pods of a snapshot by a plugin's groups. Pods that are ahead of the one that is
// decided about count as promised a node. What it returns is good until the next call for the same plugin.
func Of(snap *framework.Snapshot, by framework.Grouping, ahead map[string][]*framework.PodInfo) *framework.Usages {
	return kept(snap, by).with(by, ahead)
}

// Version changes whenever what a group has, or what there is in all, may have changed.
func Version(snap *framework.Snapshot, by framework.Grouping, group string) int64 {
	c := kept(snap, by)
	return c.nodesChanged + c.changed[group]
}

// key is where the counts of a plugin are kept.
type key struct{ plugin string }

// counts of all pods of a cluster.
type counts struct {
	groups  any                   // how pods are told apart, while it is the same
	nodes   []*framework.NodeInfo // as they were counted
	all     framework.Usages
	changed map[string]int64 // grows with each change of a group
	// nodesChanged grows with each change of what there is in all.
	nodesChanged int64
	promised     []string // the groups that have something promised
}

func kept(snap *framework.Snapshot, by framework.Grouping) *counts {
	c := framework.Kept(snap, key{by.Name()}, func() *counts { return &counts{} })
	if g := by.Groups(); c.changed == nil || c.groups != g {
		*c = counts{
			groups: g, changed: map[string]int64{},
			all: framework.Usages{Groups: map[string]*framework.Usage{}},
		}
	}
	c.follow(by, snap.Nodes)
	return c
}

// with adds what is promised, in place of what was before.
func (c *counts) with(by framework.Grouping, ahead map[string][]*framework.PodInfo) *framework.Usages {
	for _, group := range c.promised {
		c.group(group).Promised = framework.Resources{}
	}
	c.promised = c.promised[:0]
	for _, pods := range ahead {
		for _, p := range pods {
			group := by.GroupOf(p.Pod)
			add(&c.group(group).Promised, &p.Requests, 1)
			c.promised = append(c.promised, group)
		}
	}
	return &c.all
}

func (c *counts) group(name string) *framework.Usage {
	u := c.all.Groups[name]
	if u == nil {
		u = &framework.Usage{}
		c.all.Groups[name] = u
	}
	return u
}

// follow counts what has changed since the last time.
func (c *counts) follow(by framework.Grouping, nodes []*framework.NodeInfo) {
	for i := len(nodes); i < len(c.nodes); i++ {
		c.replace(by, c.nodes[i], nil)
	}
	c.nodes = c.nodes[:min(len(c.nodes), len(nodes))]
	for i, n := range nodes {
		switch {
		case i == len(c.nodes):
			c.nodes = append(c.nodes, n)
			c.replace(by, nil, n)
		case c.nodes[i] != n:
			was := c.nodes[i]
			c.nodes[i] = n
			c.replace(by, was, n)
		}
	}
}

// replace counts one node instead of another; nil is one that is not there.
func (c *counts) replace(by framework.Grouping, was, now *framework.NodeInfo) {
	var gone, come []*framework.PodInfo
	if was != nil {
		gone = was.Pods
	}
	if now != nil {
		come = now.Pods
	}
	if was == nil || now == nil || was.Node != now.Node {
		c.nodesChanged++
		if was != nil {
			add(&c.all.Total, &was.Allocatable, -1)
		}
		if now != nil {
			add(&c.all.Total, &now.Allocatable, 1)
		}
	}
	gone, come = differing(gone, come)
	for _, p := range gone {
		c.count(by, p, -1)
	}
	for _, p := range come {
		c.count(by, p, 1)
	}
}

func (c *counts) count(by framework.Grouping, p *framework.PodInfo, sign int64) {
	name := by.GroupOf(p.Pod)
	u := c.group(name)
	c.changed[name]++
	add(&u.Requested, &p.Requests, sign)
	if p.Pod.DeletionTimestamp != nil {
		add(&u.Leaving, &p.Requests, sign)
	}
}

// differing leaves out what both lists begin and end with: the pods of one node differ by
// one or two from cycle to cycle.
func differing(was, now []*framework.PodInfo) (gone, come []*framework.PodInfo) {
	for len(was) > 0 && len(now) > 0 && was[0] == now[0] {
		was, now = was[1:], now[1:]
	}
	for len(was) > 0 && len(now) > 0 && was[len(was)-1] == now[len(now)-1] {
		was, now = was[:len(was)-1], now[:len(now)-1]
	}
	return was, now
}

// add changes sum itself, which nobody else has.
func add(sum, r *framework.Resources, sign int64) {
	sum.MilliCPU += sign * r.MilliCPU
	sum.Memory += sign * r.Memory
	sum.EphemeralStorage += sign * r.EphemeralStorage
	sum.Pods += sign * r.Pods
	if len(r.Scalar) == 0 {
		return
	}
	if sum.Scalar == nil {
		sum.Scalar = map[corev1.ResourceName]int64{}
	}
	for name, n := range r.Scalar {
		sum.Scalar[name] += sign * n
	}
	maps.DeleteFunc(sum.Scalar, func(_ corev1.ResourceName, n int64) bool { return n == 0 })
}
