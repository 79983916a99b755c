// SPDX-License-Identifier: Apache-2.0

// Package framework is the contract between the scheduler and its plugins,
// native and Wasm alike: what one scheduling cycle looks like, and the points at
// which a plugin may have a say.
//
// A cycle works on a Snapshot that nobody changes. Every point is an interface
// of its own; a plugin implements those it cares about, and a profile names which
// plugins run, in which order, with which weight.
package framework

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// MaxScore is the highest score that a Score plugin, after Normalize, may give a node. The lowest is 0.
const MaxScore int64 = 100

// Code is the outcome of a plugin call.
type Code uint8

// The outcomes.
const (
	Success Code = iota
	// Error is a fault of the plugin or of the scheduler; the pod is tried again with backoff.
	Error
	// Unschedulable: not on this node, or not now; preemption or a cluster event may help.
	Unschedulable
	// Unresolvable: as Unschedulable, but removing pods from the node cannot help.
	Unresolvable
	// Wait: a Permit plugin holds the pod back.
	Wait
	// Skip: the plugin has nothing to say in this cycle.
	Skip
)

// Status is what a plugin answers. A nil *Status is Success. Reasons are shown in
// the pod's PodScheduled condition and events, grouped and counted over nodes.
type Status struct {
	Code    Code
	Reasons []string
	Err     error
	// Plugin is filled in by the framework. A plugin that fills in its own name may return
	// one status over and over: nobody changes it.
	Plugin string
}

// NewStatus makes a status of a code and its reasons.
func NewStatus(c Code, reasons ...string) *Status { return &Status{Code: c, Reasons: reasons} }

// AsStatus makes an Error status; nil for a nil error.
func AsStatus(err error) *Status {
	if err == nil {
		return nil
	}
	return &Status{Code: Error, Reasons: []string{err.Error()}, Err: err}
}

// IsSuccess says whether the status lets the cycle go on.
func (s *Status) IsSuccess() bool { return s == nil || s.Code == Success }

// Joined are the reasons in one line.
func (s *Status) Joined() string {
	if s.Err != nil && len(s.Reasons) == 0 {
		return s.Err.Error()
	}
	return strings.Join(s.Reasons, ", ")
}

// By is a status with the name of the plugin that it came from.
func By(st *Status, p Plugin) *Status {
	if st.Plugin == p.Name() && st.Code != Error {
		return st
	}
	named := *st
	named.Plugin = p.Name()
	if named.Code == Error {
		named.Reasons = []string{fmt.Sprintf("plugin %s: %s", p.Name(), strings.Join(st.Reasons, ", "))}
	}
	return &named
}

// Resources are amounts as the scheduler compares them.
type Resources struct {
	MilliCPU         int64
	Memory           int64 // bytes
	EphemeralStorage int64 // bytes
	Pods             int64
	Scalar           map[corev1.ResourceName]int64
}

// PodInfo is a pod with what plugins ask for over and over, worked out once.
// Nobody changes it.
type PodInfo struct {
	Pod      *corev1.Pod
	Requests Resources // the pod's effective requests, as KEP-753 and KEP-1287 count them
	// NonZero are the requests with upstream's defaults for pods that ask for
	// nothing (100 millicores, 200 MiB); scores use them.
	NonZero Resources
	Ports   []HostPort // host ports that the pod takes
	Terms   *Terms     // pod affinity and anti-affinity; nil = none
}

// HostPort is one port that a pod takes on its node.
type HostPort struct {
	IP       string // "" or "0.0.0.0" = all addresses
	Protocol corev1.Protocol
	Port     int32
}

// NodeInfo is a node with its pods, as of a snapshot. Nobody changes it.
type NodeInfo struct {
	Node        *corev1.Node
	Pods        []*PodInfo
	Allocatable Resources
	Requested   Resources
	NonZero     Resources  // sum of the pods' NonZero
	Ports       []HostPort // that the pods take
	// Affinity counts the pods that ask to be near to or away from others,
	// AntiAffinity those that must be away.
	Affinity, AntiAffinity int
	// Generation grows whenever anything in this NodeInfo changes; a plugin that
	// keeps a copy of its own (a node table in a guest's memory) compares it.
	Generation int64
	// ImageSizes: bytes by image name, of the images present on the node.
	ImageSizes map[string]int64
}

// Snapshot is the cluster as one cycle sees it. Nodes keep their index between
// snapshots as long as no node comes or goes.
type Snapshot struct {
	Nodes []*NodeInfo
	// Index of Nodes by name; Node looks one up.
	Index map[string]int
	// Generation of the youngest NodeInfo. NodesGeneration grows when a node comes or goes.
	Generation, NodesGeneration int64
	// ImageNodes: on how many nodes an image is present; nil = NodesWith looks at each.
	ImageNodes map[string]int
	// Memo of the cache that the snapshot comes from; nil = nothing is kept.
	Memo *Memo `json:"-"`
}

// Node finds a node by name; nil where the snapshot has none.
func (s *Snapshot) Node(name string) *NodeInfo {
	if i, ok := s.Index[name]; ok {
		return s.Nodes[i]
	}
	return nil
}

// NodesWith counts the nodes on which an image of this name is present.
func (s *Snapshot) NodesWith(image string) (count int) {
	if s.ImageNodes != nil {
		return s.ImageNodes[image]
	}
	for _, n := range s.Nodes {
		if _, ok := n.ImageSizes[image]; ok {
			count++
		}
	}
	return count
}

// State is the scratch space of one cycle: a plugin puts here in PreFilter what
// its Filter reads. Keys are the plugin's own unexported types. Writes are for
// the Pre points; Filter and Score run in parallel and only read.
type State struct {
	m       map[any]any
	now     func() time.Time
	company Company
}

// Cloner is a value of a State that simulations change (PreFilterExtensions):
// each works on a clone. Other values are shared, and must not be changed after
// the Pre point that set them.
type Cloner interface{ Clone() any }

// NewState makes the scratch space of one cycle.
func NewState() *State { return NewStateAt(time.Now) }

// NewStateAt is NewState with another clock than the time of day.
func NewStateAt(now func() time.Time) *State { return &State{m: map[any]any{}, now: now} }

// Now is the time, as the scheduler has it: a plugin that asks it decides alike in a
// simulation.
func (s *State) Now() time.Time { return s.now() }

// Get reads.
func (s *State) Get(key any) any { return s.m[key] }

// Set writes.
func (s *State) Set(key, value any) { s.m[key] = value }

// Clone copies the state for a simulation.
func (s *State) Clone() *State {
	c := &State{m: make(map[any]any, len(s.m)), now: s.now, company: s.company}
	for k, v := range s.m {
		if cloner, ok := v.(Cloner); ok {
			v = cloner.Clone()
		}
		c.m[k] = v
	}
	return c
}

// Plugin is what all plugins share.
type Plugin interface{ Name() string }

// PreEnqueue says whether a pod may be tried at all. A refusal keeps it out of
// the cycles, without counting as a try, until the pod changes or one of the
// plugin's events (Hints) happens.
type PreEnqueue interface {
	Plugin
	PreEnqueue(ctx context.Context, p *PodInfo) *Status
}

// QueueSort orders the pods that wait: the highest rank goes first, and among
// equals priority and then age decide. It is asked when a pod comes or changes,
// never while two pods are compared: the order cannot contradict itself. One
// profile has one QueueSort at the most; a pod has the rank that its own profile gives it.
type QueueSort interface {
	Plugin
	Rank(ctx context.Context, p *PodInfo, added time.Time) (int64, *Status)
}

// PreFilter runs once a cycle. nodes non-nil narrows the cycle to these names.
// Skip leaves the plugin's Filter out of the cycle.
type PreFilter interface {
	Plugin
	PreFilter(ctx context.Context, s *State, p *PodInfo, snap *Snapshot) (nodes map[string]bool, st *Status)
}

// PreFilterExtensions is for filters whose PreFilter looked at the pods of the
// cluster: they are told, on a clone of the state, that a pod is now on a node or
// has left it. Preemption and nominated pods are worked out with it. n is the node
// as it is after the change.
type PreFilterExtensions interface {
	Plugin
	AddPod(ctx context.Context, s *State, p, added *PodInfo, n *NodeInfo) *Status
	RemovePod(ctx context.Context, s *State, p, removed *PodInfo, n *NodeInfo) *Status
}

// Filter says whether the pod may run on the node.
type Filter interface {
	Plugin
	Filter(ctx context.Context, s *State, p *PodInfo, n *NodeInfo) *Status
}

// Nomination is what a PostFilter proposes: a node on which the pod will fit as
// soon as the victims are gone. The scheduler removes them and writes the
// nomination on the pod; the node's room is kept for it. An empty Node takes back
// a nomination that stands on the pod.
type Nomination struct {
	Node    string
	Victims []*PodInfo
}

// Simulator answers what would be: whether the pod of the cycle fits on a node
// that differs from the one in the snapshot by these pods. It is for one goroutine.
type Simulator interface {
	// Fits asks every filter about node n of the snapshot without the pods in removed.
	Fits(ctx context.Context, n *NodeInfo, removed []*PodInfo) *Status
}

// PostFilter runs when no node was left; it may nominate one (preemption). The
// first plugin that answers a nomination ends the point; Unschedulable goes on to the next.
type PostFilter interface {
	Plugin
	PostFilter(ctx context.Context, s *State, p *PodInfo, snap *Snapshot, failed map[string]*Status, sim Simulator) (*Nomination, *Status)
}

// Freeing is for PostFilter plugins that let go of something that the pod itself holds, and
// that keeps it from every node. PostFilter says so; Free does it, once that is decided.
type Freeing interface {
	Plugin
	// Frees says whether there is something to let go of, by the state of the cycle.
	Frees(s *State) bool
	Free(ctx context.Context, s *State, p *PodInfo) *Status
}

// Frees says whether one of the plugins lets go of something.
func Frees(all []PostFilter, s *State) bool {
	return slices.ContainsFunc(all, func(post PostFilter) bool {
		f, ok := post.(Freeing)
		return ok && f.Frees(s)
	})
}

// Free has those of the plugins that are Freeing let go; it is the first failure.
func Free(ctx context.Context, all []PostFilter, s *State, p *PodInfo) (failed *Status) {
	for _, post := range all {
		f, ok := post.(Freeing)
		if !ok || !f.Frees(s) {
			continue
		}
		if st := f.Free(ctx, s, p); !st.IsSuccess() && failed == nil {
			failed = &Status{Code: st.Code, Reasons: st.Reasons, Plugin: f.Name()}
		}
	}
	return failed
}

// GroupPostFilter is for PostFilter plugins that also make room for pods that are placed all or
// nothing: which of the pods that could be removed should rather stay.
type GroupPostFilter interface {
	Plugin
	// Protected says of each of several units, whose pods are removed together or not at all, and
	// which stand in the order in which they may stay, whether its removal violates a rule.
	Protected(units [][]*PodInfo) ([]bool, error)
}

// PreScore runs once, with the nodes that are left. Skip leaves Score out.
type PreScore interface {
	Plugin
	PreScore(ctx context.Context, s *State, p *PodInfo, nodes []*NodeInfo) *Status
}

// Score rates one node: any int64 where the plugin also normalises, else 0..MaxScore.
type Score interface {
	Plugin
	Score(ctx context.Context, s *State, p *PodInfo, n *NodeInfo) (int64, *Status)
}

// Normalize brings the scores of one plugin into 0..MaxScore, in place, in the order of nodes.
type Normalize interface {
	Plugin
	Normalize(ctx context.Context, s *State, p *PodInfo, nodes []*NodeInfo, scores []int64) *Status
}

// Verdict is a Judge's answer for one node.
type Verdict struct {
	Status *Status // nil = feasible
	Score  int64   // 0..MaxScore
}

// Judge is for plugins that filter and score all nodes in one call, which is much
// cheaper where each call crosses a boundary. It takes the place of Filter and
// Score: the framework calls it once, after PreFilter, with every node of the
// snapshot, in order.
type Judge interface {
	Plugin
	Judge(ctx context.Context, p *PodInfo, snap *Snapshot) ([]Verdict, *Status)
}

// Reserve is told when a pod is assumed onto a node, and when that is undone.
type Reserve interface {
	Plugin
	Reserve(ctx context.Context, s *State, p *PodInfo, node string) *Status
	Unreserve(ctx context.Context, s *State, p *PodInfo, node string)
}

// Permit may hold a pod back before binding: Wait with a time, after which it is
// asked again. A pod waits at most 15 minutes in all.
type Permit interface {
	Plugin
	Permit(ctx context.Context, s *State, p *PodInfo, node string) (*Status, time.Duration)
}

// PreBind prepares what a pod needs (volumes) before it is bound.
type PreBind interface {
	Plugin
	PreBind(ctx context.Context, s *State, p *PodInfo, node string) *Status
}

// Patient is for PreBind plugins that wait for the work of others: how long they may
// take. Those without it have 30 seconds. Their context ends when the pod is
// deleted, or the scheduler stops.
type Patient interface {
	Plugin
	Patience() time.Duration
}

// Preparing is for PreBind plugins that know beforehand whether they have anything to do for a pod. Those without it
// have, where they are Patient.
type Preparing interface {
	Plugin
	Prepares(s *State, p *PodInfo, node string) bool
}

// Prepares says whether one of the plugins has something to do that takes a while.
func Prepares(all []PreBind, s *State, p *PodInfo, node string) bool {
	return slices.ContainsFunc(all, func(pre PreBind) bool {
		if known, ok := pre.(Preparing); ok {
			return known.Prepares(s, p, node)
		}
		_, patient := pre.(Patient)
		return patient
	})
}

// Binding is how a Bind plugin wants a pod bound.
type Binding struct {
	// Done: the plugin has bound the pod itself. Otherwise the scheduler binds it.
	Done bool
	// Annotations that the pod gets with the binding.
	Annotations map[string]string
}

// Bind binds, or says how; the first plugin that does not Skip has decided it.
type Bind interface {
	Plugin
	Bind(ctx context.Context, s *State, p *PodInfo, node string) (Binding, *Status)
}

// PostBind is told that a pod has been bound. It can change nothing any more.
type PostBind interface {
	Plugin
	PostBind(ctx context.Context, s *State, p *PodInfo, node string)
}

// Point names one of the points above.
type Point string

// The points.
const (
	AtPreEnqueue Point = "PreEnqueue"
	AtQueueSort  Point = "QueueSort"
	AtPreFilter  Point = "PreFilter"
	AtFilter     Point = "Filter"
	AtJudge      Point = "Judge"
	AtPostFilter Point = "PostFilter"
	AtPreScore   Point = "PreScore"
	AtScore      Point = "Score"
	AtReserve    Point = "Reserve"
	AtPermit     Point = "Permit"
	AtPreBind    Point = "PreBind"
	AtBind       Point = "Bind"
	AtPostBind   Point = "PostBind"
)

// Selective is for adapters whose type has every point, of which what stands
// behind them takes some: they are not asked at the others. It is looked at
// when profiles are set.
type Selective interface {
	Plugin
	Takes(at Point) bool
}

// Takes says whether a plugin that has a point's methods is to be asked there.
func Takes(p Plugin, at Point) bool {
	s, ok := p.(Selective)
	return !ok || s.Takes(at)
}

// ClusterEvent is a set of things that can happen in the cluster and make a pod
// that fitted nowhere worth another try.
type ClusterEvent uint32

// The events.
const (
	NodeAdded ClusterEvent = 1 << iota
	NodeAllocatableGrew
	NodeLabelsChanged
	NodeTaintsChanged // spec.unschedulable too
	PodRemoved        // a bound pod ended or was deleted
	PodBound
	VolumesChanged // a PersistentVolume, claim or storage class changed
	PodChanged     // the waiting pod itself
	DevicesChanged // a claim or slice of devices changed, or what taints them
	DeviceClassChanged
	GroupChanged                     // the PodGroup of the waiting pod
	Unreserved                       // a pod was not bound after all: what plugins had reserved for it is free
	NodeFeaturesChanged              // what a node declares that its kubelet can do
	NodeRemoved                      // a node was deleted; with PodRemoved where pods were on it, as they count no more
	PodShrank                        // a bound pod asks for less, and its node has taken note of it
	AnyEvent            ClusterEvent = 1<<32 - 1
)

// Hints is for plugins that refuse pods: which events may change their mind. A
// plugin without it is asked again after any event.
type Hints interface {
	Plugin
	Hints() ClusterEvent
}

// Attentive is for plugins with Hints to whom it matters which object has changed: of
// DevicesChanged, DeviceClassChanged, VolumesChanged and NodeRemoved they are asked whether it may help a pod that they
// refused. old is nil for an object that is new, now for one that is gone.
type Attentive interface {
	Plugin
	Helped(p *PodInfo, old, now runtime.Object) bool
}
