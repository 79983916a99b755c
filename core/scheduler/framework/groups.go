// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// Grouping is for plugins that tell groups of pods apart, teams or queues, and want to
// know what each of them has: package usage counts it.
type Grouping interface {
	Plugin
	// Groups says whether the plugin, as it is configured, tells groups apart. What it
	// returns is the same for as long as GroupOf says the same of the same pod; nil = it does not.
	Groups() any
	// GroupOf is the group of a pod by what is written in it; "" = none.
	GroupOf(p *corev1.Pod) string
}

// Usage is what the pods of a group have.
type Usage struct {
	// Requested by the pods on nodes, those included that leave and those whose binding is on its way.
	Requested Resources
	// Leaving is the part of it that is being removed.
	Leaving Resources
	// Promised to waiting pods for which others make room.
	Promised Resources
}

// Usages of a cluster, by group.
type Usages struct {
	Groups map[string]*Usage
	// Total is what the nodes have.
	Total Resources
}

// GroupSort is for QueueSort plugins that order whole groups: what RankGroup says of a group goes for all pods
// of it, and is asked again when what the group has changes. Within a group priority and then age decide.
type GroupSort interface {
	Grouping
	// RankGroup of a group, of which p is the first pod that waits: the highest goes first.
	RankGroup(ctx context.Context, p *PodInfo, all *Usages) (int64, *Status)
}

// Reclaimer is for PostFilter plugins that say which groups' pods make room for a pod, or
// for a gang, whatever their priority. The scheduler finds out which of them have to go. It takes the place
// of the preemption by priority.
type Reclaimer interface {
	Grouping
	// Reclaim lists who may make room. For a gang p is its first pod, with the requests of all that it needs.
	Reclaim(ctx context.Context, s *State, p *PodInfo, snap *Snapshot) ([]Allowance, *Status)
}

// Allowance is the pods of one group that may make room: those that have no place in what
// the group keeps, and those of a priority below a bound.
type Allowance struct {
	Group string
	// Keep is what the group's most important pods keep, the oldest among equals; cpu in
	// thousandths. Of a resource that is not named they keep all. Nil: none may go for that.
	Keep map[corev1.ResourceName]int64
	// Below: pods of a lower priority may go; nil: none may for that.
	Below *int32
	// Highest priority of a pod that may go.
	Highest int32
}

// Of is the amount of a resource, as its Keep has it.
func (r *Resources) Of(name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return r.MilliCPU
	case corev1.ResourceMemory:
		return r.Memory
	case corev1.ResourceEphemeralStorage:
		return r.EphemeralStorage
	case corev1.ResourcePods:
		return r.Pods
	default:
		return r.Scalar[name]
	}
}

// Gang is the group of pods that a pod is placed with.
type Gang struct {
	Name string
	// Need is how many pods it needs that have no node yet.
	Need int
	// Requests of these.
	Requests Resources
}

// Company is what a decision about a pod takes into account besides it.
type Company struct {
	// Snapshot of the cluster, for the points that are given only the nodes which are left.
	Snapshot *Snapshot
	// Gang of which it is a member; nil = it is decided alone.
	Gang *Gang
	// Ahead, by node, are pods whose room it may not take.
	Ahead map[string][]*PodInfo
}

// Company is the one of the cycle.
func (s *State) Company() Company { return s.company }

// Cluster is the cycle's snapshot; nodes are what a point was given, which are all of it where the cycle
// has none.
func (s *State) Cluster(nodes []*NodeInfo) *Snapshot {
	if s.company.Snapshot != nil {
		return s.company.Snapshot
	}
	return &Snapshot{Nodes: nodes}
}

// Accompany sets the company of a cycle, before its first plugin is asked.
func (s *State) Accompany(c Company) { s.company = c }
