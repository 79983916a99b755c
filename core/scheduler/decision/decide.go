// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/sweep"
)

// Observer is told how long the parts of a decision took.
type Observer interface {
	Begin(ctx context.Context, part string) (context.Context, func(*Decision))
}

// Circumstances are what a decision depends on besides the pod, the snapshot and what
// the plugins answer.
type Circumstances struct {
	Promised string                          // the node that the pod itself was promised; "" = none
	Ahead    map[string][]*framework.PodInfo // by node, pods whose room it may not take
	Gang     bool                            // room is made elsewhere: for all of a gang together
	Of       *framework.Gang                 // that the pod is a member of; nil = it is decided alone
	Whole    func(*corev1.Pod) bool          // says of a pod whether it makes room only with all of its PodGroup; nil = none does
	Trial    bool                            // pods are thought away that are there: extenders, which see them, are not asked
	Only     []int                           // the search is narrowed to these places in the snapshot, which ascend; nil = all
	Start    int                             // where the search begins: one cycle goes on where the last one stopped
	Workers  int                             // how many goroutines judge nodes at the most; the decision does not depend on it
	Seed     uint64                          // decides among equals
	Now      func() time.Time                // by which the points' durations are measured
}

// covers says whether the search looks at a place of the snapshot.
func (in *Circumstances) covers(at int) bool {
	if in.Only == nil {
		return true
	}
	_, found := slices.BinarySearch(in.Only, at)
	return found
}

// Blind is an Observer to whom nothing matters.
type Blind struct{}

// Begin implements Observer.
func (Blind) Begin(ctx context.Context, _ string) (context.Context, func(*Decision)) {
	return ctx, func(*Decision) {}
}

// Decide finds the node for a pod on a snapshot. It changes nothing outside, and the
// same arguments give the same decision: one that was recorded can be replayed.
func (c *Compiled) Decide(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot, in Circumstances, o Observer) *Decision {
	d := &Decision{
		State: framework.NewStateAt(in.Now), Seed: in.Seed, Start: in.Start, Total: len(snap.Nodes),
		Statuses: map[string]*framework.Status{},
	}
	d.Effort.Now = in.Now
	d.State.Accompany(framework.Company{Snapshot: snap, Gang: in.Of, Ahead: in.Ahead})
	filterCtx, end := o.Begin(ctx, "filter")
	s := c.filter(filterCtx, p, snap, in, d)
	end(d)
	switch {
	case d.Whole != nil:
		if !in.Gang && c.mayReclaim(d.Whole) {
			c.reclaim(ctx, p, snap, in, d)
		}
		return d
	case len(d.Feasible) == 0:
		if !in.Gang {
			c.postFilter(ctx, p, snap, s, in, d)
		}
		return d
	}
	if len(d.Feasible) == 1 && len(s.judges) == 0 {
		d.Node = d.Feasible[0].Node.Name
		return d
	}
	scoreCtx, end := o.Begin(ctx, "score")
	totals := c.score(scoreCtx, p, s, d)
	if d.Whole == nil {
		d.Node = d.Feasible[sweep.Best(totals, in.Seed)].Node.Name
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

func (c *Compiled) filter(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot, in Circumstances, d *Decision) *search {
	if len(snap.Nodes) == 0 {
		d.Whole = framework.NewStatus(framework.Unschedulable, "no nodes available to schedule pods")
		return nil
	}
	s := &search{profile: c, ahead: in.Ahead, start: in.Start, workers: in.Workers, share: c.share(p, snap)}
	end := d.Effort.Begin("PreFilter")
	s.names, s.filters = c.preFilter(ctx, p, snap, d)
	end(d.Whole)
	if d.Whole != nil {
		return nil
	}
	var st *framework.Status
	if s.judges, st = c.judge(ctx, p, snap); st == nil && len(in.Ahead) > 0 && len(s.judges) > 0 {
		s.judgesAhead, st = c.judge(ctx, p, snapshotWith(snap, in.Ahead))
	}
	if st != nil {
		d.Whole = st
		return nil
	}
	// The node that was promised is looked at alone first: the room there was made for this pod.
	if at, ok := snap.Index[in.Promised]; ok && in.covers(at) {
		if s.judge(ctx, d.State, p, snap.Nodes[at], at).IsSuccess() {
			d.Evaluated, d.Feasible, s.places = 1, []*framework.NodeInfo{snap.Nodes[at]}, []int{at}
			c.narrow(ctx, p, s, &in, d)
			if len(d.Feasible) > 0 && d.Whole == nil {
				return s
			}
			d.Evaluated, d.Feasible, s.places, d.Whole = 0, nil, nil, nil // all nodes are looked at, this one once more
		}
	}
	end = d.Effort.Begin("Filter")
	if in.Only != nil {
		d.outside = len(snap.Nodes) - len(in.Only)
	}
	c.filterNodes(ctx, p, snap, s, s.within(snap, &in), d)
	askedFilters(d, s.filters)
	if d.Whole == nil {
		c.narrow(ctx, p, s, &in, d)
	}
	if d.Whole == nil && len(d.Feasible) == 0 {
		s.refuseOthers(snap, &in, d)
	}
	end(d.Whole)
	return s
}

// snapshotWith is the snapshot with further pods on its nodes. It has a generation
// of its own, by which those who keep a table of the nodes see that it is another.
func snapshotWith(snap *framework.Snapshot, pods map[string][]*framework.PodInfo) *framework.Snapshot {
	c := *snap
	c.Nodes, c.Generation, c.Memo = slices.Clone(snap.Nodes), framework.Simulated(), nil
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
		changed.Generation = c.Generation
		c.Nodes[at] = &changed
	}
	return &c
}

// judge has every Judge answer for all nodes.
func (c *Compiled) judge(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot) ([]judged, *framework.Status) {
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

func by(st *framework.Status, p framework.Plugin) *framework.Status { return framework.By(st, p) }

// preFilter returns the names that the search is narrowed to (nil = all) and the
// filters that are left in.
func (c *Compiled) preFilter(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot,
	d *Decision,
) (map[string]bool, []placed[framework.Filter]) {
	var names map[string]bool
	skipped := map[string]bool{}
	for _, pre := range c.preFilters {
		narrowed, st := pre.PreFilter(ctx, d.State, p, snap)
		if st.IsSuccess() || st.Code != framework.Skip {
			d.Effort.Count("PreFilter", pre.Name(), 1)
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
	var filters []placed[framework.Filter]
	for i, f := range c.filters {
		if !skipped[f.plugin.Name()] {
			filters = append(filters, placed[framework.Filter]{f, i})
		}
	}
	return names, filters
}

// search is the look for feasible nodes in one cycle.
type search struct {
	profile     *Compiled
	names       map[string]bool
	filters     []placed[framework.Filter]
	share       *share // nil = nothing is kept
	judges      []judged
	judgesAhead []judged // with the pods of ahead on their nodes
	ahead       map[string][]*framework.PodInfo
	start       int
	workers     int
	places      []int // of the feasible nodes, in the snapshot
}

// placed is a plugin with its place in the profile.
type placed[P framework.Plugin] struct {
	member[P]
	at int
}

func (c *Compiled) filterNodes(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot, s *search, only []int, d *Decision) {
	n, place := len(snap.Nodes), func(i int) int { return i }
	if only != nil {
		n, place = len(only), func(i int) int { return only[i] }
	}
	statuses := make([]*framework.Status, n)
	wanted := sweep.Enough(n, c.percent)
	var feasible atomic.Int64
	sweep.Each(n, s.workers, func() bool { return feasible.Load() < int64(wanted) && ctx.Err() == nil }, func(i int) {
		i = (s.start + i) % n
		at := place(i)
		if statuses[i] = s.judge(ctx, d.State, p, snap.Nodes[at], at); statuses[i].IsSuccess() {
			feasible.Add(1)
		}
	})
	if ctx.Err() != nil {
		d.Whole = framework.AsStatus(fmt.Errorf("look for a node: %w", context.Cause(ctx)))
		return
	}
	// Several goroutines look at a few nodes more than one does. What counts ends with
	// the node that made it enough, so that the decision is the same.
	counted, found := make([]bool, n), 0
	for ; d.Evaluated < n && found < wanted; d.Evaluated++ {
		at := (s.start + d.Evaluated) % n
		counted[at] = true
		if statuses[at].IsSuccess() {
			found++
		}
	}
	d.Feasible, d.Statuses = make([]*framework.NodeInfo, 0, found), make(map[string]*framework.Status, d.Evaluated-found)
	s.places = make([]int, 0, found)
	for i, st := range statuses {
		at := place(i)
		info := snap.Nodes[at]
		switch {
		case !counted[i]:
		case st.IsSuccess():
			d.Feasible, s.places = append(d.Feasible, info), append(s.places, at)
		case st.Code == framework.Error:
			d.Whole = st
			return
		default:
			d.Statuses[info.Node.Name] = st
		}
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
	if st := s.filterShared(ctx, state, p, n, at); !st.IsSuccess() {
		return st
	}
	return verdict(s.judges, at)
}

// filter asks the filters alone.
func (s *search) filter(ctx context.Context, state *framework.State, p *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	if st := s.outside(n); st != nil {
		return st
	}
	for _, f := range s.filters {
		if st := f.plugin.Filter(ctx, state, p, n); !st.IsSuccess() {
			return by(st, f.plugin)
		}
	}
	return nil
}

// within is the places that are to be looked at: those of in.Only that the search is narrowed to. A pod of a
// DaemonSet names one node of thousands, and the others are not looked at.
func (s *search) within(snap *framework.Snapshot, in *Circumstances) []int {
	if s.names == nil {
		return in.Only
	}
	within := make([]int, 0, len(s.names))
	for name := range s.names {
		if at, ok := snap.Index[name]; ok && in.covers(at) {
			within = append(within, at)
		}
	}
	slices.Sort(within)
	return within
}

// refuseOthers says of the nodes that the search was narrowed away from why they were left out: a pod that
// has no node is told of all.
func (s *search) refuseOthers(snap *framework.Snapshot, in *Circumstances, d *Decision) {
	if s.names == nil {
		return
	}
	for at, n := range snap.Nodes {
		if st := s.outside(n); st != nil && in.covers(at) {
			d.Statuses[n.Node.Name] = st
		}
	}
}

// outside refuses the nodes that are not among those that the search is narrowed to.
func (s *search) outside(n *framework.NodeInfo) *framework.Status {
	if s.names != nil && !s.names[n.Node.Name] {
		return outsideAffinity
	}
	return nil
}

var outsideAffinity = &framework.Status{
	Code: framework.Unresolvable, Reasons: []string{"node(s) didn't satisfy plugin(s) [NodeAffinity]"},
	Plugin: "NodeAffinity",
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
func (c *Compiled) postFilter(
	ctx context.Context,
	p *framework.PodInfo,
	snap *framework.Snapshot,
	s *search,
	in Circumstances,
	d *Decision,
) {
	if len(c.post) == 0 {
		return
	}
	end := d.Effort.Begin("PostFilter")
	answer := framework.NewStatus(framework.Unschedulable)
	defer func() { end(answer) }()
	d.Effort.Preempted = true
	sim := &simulator{profile: c, search: s, state: d.State, pod: p, snap: snap, d: d}
	for _, post := range c.post {
		if c.reclaimer != nil && post.Name() == c.reclaimer.Name() {
			if c.reclaim(ctx, p, snap, in, d); d.Nomination != nil || d.Whole != nil {
				answer = d.Whole
				return
			}
			continue
		}
		if _, byPriority := post.(framework.GroupPostFilter); byPriority && c.reclaimer != nil {
			continue
		}
		nomination, st := post.PostFilter(ctx, d.State, p, snap, d.FailedNodes(), sim)
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
func (c *Compiled) score(ctx context.Context, p *framework.PodInfo, s *search, d *Decision) []int64 {
	totals := make([]int64, len(d.Feasible))
	d.Scores = map[string][]int64{}
	take := func(name string, weight int64, scores []int64) {
		for i := range scores {
			scores[i] *= weight
			totals[i] += scores[i]
		}
		d.Scores[name] = scores
	}
	for _, j := range s.judges {
		scores := make([]int64, len(d.Feasible))
		for i, at := range s.places {
			scores[i] = min(max(j.verdicts[at].Score, 0), framework.MaxScore)
		}
		take(j.name, j.weight, scores)
	}
	end := d.Effort.Begin("PreScore")
	skipped, st := c.preScore(ctx, p, d)
	end(st)
	if st != nil {
		d.Whole = st
		return nil
	}
	end = d.Effort.Begin("Score")
	defer func() { end(d.Whole) }()
	for i, one := range c.scores {
		if skipped[one.plugin.Name()] {
			continue
		}
		d.Effort.Count("Score", one.plugin.Name(), len(d.Feasible))
		scores, st := s.scoreNodes(ctx, one.plugin, p, s.scoresOf(c, i), d)
		if st != nil {
			d.Whole = st
			return nil
		}
		take(one.plugin.Name(), one.weight, scores)
	}
	c.rate(ctx, p, d, func(name string, scores []int64) { take(name, 1, scores) })
	return totals
}

func (c *Compiled) preScore(ctx context.Context, p *framework.PodInfo, d *Decision) (map[string]bool, *framework.Status) {
	skipped := map[string]bool{}
	for _, pre := range c.preScores {
		st := pre.PreScore(ctx, d.State, p, d.Feasible)
		if st.IsSuccess() || st.Code != framework.Skip {
			d.Effort.Count("PreScore", pre.Name(), 1)
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

// scoreNodes has a plugin rate the feasible nodes, but for those of which kept has the score.
func (s *search) scoreNodes(ctx context.Context, plugin framework.Score, p *framework.PodInfo, kept []scored,
	d *Decision,
) ([]int64, *framework.Status) {
	scores := make([]int64, len(d.Feasible))
	var failed sweep.FirstFailure
	sweep.Each(len(d.Feasible), s.workers, failed.None, func(i int) {
		n := d.Feasible[i]
		if kept != nil && kept[s.places[i]].node == n {
			scores[i] = kept[s.places[i]].score
			return
		}
		score, st := plugin.Score(ctx, d.State, p, n)
		if !st.IsSuccess() {
			failed.At(i, st)
			return
		}
		if scores[i] = score; kept != nil {
			kept[s.places[i]] = scored{n, score}
		}
	})
	if failed.Status != nil {
		return nil, by(asError(failed.Status), plugin)
	}
	if n, ok := plugin.(framework.Normalize); ok {
		if st := n.Normalize(ctx, d.State, p, d.Feasible, scores); !st.IsSuccess() {
			return nil, by(asError(st), plugin)
		}
	}
	for i, score := range scores {
		if score < 0 || score > framework.MaxScore {
			err := fmt.Errorf("scored node %s %d, outside 0..%d", d.Feasible[i].Node.Name, score, framework.MaxScore)
			return nil, by(framework.AsStatus(err), plugin)
		}
	}
	return scores, nil
}

// askedFilters counts how often each filter was asked in a search: all of them about a
// node that fits, and up to the one that refused about another.
func askedFilters(d *Decision, filters []placed[framework.Filter]) {
	refusals := map[string]int{}
	for _, st := range d.Statuses {
		refusals[st.Plugin]++
	}
	left := len(d.Feasible) + len(d.Statuses)
	for _, f := range filters {
		d.Effort.Count("Filter", f.plugin.Name(), left)
		left -= refusals[f.plugin.Name()]
	}
}
