// Package scheduling lets Wasm plugins choose nodes: it is core's framework.Judge
// over a plugin with a node table, and framework.Filter and framework.Score over
// one with hooks for single nodes.
//
// A node table lives in the memory of one instance. The columns that the plugin
// declared are written there when a node changes, and one call judges all nodes:
// 5000 of them in some ten microseconds, where a call for each, with the node as JSON, takes
// tens of milliseconds. The simple form is there for ease.
//
// Documents: paths begin with pod, requests (what the pod asks for), node,
// allocatable, requested (by the pods on the node), nonZero, pods (how many). The
// amounts are milliCPU, memory, ephemeralStorage, pods and scalar["..."].
package scheduling

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// New makes the adapter of a plugin; nil where it has no scheduling hook now. A
// plugin with a node table is a Judge, and its hooks for single nodes are not asked.
// before is the adapter made earlier: it is kept where it has the same shape, with its table.
func New(p *point.Plugin, before framework.Plugin) framework.Plugin {
	v := p.Current()
	if v == nil {
		return nil
	}
	filter, score := v.Hook(abi.SchedulingFilter) != nil, v.Hook(abi.SchedulingScore) != nil
	switch {
	case v.Hook(abi.SchedulingTable) != nil:
		if j, ok := before.(*Judge); ok {
			return j
		}
		return &Judge{plugin: p}
	case filter && score:
		return filterScore{named{p}, filterer{p}, scorer{p}}
	case filter:
		return struct {
			named
			filterer
		}{named{p}, filterer{p}}
	case score:
		return struct {
			named
			scorer
		}{named{p}, scorer{p}}
	}
	return nil
}

type named struct{ p *point.Plugin }

// Name implements framework.Plugin.
func (n named) Name() string { return n.p.Name() }

type filterScore struct {
	named
	filterer
	scorer
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

func newDocument(p *framework.PodInfo, n *framework.NodeInfo) *document {
	return &document{
		Pod: podObject(p.Pod), Requests: resources(&p.Requests),
		Node: nodeObject(n.Node), Allocatable: resources(&n.Allocatable), Requested: resources(&n.Requested),
		NonZero: resources(&n.NonZero), Pods: len(n.Pods),
	}
}

type filterer struct{ plugin *point.Plugin }

// Filter implements framework.Filter. Calls for single nodes are counted and not
// traced: there would be thousands of them.
func (f filterer) Filter(ctx context.Context, _ *framework.State, p *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	c := f.plugin.Ask(ctx, abi.SchedulingFilter, "Pod", newDocument(p, n))
	if c == nil {
		return nil
	}
	var answer abi.FilterAnswer
	if c.Err == nil {
		var err error
		if answer, err = abi.ParseFilter(c.Answer); err != nil {
			c.Fail(err)
		}
	}
	refused := answer.Fits != nil && !*answer.Fits
	outcome := point.Outcome{Decision: "allow"}
	if refused {
		outcome.Decision = "deny"
	}
	c.Record(untraced(ctx), abi.SchedulingFilter, outcome)
	switch {
	case c.Mode() != manifest.Enforce:
		return nil
	case c.Err != nil:
		return failed(c, manifest.Fail)
	case !refused:
		return nil
	}
	if len(answer.Reasons) == 0 {
		answer.Reasons = []string{fmt.Sprintf("node(s) didn't pass plugin %s", f.plugin.Name())}
	}
	code := framework.Unschedulable
	if answer.Unresolvable {
		code = framework.Unresolvable
	}
	return framework.NewStatus(code, answer.Reasons...)
}

// failed is a plugin failure, by the failure policy: an Error has the pod tried again.
func failed(c *point.Call, fallback manifest.FailurePolicy) *framework.Status {
	if c.Policy(fallback) == manifest.Ignore {
		return nil
	}
	return framework.AsStatus(c.Err)
}

type scorer struct{ plugin *point.Plugin }

// Score implements framework.Score. A plugin that fails rates every node 0,
// unless its failure policy is Fail: a preference is no reason to keep a pod waiting.
func (s scorer) Score(ctx context.Context, _ *framework.State, p *framework.PodInfo, n *framework.NodeInfo) (int64, *framework.Status) {
	c := s.plugin.Ask(ctx, abi.SchedulingScore, "Pod", newDocument(p, n))
	if c == nil {
		return 0, nil
	}
	var score int64
	if c.Err == nil {
		var err error
		if score, err = abi.ParseScore(c.Answer); err != nil {
			c.Fail(err)
		}
	}
	c.Record(untraced(ctx), abi.SchedulingScore, point.Outcome{Decision: "score"})
	if c.Err != nil {
		return 0, failed(c, manifest.Ignore)
	}
	if c.Mode() != manifest.Enforce {
		return 0, nil
	}
	return score, nil
}
