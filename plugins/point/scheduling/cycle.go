// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// ask is one turn at a point: call, understand, record. It is nil where the
// plugin takes no part, only looks on, or failed and is passed over; st is its
// failure otherwise. decide reads the answer and says what it came to.
func (a *Plugin) ask(ctx context.Context, pt abi.Point, doc *cycleDocument,
	decide func(answer []byte) (point.Outcome, error),
) (c *point.Call, st *framework.Status) {
	c = a.plugin.Ask(ctx, pt, "Pod", doc)
	if c == nil {
		return nil, nil
	}
	var outcome point.Outcome
	if c.Err == nil {
		var err error
		if outcome, err = decide(c.Answer); err != nil {
			c.Fail(err)
		}
	}
	outcome.Span = string(pt)
	c.Record(ctx, pt, outcome)
	switch {
	case c.Mode() != manifest.Enforce:
		return nil, nil
	case c.Err != nil:
		return nil, failed(c, fallback(pt))
	}
	return c, nil
}

// gate asks a hook that lets a pod go on or not.
func (a *Plugin) gate(ctx context.Context, pt abi.Point, doc *cycleDocument) *framework.Status {
	var answer abi.GateAnswer
	c, st := a.ask(ctx, pt, doc, func(b []byte) (o point.Outcome, err error) {
		answer, err = abi.ParseGate(b)
		return gateOutcome(&answer), err
	})
	if c == nil || !answer.Refused() {
		return st
	}
	return a.held(answer.Reasons)
}

func gateOutcome(a *abi.GateAnswer) point.Outcome {
	if a.Refused() {
		return point.Outcome{Decision: "deny", Message: strings.Join(a.Reasons, ", ")}
	}
	return point.Outcome{Decision: "allow"}
}

func (a *Plugin) held(reasons []string) *framework.Status {
	if len(reasons) == 0 {
		reasons = []string{fmt.Sprintf("plugin %s holds the pod back", a.Name())}
	}
	return framework.NewStatus(framework.Unschedulable, reasons...)
}

// PreEnqueue implements framework.PreEnqueue.
func (a *Plugin) PreEnqueue(ctx context.Context, p *framework.PodInfo) *framework.Status {
	return a.gate(ctx, abi.SchedulingPreEnqueue, a.newCycleDocument(nil, p))
}

// Rank implements framework.QueueSort.
func (a *Plugin) Rank(ctx context.Context, p *framework.PodInfo, added time.Time) (int64, *framework.Status) {
	doc := a.newCycleDocument(nil, p)
	doc.Added = added.UTC().Format(time.RFC3339)
	return a.rank(ctx, doc)
}

func (a *Plugin) rank(ctx context.Context, doc *cycleDocument) (int64, *framework.Status) {
	var rank int64
	c, st := a.ask(ctx, abi.SchedulingQueueSort, doc, func(b []byte) (o point.Outcome, err error) {
		rank, err = abi.ParseRank(b)
		return point.Outcome{Decision: "rank"}, err
	})
	if c == nil {
		return 0, st
	}
	return rank, nil
}

// PreFilter implements framework.PreFilter.
func (a *Plugin) PreFilter(ctx context.Context, s *framework.State, p *framework.PodInfo,
	snap *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	doc := a.newCycleDocument(s, p)
	if a.reads(abi.SchedulingPreFilter, "nodes") {
		doc.Nodes = names(snap.Nodes)
	}
	a.inCycle(abi.SchedulingPreFilter, doc, s, p, snap)
	var answer abi.PreFilterAnswer
	c, st := a.ask(ctx, abi.SchedulingPreFilter, doc, func(b []byte) (o point.Outcome, err error) {
		answer, err = abi.ParsePreFilter(b)
		if answer.Refused() {
			return point.Outcome{Decision: "deny", Message: strings.Join(answer.Reasons, ", ")}, err
		}
		return point.Outcome{Decision: "allow"}, err
	})
	switch {
	case c == nil:
		return nil, st
	case answer.Refused():
		return nil, a.refusal(&answer.FilterAnswer)
	}
	if st := a.keep(s, answer.State); st != nil {
		return nil, st
	}
	if answer.Skip {
		return nil, framework.NewStatus(framework.Skip)
	}
	if answer.Nodes == nil {
		return nil, nil
	}
	narrowed := map[string]bool{}
	for _, n := range answer.Nodes {
		narrowed[n] = true
	}
	return narrowed, nil
}

// keep puts what a Pre hook worked out where the plugin's later hooks of the cycle see it.
func (a *Plugin) keep(s *framework.State, raw json.RawMessage) *framework.Status {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	v, err := abi.Decode(raw)
	if err != nil {
		return framework.AsStatus(fmt.Errorf("read its state: %w", err))
	}
	s.Set(stateKey{a.Name()}, v)
	return nil
}

func names(nodes []*framework.NodeInfo) []string {
	out := make([]string, len(nodes))
	for i, n := range nodes {
		out[i] = n.Node.Name
	}
	return out
}

// PostFilter implements framework.PostFilter. What a plugin proposes is checked:
// pods make room only for those of higher priority, and the room has to be enough.
func (a *Plugin) PostFilter(ctx context.Context, s *framework.State, p *framework.PodInfo, snap *framework.Snapshot,
	refused map[string]*framework.Status, sim framework.Simulator,
) (*framework.Nomination, *framework.Status) {
	doc := a.newCycleDocument(s, p)
	if a.reads(abi.SchedulingPostFilter, "failed") {
		doc.Failed = failures(snap, refused)
	}
	var answer abi.PostFilterAnswer
	var nomination *framework.Nomination
	c, st := a.ask(ctx, abi.SchedulingPostFilter, doc, func(b []byte) (o point.Outcome, err error) {
		if answer, err = abi.ParsePostFilter(b); err == nil && len(answer.Reclaim) > 0 {
			err = errors.New("it reclaims from groups, and its manifest has none")
		}
		if err != nil || answer.Nominated == "" {
			return point.Outcome{Decision: "no opinion"}, err
		}
		nomination, err = nominated(&answer, p, snap)
		return point.Outcome{Decision: "nominate", Message: fmt.Sprintf("node %s, less %d pods", answer.Nominated, len(answer.Evict))}, err
	})
	if c == nil {
		return nil, st
	}
	if nomination == nil {
		return nil, framework.NewStatus(framework.Unschedulable, answer.Reasons...)
	}
	if st := sim.Fits(ctx, snap.Node(nomination.Node), nomination.Victims); !st.IsSuccess() {
		return nil, framework.NewStatus(framework.Unschedulable,
			fmt.Sprintf("plugin %s nominated node %s, where the pod does not fit: %s", a.Name(), nomination.Node, strings.Join(st.Reasons, ", ")))
	}
	return nomination, nil
}

// failures lists the nodes that were left out, in the order of the snapshot.
func failures(snap *framework.Snapshot, refused map[string]*framework.Status) []failedNode {
	var out []failedNode
	for _, n := range snap.Nodes {
		if st := refused[n.Node.Name]; st != nil {
			out = append(out, failedNode{n.Node.Name, st.Plugin, st.Reasons, st.Code == framework.Unresolvable})
		}
	}
	return out
}

// nominated turns an answer into core's form.
func nominated(answer *abi.PostFilterAnswer, p *framework.PodInfo, snap *framework.Snapshot) (*framework.Nomination, error) {
	node := snap.Node(answer.Nominated)
	if node == nil {
		return nil, fmt.Errorf("it nominated node %q, which does not exist", answer.Nominated)
	}
	n := &framework.Nomination{Node: answer.Nominated}
	for _, e := range answer.Evict {
		i := slices.IndexFunc(node.Pods, func(o *framework.PodInfo) bool {
			return o.Pod.Namespace == e.Namespace && o.Pod.Name == e.Name && (e.UID == "" || e.UID == string(o.Pod.UID))
		})
		if i < 0 {
			return nil, fmt.Errorf("it evicts pod %s/%s, which is not on node %s", e.Namespace, e.Name, answer.Nominated)
		}
		victim := node.Pods[i]
		if priority(victim) >= priority(p) {
			return nil, fmt.Errorf("it evicts pod %s/%s of priority %d for one of priority %d: only pods of lower priority make room", e.Namespace, e.Name, priority(victim), priority(p))
		}
		n.Victims = append(n.Victims, victim)
	}
	return n, nil
}

func priority(p *framework.PodInfo) int32 {
	if p.Pod.Spec.Priority != nil {
		return *p.Pod.Spec.Priority
	}
	return 0
}

// PreScore implements framework.PreScore.
func (a *Plugin) PreScore(ctx context.Context, s *framework.State, p *framework.PodInfo, nodes []*framework.NodeInfo) *framework.Status {
	doc := a.newCycleDocument(s, p)
	if a.reads(abi.SchedulingPreScore, "nodes") {
		doc.Nodes = names(nodes)
	}
	var answer abi.PreFilterAnswer
	c, st := a.ask(ctx, abi.SchedulingPreScore, doc, func(b []byte) (o point.Outcome, err error) {
		answer, err = abi.ParsePreFilter(b)
		return point.Outcome{Decision: "allow"}, err
	})
	if c == nil {
		return st
	}
	if st := a.keep(s, answer.State); st != nil {
		return st
	}
	if answer.Skip {
		return framework.NewStatus(framework.Skip)
	}
	return nil
}

// Normalize implements framework.Normalize.
func (a *Plugin) Normalize(ctx context.Context, s *framework.State, p *framework.PodInfo, nodes []*framework.NodeInfo,
	scores []int64,
) *framework.Status {
	if v := a.plugin.Current(); v == nil || v.Hook(abi.SchedulingNormalize) == nil {
		return nil
	}
	doc := a.newCycleDocument(s, p)
	doc.Nodes, doc.Scores = names(nodes), scores
	var better []int64
	c, st := a.ask(ctx, abi.SchedulingNormalize, doc, func(b []byte) (o point.Outcome, err error) {
		better, err = abi.ParseScores(b, len(nodes))
		return point.Outcome{Decision: "score"}, err
	})
	if c != nil && better != nil {
		copy(scores, better)
	}
	return st
}

// Reserve implements framework.Reserve.
func (a *Plugin) Reserve(ctx context.Context, s *framework.State, p *framework.PodInfo, node string) *framework.Status {
	return a.gate(ctx, abi.SchedulingReserve, a.chosen(s, p, node))
}

// Unreserve implements framework.Reserve.
func (a *Plugin) Unreserve(ctx context.Context, s *framework.State, p *framework.PodInfo, node string) {
	a.inform(ctx, abi.SchedulingUnreserve, a.chosen(s, p, node))
}

func (a *Plugin) chosen(s *framework.State, p *framework.PodInfo, node string) *cycleDocument {
	doc := a.newCycleDocument(s, p)
	doc.NodeName = node
	return doc
}

// inform asks a hook whose answer is of no matter.
func (a *Plugin) inform(ctx context.Context, pt abi.Point, doc *cycleDocument) {
	_, _ = a.ask(ctx, pt, doc, func([]byte) (point.Outcome, error) { return point.Outcome{Decision: "told"}, nil })
}

// waitKey is where the moment stands at which a plugin's permit was asked first.
type waitKey struct{ plugin string }

// Permit implements framework.Permit.
func (a *Plugin) Permit(ctx context.Context, s *framework.State, p *framework.PodInfo, node string) (*framework.Status, time.Duration) {
	doc := a.chosen(s, p, node)
	since, asked := s.Get(waitKey{a.Name()}).(time.Time)
	if !asked {
		since = s.Now()
		s.Set(waitKey{a.Name()}, since)
	}
	doc.WaitedSeconds = s.Now().Sub(since).Seconds()
	var answer abi.PermitAnswer
	c, st := a.ask(ctx, abi.SchedulingPermit, doc, func(b []byte) (o point.Outcome, err error) {
		answer, err = abi.ParsePermit(b)
		return point.Outcome{Decision: answer.Decision, Message: strings.Join(answer.Reasons, ", ")}, err
	})
	switch {
	case c == nil:
		return st, 0
	case answer.Decision == "deny":
		return a.held(answer.Reasons), 0
	case answer.Decision == "wait":
		return framework.NewStatus(framework.Wait, answer.Reasons...), time.Duration(answer.WaitSeconds * float64(time.Second))
	}
	return nil, 0
}

// PreBind implements framework.PreBind.
func (a *Plugin) PreBind(ctx context.Context, s *framework.State, p *framework.PodInfo, node string) *framework.Status {
	return a.gate(ctx, abi.SchedulingPreBind, a.chosen(s, p, node))
}

// Bind implements framework.Bind: the scheduler binds, with the annotations that
// the plugin answers. An empty answer leaves the binding to others.
func (a *Plugin) Bind(ctx context.Context, s *framework.State, p *framework.PodInfo, node string) (framework.Binding, *framework.Status) {
	var answer abi.BindAnswer
	c, st := a.ask(ctx, abi.SchedulingBind, a.chosen(s, p, node), func(b []byte) (o point.Outcome, err error) {
		answer, err = abi.ParseBind(b)
		return gateOutcome(&answer.GateAnswer), err
	})
	switch {
	case st != nil:
		return framework.Binding{}, st
	case c == nil || len(c.Answer) == 0:
		return framework.Binding{}, framework.NewStatus(framework.Skip)
	case answer.Refused():
		return framework.Binding{}, a.held(answer.Reasons)
	}
	return framework.Binding{Annotations: answer.Annotations}, nil
}

// PostBind implements framework.PostBind.
func (a *Plugin) PostBind(ctx context.Context, s *framework.State, p *framework.PodInfo, node string) {
	a.inform(ctx, abi.SchedulingPostBind, a.chosen(s, p, node))
}
