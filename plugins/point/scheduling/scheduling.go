// SPDX-License-Identifier: Apache-2.0

// Package scheduling lets Wasm plugins choose nodes: it is every point of core's
// scheduler/framework over a plugin. The scheduler asks it only at the points that
// the plugin has hooks for.
//
// A node table lives in the memory of one instance. The columns that the plugin
// declared are written there when a node changes, and one call judges all nodes:
// 5000 of them in some ten microseconds, where a call for each, with the node as JSON, takes
// tens of milliseconds. The simple form, filter and score of single nodes, is there for ease.
//
// A plugin that fails keeps the pod waiting where it could have refused it (the pod
// is tried again with backoff), and is passed over where it could only have had a
// preference or done somebody a service, unless its failure policy says otherwise.
//
// Documents: paths begin with pod, requests (what the pod asks for), node,
// allocatable, requested (by the pods on the node), nonZero, pods (how many). The
// amounts are milliCPU, memory, ephemeralStorage, pods and scalar["..."].
package scheduling

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// New makes the adapter of a plugin; nil where it has no scheduling hook now. A
// plugin with a node table is a Judge, and its hooks for single nodes are not asked.
// before is the adapter made earlier: it stays, with its table, while the plugin has hooks.
func New(p *point.Plugin, before framework.Plugin) framework.Plugin {
	v := p.Current()
	if v == nil || !slices.ContainsFunc(abi.SchedulingPoints(), func(pt abi.Point) bool { return v.Hook(pt) != nil }) {
		return nil
	}
	if a, ok := before.(*Plugin); ok {
		return a
	}
	return &Plugin{judge{plugin: p}}
}

// Plugin is a plugin at all points of scheduling. It is safe for concurrent use.
type Plugin struct{ judge }

// hooksAt are the hooks that have the scheduler ask at a point.
var hooksAt = map[framework.Point][]abi.Point{
	framework.AtPreEnqueue: {abi.SchedulingPreEnqueue},
	framework.AtQueueSort:  {abi.SchedulingQueueSort},
	framework.AtPreFilter:  {abi.SchedulingPreFilter},
	framework.AtFilter:     {abi.SchedulingFilter},
	framework.AtJudge:      {abi.SchedulingTable},
	framework.AtPostFilter: {abi.SchedulingPostFilter},
	framework.AtPreScore:   {abi.SchedulingPreScore},
	framework.AtScore:      {abi.SchedulingScore},
	framework.AtReserve:    {abi.SchedulingReserve, abi.SchedulingUnreserve},
	framework.AtPermit:     {abi.SchedulingPermit},
	framework.AtPreBind:    {abi.SchedulingPreBind},
	framework.AtBind:       {abi.SchedulingBind},
	framework.AtPostBind:   {abi.SchedulingPostBind},
}

// Takes implements framework.Selective.
func (a *Plugin) Takes(at framework.Point) bool {
	v := a.plugin.Current()
	return v != nil && slices.ContainsFunc(hooksAt[at], func(pt abi.Point) bool { return v.Hook(pt) != nil })
}

// events are the scheduler's own, by the names in manifests.
var events = map[string]framework.ClusterEvent{
	abi.EventNodeAdded: framework.NodeAdded, abi.EventNodeAllocatableGrew: framework.NodeAllocatableGrew,
	abi.EventNodeLabelsChanged: framework.NodeLabelsChanged, abi.EventNodeTaintsChanged: framework.NodeTaintsChanged,
	abi.EventPodRemoved: framework.PodRemoved, abi.EventPodBound: framework.PodBound,
	abi.EventVolumesChanged: framework.VolumesChanged, abi.EventPodChanged: framework.PodChanged,
	abi.EventNodeRemoved: framework.NodeRemoved,
}

// Hints implements framework.Hints: the events that the plugin's refusing hooks
// name; any event where one of them names none.
func (a *Plugin) Hints() framework.ClusterEvent {
	v := a.plugin.Current()
	if v == nil {
		return framework.AnyEvent
	}
	var all framework.ClusterEvent
	for _, pt := range abi.SchedulingPoints() {
		h := v.Hook(pt)
		if h == nil || fallback(pt) == manifest.Ignore {
			continue
		}
		if len(h.Events) == 0 {
			return framework.AnyEvent
		}
		for _, e := range h.Events {
			all |= events[e]
		}
	}
	if all == 0 {
		return framework.AnyEvent
	}
	return all | framework.PodChanged
}

// amounts are framework.Resources under the names that hooks see.
type amounts struct {
	MilliCPU         int64                         `json:"milliCPU"`
	Memory           int64                         `json:"memory"`
	EphemeralStorage int64                         `json:"ephemeralStorage"`
	Pods             int64                         `json:"pods"`
	Scalar           map[corev1.ResourceName]int64 `json:"scalar,omitempty"`
}

// podDocument and nodeDocument are what columns of a table are read from.
type podDocument struct {
	Pod      abi.Object `json:"pod"`
	Requests *amounts   `json:"requests"`
	NonZero  *amounts   `json:"nonZero"`
}

type nodeDocument struct {
	Node        abi.Object       `json:"node"`
	Allocatable *amounts         `json:"allocatable"`
	Requested   *amounts         `json:"requested"`
	NonZero     *amounts         `json:"nonZero"`
	Pods        int              `json:"pods"`
	ImageSizes  map[string]int64 `json:"imageSizes,omitempty"`
}

// document is what the hooks for single nodes see.
type document struct {
	Pod         abi.Object `json:"pod"`
	Requests    *amounts   `json:"requests"`
	Node        abi.Object `json:"node"`
	Allocatable *amounts   `json:"allocatable"`
	Requested   *amounts   `json:"requested"`
	NonZero     *amounts   `json:"nonZero"`
	Pods        int        `json:"pods"`
	State       any        `json:"state,omitempty"`
}

func resources(r *framework.Resources) *amounts {
	return &amounts{MilliCPU: r.MilliCPU, Memory: r.Memory, EphemeralStorage: r.EphemeralStorage, Pods: r.Pods, Scalar: r.Scalar}
}

func podObject(p *corev1.Pod) abi.Object {
	return abi.Object{Object: p, GVK: corev1.SchemeGroupVersion.WithKind("Pod")}
}

func nodeObject(n *corev1.Node) abi.Object {
	return abi.Object{Object: n, GVK: corev1.SchemeGroupVersion.WithKind("Node")}
}

func newDocument(p *framework.PodInfo, n *framework.NodeInfo, state any) *document {
	return &document{
		Pod: podObject(p.Pod), Requests: resources(&p.Requests),
		Node: nodeObject(n.Node), Allocatable: resources(&n.Allocatable), Requested: resources(&n.Requested),
		NonZero: resources(&n.NonZero), Pods: len(n.Pods), State: state,
	}
}

// cycleDocument is what the hooks see that are asked once a cycle, or less.
type cycleDocument struct {
	Pod      abi.Object `json:"pod"`
	Requests *amounts   `json:"requests"`
	State    any        `json:"state,omitempty"`
	// Added is when the pod came to the queue, for queueSort.
	Added string `json:"added,omitempty"`
	// Nodes that are looked at, in order, and their Scores, for normalize.
	Nodes  []string `json:"nodes,omitempty"`
	Scores []int64  `json:"scores,omitempty"`
	// Failed nodes, for postFilter.
	Failed []failedNode `json:"failed,omitempty"`
	// NodeName is the node that was chosen.
	NodeName string `json:"nodeName,omitempty"`
	// WaitedSeconds since permit was asked first.
	WaitedSeconds float64 `json:"waitedSeconds"`
	// Group of the pod, where the manifest tells groups apart; its Usage, that of all Groups, of
	// the Others that are in none, and what the nodes have in all.
	Group  string                    `json:"group,omitempty"`
	Usage  *usageDocument            `json:"usage,omitempty"`
	Groups map[string]*usageDocument `json:"groups,omitempty"`
	Others *usageDocument            `json:"others,omitempty"`
	Total  *amounts                  `json:"total,omitempty"`
	// Gang that the pod is placed with.
	Gang *gangDocument `json:"gang,omitempty"`
}

type failedNode struct {
	Node         string   `json:"node"`
	Plugin       string   `json:"plugin"`
	Reasons      []string `json:"reasons"`
	Unresolvable bool     `json:"unresolvable"`
}

// newCycleDocument has what every hook of a cycle sees. s may be nil.
func (a *Plugin) newCycleDocument(s *framework.State, p *framework.PodInfo) *cycleDocument {
	d := &cycleDocument{Pod: podObject(p.Pod), Requests: resources(&p.Requests)}
	if s != nil {
		d.State = s.Get(stateKey{a.Name()})
	}
	return d
}

// stateKey is where a plugin's answer of preFilter or preScore waits for its later hooks.
type stateKey struct{ plugin string }

// reads says whether a hook sees a part of its document; one without fields sees all.
func (a *Plugin) reads(pt abi.Point, part string) bool {
	v := a.plugin.Current()
	if v == nil || v.Hook(pt) == nil {
		return false
	}
	fields := v.Hook(pt).Fields
	return len(fields) == 0 || slices.ContainsFunc(fields, func(f string) bool { return strings.HasPrefix(f, part) })
}

// fallback is the failure policy of an entry that names none.
func fallback(pt abi.Point) manifest.FailurePolicy {
	switch pt {
	case abi.SchedulingPreEnqueue, abi.SchedulingPreFilter, abi.SchedulingFilter, abi.SchedulingTable,
		abi.SchedulingReserve, abi.SchedulingPermit, abi.SchedulingPreBind, abi.SchedulingBind:
		return manifest.Fail
	default:
		return manifest.Ignore
	}
}

// failed is a plugin failure, by the failure policy: an Error has the pod tried again.
func failed(c *point.Call, fallback manifest.FailurePolicy) *framework.Status {
	if c.Policy(fallback) == manifest.Ignore {
		return nil
	}
	return framework.AsStatus(c.Err)
}
