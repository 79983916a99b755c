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
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
	Plugin  string // filled in by the framework
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
	NonZero     Resources // sum of the pods' NonZero
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
	// ImageNodes: on how many nodes an image is present.
	ImageNodes map[string]int
}

// Node finds a node by name; nil where the snapshot has none.
func (s *Snapshot) Node(name string) *NodeInfo {
	if i, ok := s.Index[name]; ok {
		return s.Nodes[i]
	}
	return nil
}

// State is the scratch space of one cycle: a plugin puts here in PreFilter what
// its Filter reads. Keys are the plugin's own unexported types. Writes are for
// the Pre points; Filter and Score run in parallel and only read.
type State struct{ m map[any]any }

// NewState makes the scratch space of one cycle.
func NewState() *State { return &State{m: map[any]any{}} }

// Get reads.
func (s *State) Get(key any) any { return s.m[key] }

// Set writes.
func (s *State) Set(key, value any) { s.m[key] = value }

// Plugin is what all plugins share.
type Plugin interface{ Name() string }

// PreFilter runs once a cycle. nodes non-nil narrows the cycle to these names.
// Skip leaves the plugin's Filter out of the cycle.
type PreFilter interface {
	Plugin
	PreFilter(ctx context.Context, s *State, p *PodInfo, snap *Snapshot) (nodes map[string]bool, st *Status)
}

// Filter says whether the pod may run on the node.
type Filter interface {
	Plugin
	Filter(ctx context.Context, s *State, p *PodInfo, n *NodeInfo) *Status
}

// PostFilter runs when no node was left; it may nominate one (preemption).
type PostFilter interface {
	Plugin
	PostFilter(ctx context.Context, s *State, p *PodInfo, snap *Snapshot, failed map[string]*Status) (nominated string, st *Status)
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

// Permit may hold a pod back before binding: Wait with a time limit.
type Permit interface {
	Plugin
	Permit(ctx context.Context, s *State, p *PodInfo, node string) (*Status, time.Duration)
}

// PreBind prepares what a pod needs (volumes) before it is bound.
type PreBind interface {
	Plugin
	PreBind(ctx context.Context, s *State, p *PodInfo, node string) *Status
}

// Bind binds; the first plugin that does not Skip has done it.
type Bind interface {
	Plugin
	Bind(ctx context.Context, s *State, p *PodInfo, node string) *Status
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
	VolumesChanged              // a PersistentVolume, claim or storage class changed
	PodChanged                  // the waiting pod itself
	AnyEvent       ClusterEvent = 1<<32 - 1
)

// Hints is for plugins that refuse pods: which events may change their mind. A
// plugin without it is asked again after any event.
type Hints interface {
	Plugin
	Hints() ClusterEvent
}

// PodKey identifies a pod for good.
func PodKey(p *corev1.Pod) types.UID { return p.UID }
