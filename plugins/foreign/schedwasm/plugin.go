// SPDX-License-Identifier: Apache-2.0

package schedwasm

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// Plugin is a guest at the points of scheduling.
type Plugin struct {
	plugin *point.Plugin

	mu     sync.Mutex
	cycles map[string]*cycle // by the pod's UID
}

// NewPlugin makes the adapter of a plugin whose module speaks this ABI; nil where
// it does not. before is the adapter made earlier, which stays with its cycles.
func NewPlugin(p *point.Plugin, before framework.Plugin) framework.Plugin {
	v := p.Current()
	if v == nil {
		return nil
	}
	if _, ok := v.Guest.(*Guest); !ok {
		return nil
	}
	if a, ok := before.(*Plugin); ok {
		return a
	}
	return &Plugin{plugin: p, cycles: map[string]*cycle{}}
}

// cycle is one pod on its way, with the instance that it has to itself.
type cycle struct {
	version *point.Version
	guest   *Guest
	pod     []byte

	mu       sync.Mutex // one call at a time
	instance *host.Instance
	err      error // why the instance is gone
	closed   bool

	reserved bool // of Plugin.mu: it lasts beyond the next cycle's beginning
	until    time.Time
	waits    bool
	rejected atomic.Bool
}

// Name implements framework.Plugin.
func (a *Plugin) Name() string { return a.plugin.Name() }

func (a *Plugin) guest() *Guest {
	if v := a.plugin.Current(); v != nil {
		g, _ := v.Guest.(*Guest)
		return g
	}
	return nil
}

// Takes implements framework.Selective. Some points are taken for their own sake:
// a cycle begins and ends there.
func (a *Plugin) Takes(at framework.Point) bool {
	g := a.guest()
	if g == nil {
		return false
	}
	switch at {
	case framework.AtPreFilter, framework.AtReserve, framework.AtPostBind:
		return true
	case framework.AtFilter:
		return g.has["filter"]
	case framework.AtPostFilter:
		return g.has["postfilter"]
	case framework.AtPreScore:
		return g.has["prescore"]
	case framework.AtScore:
		return g.has["score"]
	case framework.AtPermit:
		return g.has["permit"]
	case framework.AtPreBind:
		return g.has["prebind"]
	case framework.AtBind:
		return g.has["bind"]
	case framework.AtPreEnqueue, framework.AtQueueSort, framework.AtJudge: // such guests know nothing of them
	}
	return false
}

// Hints implements framework.Hints: what the guest's enqueue named.
func (a *Plugin) Hints() framework.ClusterEvent {
	if g := a.guest(); g != nil {
		return g.hints
	}
	return framework.AnyEvent
}

// Close gives instances back after a swap: a cycle that has not chosen a node yet
// fails, and the pod is tried again with the new version; a pod that has one
// keeps its instance until it is bound. Where the plugin is gone, all end.
func (a *Plugin) Close() {
	gone := a.plugin.Current() == nil
	a.mu.Lock()
	ended := map[string]*cycle{}
	for uid, c := range a.cycles {
		if gone || !c.reserved {
			ended[uid] = c
		}
	}
	if gone {
		a.cycles = map[string]*cycle{}
	}
	a.mu.Unlock()
	for uid, c := range ended {
		c.end(uid)
	}
}

// end gives the instance back to the pool.
func (c *cycle) end(uid string) {
	c.guest.let(uid)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.instance != nil {
		*sessionOf(c.instance) = session{}
		c.version.Module.Release(c.instance, nil)
	}
	c.instance, c.closed = nil, true
}

// begin starts a pod's cycle, and ends those before it that came to nothing.
func (a *Plugin) begin(p *framework.PodInfo) (*cycle, error) {
	v := a.plugin.Current()
	if v == nil {
		return nil, point.ErrNotLoaded
	}
	g, ok := v.Guest.(*Guest)
	if !ok {
		return nil, point.ErrNotLoaded
	}
	pod, err := p.Pod.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode the pod: %w", err)
	}
	c := &cycle{version: v, guest: g, pod: pod}
	uid := string(p.Pod.UID)
	stale := map[string]*cycle{}
	a.mu.Lock()
	for id, old := range a.cycles {
		if !old.reserved || id == uid {
			stale[id] = old
		}
	}
	for id := range stale {
		delete(a.cycles, id)
	}
	a.cycles[uid] = c
	a.mu.Unlock()
	for id, old := range stale {
		old.end(id)
	}
	return c, nil
}

func (a *Plugin) of(p *framework.PodInfo) *cycle {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cycles[string(p.Pod.UID)]
}

func (a *Plugin) reserve(p *framework.PodInfo) *cycle {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.cycles[string(p.Pod.UID)]
	if c != nil {
		c.reserved = true
	}
	return c
}

// finish ends a pod's cycle.
func (a *Plugin) finish(p *framework.PodInfo) {
	uid := string(p.Pod.UID)
	a.mu.Lock()
	c := a.cycles[uid]
	delete(a.cycles, uid)
	a.mu.Unlock()
	if c != nil {
		c.end(uid)
	}
}

// turn is one call of an export.
type turn struct {
	export   string
	point    abi.Point
	fallback manifest.FailurePolicy
	prepare  func(s *session)
}

// ask calls an export in the pod's instance. ok is false where nothing is to be
// made of the answer: the plugin takes no part, only looks on, or failed and is passed over.
func (a *Plugin) ask(ctx context.Context, p *framework.PodInfo, t turn) (value uint64, ans answer, ok bool, st *framework.Status) {
	c := a.of(p)
	if c == nil || !c.guest.has[t.export] {
		return 0, answer{}, false, nil
	}
	call := &point.Call{Plugin: a.plugin, Version: c.version, Hook: c.version.Hook(t.point)}
	start := time.Now()
	call.Err = c.version.Module.Guard(ctx, func() (err error) {
		value, ans, call.Usage, err = c.run(ctx, t)
		return err
	})
	call.Usage.Duration = time.Since(start)
	outcome := point.Outcome{Decision: decision(t.export, value), Message: ans.reason, Span: string(t.point)}
	if t.export == "filter" || t.export == "score" { // there would be thousands of spans
		ctx = oteltrace.ContextWithSpanContext(ctx, oteltrace.SpanContext{})
	}
	call.Record(ctx, t.point, outcome)
	switch {
	case call.Mode() != manifest.Enforce:
		return 0, answer{}, false, nil
	case call.Err != nil && call.Policy(t.fallback) == manifest.Ignore:
		return 0, answer{}, false, nil
	case call.Err != nil:
		return 0, answer{}, false, framework.AsStatus(call.Err)
	}
	return value, ans, true, nil
}

func decision(export string, value uint64) string {
	code := uint32(value)
	if export == "permit" {
		code = uint32(value >> 32)
	}
	switch code {
	case 0:
		return "allow"
	case 4:
		return "wait"
	case 5:
		return "no opinion"
	}
	return "deny"
}

// run calls in the cycle's instance, which the first call takes.
func (c *cycle) run(ctx context.Context, t turn) (value uint64, ans answer, u host.Usage, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, ans, u, c.err
	}
	if c.closed {
		return 0, ans, u, host.ErrClosed
	}
	if c.instance == nil {
		if c.instance, err = c.version.Module.Lease(ctx); err != nil {
			return 0, ans, u, err
		}
		*sessionOf(c.instance) = session{pod: c.pod}
	}
	s := sessionOf(c.instance)
	if t.prepare != nil {
		t.prepare(s)
	}
	s.answer = answer{}
	u, err = c.instance.Account(ctx, func() error {
		value, err = c.instance.Run(t.export)
		return err
	})
	if err != nil {
		c.version.Module.Release(c.instance, err)
		c.instance, c.err = nil, err
		return 0, ans, u, err
	}
	return value, s.answer, u, nil
}

// PreFilter implements framework.PreFilter: a cycle begins.
func (a *Plugin) PreFilter(ctx context.Context, _ *framework.State, p *framework.PodInfo,
	snap *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	c, err := a.begin(p)
	if err != nil {
		return nil, framework.AsStatus(err)
	}
	// The snapshot is the cycle's, also where the guest has no prefilter.
	prepare := func(s *session) { s.snapshot = snap }
	if !c.guest.has["prefilter"] {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.instance, err = c.version.Module.Lease(ctx); err != nil {
			return nil, a.unable(c, err)
		}
		*sessionOf(c.instance) = session{pod: c.pod, snapshot: snap}
		return nil, nil
	}
	value, ans, ok, st := a.ask(ctx, p, turn{"prefilter", abi.SchedulingPreFilter, manifest.Fail, prepare})
	if !ok {
		return nil, st
	}
	if st := status(uint32(value), ans.reason); st != nil {
		return nil, st
	}
	if len(ans.names) == 0 {
		return nil, nil
	}
	narrowed := map[string]bool{}
	for _, n := range ans.names {
		narrowed[n] = true
	}
	return narrowed, nil
}

// unable is a plugin that could not begin, by the failure policy.
func (a *Plugin) unable(c *cycle, err error) *framework.Status {
	c.err = err
	if c.version.Entry.FailurePolicy == manifest.Ignore || c.version.Entry.Mode != manifest.Enforce {
		return nil
	}
	return framework.AsStatus(err)
}

// AddPod and RemovePod implement framework.PreFilterExtensions.
func (a *Plugin) AddPod(ctx context.Context, _ *framework.State, p, added *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	return a.changed(ctx, "addpod", p, added, n)
}

// RemovePod implements framework.PreFilterExtensions.
func (a *Plugin) RemovePod(ctx context.Context, _ *framework.State, p, removed *framework.PodInfo,
	n *framework.NodeInfo,
) *framework.Status {
	return a.changed(ctx, "removepod", p, removed, n)
}

func (a *Plugin) changed(ctx context.Context, export string, p, other *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	target, err := other.Pod.Marshal()
	if err != nil {
		return framework.AsStatus(fmt.Errorf("encode the pod: %w", err))
	}
	return a.simple(ctx, export, abi.SchedulingPreFilter, manifest.Fail, p, func(s *session) { s.node, s.target = n.Node.Name, target })
}

// simple calls an export that answers a status.
func (a *Plugin) simple(ctx context.Context, export string, at abi.Point, fallback manifest.FailurePolicy, p *framework.PodInfo,
	prepare func(*session),
) *framework.Status {
	value, ans, ok, st := a.ask(ctx, p, turn{export, at, fallback, prepare})
	if !ok {
		return st
	}
	return status(uint32(value), ans.reason)
}

func on(node string) func(*session) { return func(s *session) { s.node = node } }

// Filter implements framework.Filter.
func (a *Plugin) Filter(ctx context.Context, _ *framework.State, p *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	return a.simple(ctx, "filter", abi.SchedulingFilter, manifest.Fail, p, on(n.Node.Name))
}

// PostFilter implements framework.PostFilter: the guest may nominate a node, and evicts nobody.
func (a *Plugin) PostFilter(ctx context.Context, _ *framework.State, p *framework.PodInfo, snap *framework.Snapshot,
	failed map[string]*framework.Status, _ framework.Simulator,
) (*framework.Nomination, *framework.Status) {
	codes := map[framework.Code]int32{
		framework.Error: 1, framework.Unschedulable: 2, framework.Unresolvable: 3, framework.Wait: 4,
		framework.Skip: 5,
	}
	statuses := map[string]int32{}
	for name, st := range failed {
		statuses[name] = codes[st.Code]
	}
	value, ans, ok, st := a.ask(ctx, p,
		turn{"postfilter", abi.SchedulingPostFilter, manifest.Ignore, func(s *session) { s.statuses = statuses }})
	if !ok {
		return nil, st
	}
	if st := status(uint32(value), ans.reason); st != nil {
		return nil, st
	}
	const override = 1
	if value>>32 != override {
		return nil, framework.NewStatus(framework.Unschedulable)
	}
	if ans.nominated != "" && snap.Node(ans.nominated) == nil {
		return nil, framework.AsStatus(fmt.Errorf("it nominated node %q, which does not exist", ans.nominated))
	}
	return &framework.Nomination{Node: ans.nominated}, nil
}

// PreScore implements framework.PreScore.
func (a *Plugin) PreScore(ctx context.Context, _ *framework.State, p *framework.PodInfo, nodes []*framework.NodeInfo) *framework.Status {
	return a.simple(ctx, "prescore", abi.SchedulingPreScore, manifest.Ignore, p, func(s *session) { s.filtered = nodes })
}

// Score implements framework.Score.
func (a *Plugin) Score(ctx context.Context, _ *framework.State, p *framework.PodInfo, n *framework.NodeInfo) (int64, *framework.Status) {
	value, ans, ok, st := a.ask(ctx, p, turn{"score", abi.SchedulingScore, manifest.Ignore, on(n.Node.Name)})
	if !ok {
		return 0, st
	}
	return int64(int32(value >> 32)), status(uint32(value), ans.reason)
}

// Normalize implements framework.Normalize; where the guest sets nothing, the scores stand.
func (a *Plugin) Normalize(ctx context.Context, _ *framework.State, p *framework.PodInfo, nodes []*framework.NodeInfo,
	scores []int64,
) *framework.Status {
	byName := map[string]int64{}
	for i, n := range nodes {
		byName[n.Node.Name] = scores[i]
	}
	value, ans, ok, st := a.ask(ctx, p,
		turn{"normalizescore", abi.SchedulingNormalize, manifest.Ignore, func(s *session) { s.scores = byName }})
	if !ok {
		return st
	}
	if st := status(uint32(value), ans.reason); st != nil {
		return st
	}
	for i, n := range nodes {
		if better, set := ans.normalized[n.Node.Name]; set {
			scores[i] = better
		}
	}
	return nil
}

// Reserve implements framework.Reserve: from here the cycle lasts until the pod is bound.
func (a *Plugin) Reserve(ctx context.Context, _ *framework.State, p *framework.PodInfo, node string) *framework.Status {
	a.reserve(p)
	return a.simple(ctx, "reserve", abi.SchedulingReserve, manifest.Fail, p, on(node))
}

// Unreserve implements framework.Reserve; the cycle ends.
func (a *Plugin) Unreserve(ctx context.Context, _ *framework.State, p *framework.PodInfo, node string) {
	_, _, _, _ = a.ask(ctx, p, turn{"unreserve", abi.SchedulingUnreserve, manifest.Ignore, on(node)})
	a.finish(p)
}

// wakes is how often a pod that waits looks whether it was rejected.
const wakes = 200 * time.Millisecond

// Permit implements framework.Permit. A pod that the guest holds back waits until
// the guest rejects it, or its time is over, which rejects it too.
func (a *Plugin) Permit(ctx context.Context, _ *framework.State, p *framework.PodInfo, node string) (*framework.Status, time.Duration) {
	c := a.of(p)
	if c == nil {
		return nil, 0
	}
	uid := string(p.Pod.UID)
	if !c.waits {
		value, ans, ok, st := a.ask(ctx, p, turn{"permit", abi.SchedulingPermit, manifest.Fail, on(node)})
		if !ok {
			return st, 0
		}
		st = status(uint32(value>>32), ans.reason)
		if st == nil || st.Code != framework.Wait {
			return st, 0
		}
		c.waits, c.until = true, time.Now().Add(time.Duration(uint32(value))*time.Millisecond)
		c.guest.hold(uid, c)
	}
	left := time.Until(c.until)
	switch {
	case c.rejected.Load():
		c.guest.let(uid)
		return framework.NewStatus(framework.Unschedulable, fmt.Sprintf("plugin %s rejected the pod while it waited", a.Name())), 0
	case left <= 0:
		c.guest.let(uid)
		return framework.NewStatus(framework.Unschedulable, fmt.Sprintf("rejected due to timeout after waiting at plugin %s", a.Name())), 0
	}
	return framework.NewStatus(framework.Wait), min(left, wakes)
}

// PreBind implements framework.PreBind.
func (a *Plugin) PreBind(ctx context.Context, _ *framework.State, p *framework.PodInfo, node string) *framework.Status {
	return a.simple(ctx, "prebind", abi.SchedulingPreBind, manifest.Fail, p, on(node))
}

// Bind implements framework.Bind. A guest has no means to bind: where it answers
// success the scheduler binds for it.
func (a *Plugin) Bind(ctx context.Context, _ *framework.State, p *framework.PodInfo, node string) (framework.Binding, *framework.Status) {
	value, ans, ok, st := a.ask(ctx, p, turn{"bind", abi.SchedulingBind, manifest.Fail, on(node)})
	if st != nil {
		return framework.Binding{}, st
	}
	if !ok {
		return framework.Binding{}, framework.NewStatus(framework.Skip)
	}
	return framework.Binding{}, status(uint32(value), strings.TrimSpace(ans.reason))
}

// PostBind implements framework.PostBind; the cycle ends.
func (a *Plugin) PostBind(ctx context.Context, _ *framework.State, p *framework.PodInfo, node string) {
	_, _, _, _ = a.ask(ctx, p, turn{"postbind", abi.SchedulingPostBind, manifest.Ignore, on(node)})
	a.finish(p)
}
