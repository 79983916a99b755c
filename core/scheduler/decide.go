package scheduler

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Decision is the outcome of one cycle for one pod.
type Decision struct {
	// Node that the pod should run on; "" where there is none.
	Node string
	// State of the cycle, for the points that follow.
	State *framework.State
	// Nomination by a PostFilter, where Node is "": nil = none.
	Nomination *framework.Nomination
	// PostFilter is why no room can be made, in the words of those who tried.
	PostFilter []string
	// Statuses of the nodes that were left out, by name; Whole is set instead when
	// the pod was refused before any node was looked at.
	Statuses map[string]*framework.Status
	Whole    *framework.Status
	// Evaluated nodes of Total; Feasible ones among them.
	Total, Evaluated int
	Feasible         []*framework.NodeInfo
	// Scores by plugin, weighted, in the order of Feasible; nil where one node was left.
	Scores map[string][]int64
}

// Fatal is the error of a plugin that could not do its work, if there was one.
func (d *Decision) Fatal() *framework.Status {
	if d.Whole != nil && d.Whole.Code == framework.Error {
		return d.Whole
	}
	return nil
}

// RefusedBy names the plugins that left nodes out.
func (d *Decision) RefusedBy() []string {
	names := map[string]bool{}
	if d.Whole != nil && d.Whole.Plugin != "" {
		names[d.Whole.Plugin] = true
	}
	for _, st := range d.Statuses {
		if st.Plugin != "" {
			names[st.Plugin] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Message says why no node fits, in upstream's words:
// "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable."
func (d *Decision) Message() string {
	var b strings.Builder
	fmt.Fprintf(&b, "0/%d nodes are available", d.Total)
	if d.Whole != nil {
		if r := strings.Join(d.Whole.Reasons, ", "); r != "" {
			b.WriteString(": " + r)
		}
		b.WriteString(".")
		return b.String()
	}
	count := map[string]int{}
	for _, st := range d.Statuses {
		for _, r := range st.Reasons {
			count[r]++
		}
	}
	parts := make([]string, 0, len(count))
	for reason, n := range count {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(parts)
	if len(parts) > 0 {
		b.WriteString(": " + strings.Join(parts, ", "))
	}
	b.WriteString(".")
	for _, why := range d.PostFilter {
		b.WriteString(" " + why)
	}
	return b.String()
}

// observer is told how long the parts of a decision took; it may be nil.
type observer interface {
	begin(ctx context.Context, part string) (context.Context, func(*Decision))
}

// promises are what nominations mean for one cycle.
type promises struct {
	node  string                          // that the pod itself was promised; "" = none
	ahead map[string][]*framework.PodInfo // by node, pods whose room it may not take
}

// decide finds the node for a pod on a snapshot. It changes nothing outside.
// start is where the search begins, so that one cycle goes on where the last one
// stopped; workers bounds how many goroutines judge nodes.
func (c *profile) decide(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot, with promises, start, workers int, o observer) *Decision {
	d := &Decision{State: framework.NewState(), Total: len(snap.Nodes), Statuses: map[string]*framework.Status{}}
	filterCtx, end := o.begin(ctx, "filter")
	s := c.filter(filterCtx, p, snap, with, start, workers, d)
	end(d)
	if d.Whole != nil {
		return d
	}
	if len(d.Feasible) == 0 {
		c.postFilter(ctx, p, snap, s, d)
		return d
	}
	if len(d.Feasible) == 1 && len(s.judges) == 0 {
		d.Node = d.Feasible[0].Node.Name
		return d
	}
	scoreCtx, end := o.begin(ctx, "score")
	totals := c.score(scoreCtx, p, snap, s.judges, workers, d)
	if d.Whole == nil {
		d.Node = d.Feasible[best(totals)].Node.Name
	}
	end(d)
	return d
}

// judged is one Judge's answer for all nodes of the snapshot.
type judged struct {
	name     string
	weight   int64
	verdicts []framework.Verdict
}

func (c *profile) filter(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot, with promises, start, workers int, d *Decision) *search {
	if len(snap.Nodes) == 0 {
		d.Whole = framework.NewStatus(framework.Unschedulable, "no nodes available to schedule pods")
		return nil
	}
	s := &search{profile: c, ahead: with.ahead, start: start, workers: workers}
	end := c.metrics.point(c.name, "PreFilter")
	s.names, s.filters = c.preFilter(ctx, p, snap, d)
	end(d.Whole)
	if d.Whole != nil {
		return nil
	}
	var st *framework.Status
	if s.judges, st = c.judge(ctx, p, snap); st == nil && len(with.ahead) > 0 && len(s.judges) > 0 {
		s.judgesAhead, st = c.judge(ctx, p, snapshotWith(snap, with.ahead))
	}
	if st != nil {
		d.Whole = st
		return nil
	}
	// The node that was promised is looked at alone first: the room there was made for this pod.
	if at, ok := snap.Index[with.node]; ok {
		if s.judge(ctx, d.State, p, snap.Nodes[at], at).IsSuccess() {
			d.Evaluated, d.Feasible = 1, []*framework.NodeInfo{snap.Nodes[at]}
			return s
		}
	}
	end = c.metrics.point(c.name, "Filter")
	c.filterNodes(ctx, p, snap, s, d)
	end(d.Whole)
	c.metrics.askedFilters(c.name, s.filters, d)
	return s
}

// snapshotWith is the snapshot with further pods on its nodes. It has a generation
// of its own, by which those who keep a table of the nodes see that it is another.
func snapshotWith(snap *framework.Snapshot, pods map[string][]*framework.PodInfo) *framework.Snapshot {
	c := *snap
	c.Nodes, c.Generation = slices.Clone(snap.Nodes), -1<<32
	for name, more := range pods {
		at, ok := snap.Index[name]
		if !ok {
			continue
		}
		n := snap.Nodes[at]
		for _, p := range more {
			n = n.WithPod(p)
		}
		changed := *n
		changed.Generation = -1 << 32
		c.Nodes[at] = &changed
	}
	return &c
}

// judge has every Judge answer for all nodes.
func (c *profile) judge(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot) ([]judged, *framework.Status) {
	var all []judged
	for _, j := range c.judges {
		verdicts, st := j.plugin.Judge(ctx, p, snap)
		if st.IsSuccess() && len(verdicts) != len(snap.Nodes) {
			st = framework.AsStatus(fmt.Errorf("answered for %d nodes instead of %d", len(verdicts), len(snap.Nodes)))
		}
		if !st.IsSuccess() {
			if st.Code == framework.Skip {
				continue
			}
			return nil, by(st, j.plugin)
		}
		all = append(all, judged{j.plugin.Name(), j.weight, verdicts})
	}
	return all, nil
}

func by(st *framework.Status, p framework.Plugin) *framework.Status {
	named := *st
	named.Plugin = p.Name()
	if named.Code == framework.Error {
		named.Reasons = []string{fmt.Sprintf("plugin %s: %s", p.Name(), strings.Join(st.Reasons, ", "))}
	}
	return &named
}

// preFilter returns the names that the search is narrowed to (nil = all) and the
// filters that are left in.
func (c *profile) preFilter(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot, d *Decision) (map[string]bool, []framework.Filter) {
	var names map[string]bool
	skipped := map[string]bool{}
	for _, pre := range c.preFilters {
		narrowed, st := pre.PreFilter(ctx, d.State, p, snap)
		if st.IsSuccess() || st.Code != framework.Skip {
			c.metrics.asked(c.name, "PreFilter", pre.Name(), 1)
		}
		switch {
		case !st.IsSuccess() && st.Code == framework.Skip:
			skipped[pre.Name()] = true
		case !st.IsSuccess():
			d.Whole = by(st, pre)
			return nil, nil
		case narrowed != nil && names == nil:
			names = narrowed
		case narrowed != nil:
			both := map[string]bool{}
			for name := range narrowed {
				if names[name] {
					both[name] = true
				}
			}
			names = both
		}
	}
	var filters []framework.Filter
	for _, f := range c.filters {
		if !skipped[f.Name()] {
			filters = append(filters, f)
		}
	}
	return names, filters
}

// search is the look for feasible nodes in one cycle.
type search struct {
	profile     *profile
	names       map[string]bool
	filters     []framework.Filter
	judges      []judged
	judgesAhead []judged // with the pods of ahead on their nodes
	ahead       map[string][]*framework.PodInfo
	start       int
	workers     int
}

// enough is how many feasible nodes end a search: looking at all of thousands
// would cost much and gain little. The rule is upstream's.
func enough(nodes int) int {
	if nodes < 100 {
		return nodes
	}
	percent := max(50-nodes/125, 5)
	return max(nodes*percent/100, 100)
}

func (c *profile) filterNodes(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot, s *search, d *Decision) {
	n := len(snap.Nodes)
	statuses := make([]*framework.Status, n)
	looked := make([]bool, n)
	var feasible, evaluated atomic.Int64
	wanted := int64(enough(n))
	parallel(n, s.workers, func(i int) bool {
		if feasible.Load() >= wanted || ctx.Err() != nil {
			return false
		}
		at := (s.start + i) % n
		looked[at] = true
		evaluated.Add(1)
		if statuses[at] = s.judge(ctx, d.State, p, snap.Nodes[at], at); statuses[at].IsSuccess() {
			feasible.Add(1)
		}
		return true
	})
	d.Evaluated = int(evaluated.Load())
	for at, info := range snap.Nodes {
		switch st := statuses[at]; {
		case !looked[at]:
		case st.IsSuccess():
			d.Feasible = append(d.Feasible, info)
		case st.Code == framework.Error:
			d.Whole = st
			return
		default:
			d.Statuses[info.Node.Name] = st
		}
	}
	if ctx.Err() != nil {
		d.Whole = framework.AsStatus(fmt.Errorf("look for a node: %w", context.Cause(ctx)))
	}
}

// judge asks every filter and judge about a node. Where pods of this or a higher
// priority were promised room there, the pod has to fit beside them as well as without them: they may
// never come, and what it needs may be theirs to give (an affinity).
func (s *search) judge(ctx context.Context, state *framework.State, p *framework.PodInfo, n *framework.NodeInfo, at int) *framework.Status {
	if ahead := s.ahead[n.Node.Name]; len(ahead) > 0 {
		withState, with, st := s.profile.withPods(ctx, state.Clone(), p, n, ahead)
		if !st.IsSuccess() {
			return st
		}
		if st := s.filter(ctx, withState, p, with); !st.IsSuccess() {
			return st
		}
		if st := verdict(s.judgesAhead, at); st != nil {
			return st
		}
	}
	if st := s.filter(ctx, state, p, n); !st.IsSuccess() {
		return st
	}
	return verdict(s.judges, at)
}

// filter asks the filters alone.
func (s *search) filter(ctx context.Context, state *framework.State, p *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	if s.names != nil && !s.names[n.Node.Name] {
		return &framework.Status{Code: framework.Unresolvable, Reasons: []string{"node(s) didn't satisfy plugin(s) [NodeAffinity]"}, Plugin: "NodeAffinity"}
	}
	for _, f := range s.filters {
		if st := f.Filter(ctx, state, p, n); !st.IsSuccess() {
			return by(st, f)
		}
	}
	return nil
}

// verdict is the first refusal of a row; nil where it fits.
func verdict(all []judged, at int) *framework.Status {
	for i := range all {
		if st := all[i].verdicts[at].Status; !st.IsSuccess() {
			named := *st
			named.Plugin = all[i].name
			return &named
		}
	}
	return nil
}

// postFilter asks who may still make room. What they say against it is kept for
// the message.
func (c *profile) postFilter(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot, s *search, d *Decision) {
	if len(c.post) == 0 {
		return
	}
	end := c.metrics.point(c.name, "PostFilter")
	answer := framework.NewStatus(framework.Unschedulable)
	defer func() { end(answer) }()
	if c.metrics != nil {
		c.metrics.preemptions.Inc()
	}
	sim := &simulator{profile: c, search: s, state: d.State, pod: p, snap: snap}
	for _, post := range c.post {
		nomination, st := post.PostFilter(ctx, d.State, p, snap, d.failedNodes(), sim)
		switch {
		case st.IsSuccess() && nomination != nil:
			d.Nomination, answer = nomination, nil
			return
		case st != nil && st.Code == framework.Error:
			d.Whole, answer = by(st, post), st
			return
		case st != nil:
			d.PostFilter = append(d.PostFilter, st.Reasons...)
		}
	}
}

// score fills d.Scores and returns the totals in the order of d.Feasible.
func (c *profile) score(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot, all []judged, workers int, d *Decision) []int64 {
	totals := make([]int64, len(d.Feasible))
	d.Scores = map[string][]int64{}
	take := func(name string, weight int64, scores []int64) {
		for i := range scores {
			scores[i] *= weight
			totals[i] += scores[i]
		}
		d.Scores[name] = scores
	}
	for _, j := range all {
		scores := make([]int64, len(d.Feasible))
		for i, n := range d.Feasible {
			scores[i] = min(max(j.verdicts[snap.Index[n.Node.Name]].Score, 0), framework.MaxScore)
		}
		take(j.name, j.weight, scores)
	}
	end := c.metrics.point(c.name, "PreScore")
	skipped, st := c.preScore(ctx, p, d)
	end(st)
	if st != nil {
		d.Whole = st
		return nil
	}
	end = c.metrics.point(c.name, "Score")
	defer func() { end(d.Whole) }()
	for _, s := range c.scores {
		if skipped[s.plugin.Name()] {
			continue
		}
		c.metrics.asked(c.name, "Score", s.plugin.Name(), len(d.Feasible))
		scores, st := scoreNodes(ctx, s.plugin, p, workers, d)
		if st != nil {
			d.Whole = st
			return nil
		}
		take(s.plugin.Name(), s.weight, scores)
	}
	return totals
}

func (c *profile) preScore(ctx context.Context, p *framework.PodInfo, d *Decision) (map[string]bool, *framework.Status) {
	skipped := map[string]bool{}
	for _, pre := range c.preScores {
		st := pre.PreScore(ctx, d.State, p, d.Feasible)
		if st.IsSuccess() || st.Code != framework.Skip {
			c.metrics.asked(c.name, "PreScore", pre.Name(), 1)
		}
		switch {
		case st.IsSuccess():
		case st.Code == framework.Skip:
			skipped[pre.Name()] = true
		default:
			return nil, by(asError(st), pre)
		}
	}
	return skipped, nil
}

// asError: a plugin that scores cannot refuse a node any more.
func asError(st *framework.Status) *framework.Status {
	e := *st
	e.Code = framework.Error
	return &e
}

func scoreNodes(ctx context.Context, s framework.Score, p *framework.PodInfo, workers int, d *Decision) ([]int64, *framework.Status) {
	scores := make([]int64, len(d.Feasible))
	var mu sync.Mutex
	var failed *framework.Status
	parallel(len(d.Feasible), workers, func(i int) bool {
		score, st := s.Score(ctx, d.State, p, d.Feasible[i])
		if !st.IsSuccess() {
			mu.Lock()
			failed = by(asError(st), s)
			mu.Unlock()
			return false
		}
		scores[i] = score
		return true
	})
	if failed != nil {
		return nil, failed
	}
	if n, ok := s.(framework.Normalize); ok {
		if st := n.Normalize(ctx, d.State, p, d.Feasible, scores); !st.IsSuccess() {
			return nil, by(asError(st), s)
		}
	}
	for i, score := range scores {
		if score < 0 || score > framework.MaxScore {
			return nil, by(framework.AsStatus(fmt.Errorf("scored node %s %d, outside 0..%d", d.Feasible[i].Node.Name, score, framework.MaxScore)), s)
		}
	}
	return scores, nil
}

// best picks the highest total; among equals by chance, so that equal nodes fill alike.
func best(totals []int64) int {
	at, ties := 0, 1
	for i := 1; i < len(totals); i++ {
		switch {
		case totals[i] > totals[at]:
			at, ties = i, 1
		case totals[i] == totals[at]:
			ties++
			if rand.IntN(ties) == 0 { //nolint:gosec // fairness, not secrecy
				at = i
			}
		}
	}
	return at
}

// parallel calls do for 0..n-1 until one answers false; small n stay on this goroutine.
func parallel(n, workers int, do func(i int) bool) {
	const chunk = 32
	if workers <= 1 || n <= chunk {
		for i := range n {
			if !do(i) {
				return
			}
		}
		return
	}
	var next atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range min(workers, (n+chunk-1)/chunk) {
		wg.Go(func() {
			for !stop.Load() {
				from := int(next.Add(chunk)) - chunk
				if from >= n {
					return
				}
				for i := from; i < min(from+chunk, n); i++ {
					if !do(i) {
						stop.Store(true)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}
