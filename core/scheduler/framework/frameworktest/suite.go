// SPDX-License-Identifier: Apache-2.0

// Package frameworktest is the conformance suite of scheduler plugins: every
// implementation passes it, native or in Wasm, whichever points it takes.
//
// It holds a plugin to what the scheduler relies on: that the same question has the
// same answer, that nobody writes into a snapshot, that verdicts have reasons, that scores are
// within their bounds, that what a simulation did can be undone, and that odd pods, odd nodes and
// an empty cluster are no fault.
package frameworktest

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Case is a pod in a cluster, with what the plugin thinks of the nodes.
type Case struct {
	Name string
	Pod  *corev1.Pod
	// Nodes and the pods that run on them (spec.nodeName).
	Nodes   []*corev1.Node
	Running []*corev1.Pod
	// Refused are the nodes that the pod may not have, with a part of the reason; it may have the others.
	Refused map[string]string
	// Order of the other nodes, the best first: each is at least as good as the
	// next, and the first is better than the last. nil: not looked at.
	Order []string

	strict bool // nodes that are not in Refused may not be refused
}

// Run holds p to the contract and to the cases, alone and many at a time.
func Run(t *testing.T, p framework.Plugin, cases ...Case) {
	t.Helper()
	t.Run("has a name, and hints", func(t *testing.T) { named(t, p) })
	for _, c := range odd() {
		t.Run(c.Name, func(t *testing.T) { c.run(t, p) })
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			c.strict = true
			c.run(t, p)
		})
	}
	t.Run("returns when the cycle was given up", func(t *testing.T) { returns(t, p) })
}

// Bear asks about a case that is not the plugin's own: whatever it decides is
// right, as long as it keeps the contract.
func Bear(t *testing.T, p framework.Plugin, c Case) {
	t.Helper()
	t.Run("bears: "+c.Name, func(t *testing.T) { c.run(t, p) })
}

func (c Case) run(t *testing.T, p framework.Plugin) {
	t.Helper()
	snap := c.Snapshot()
	shown := pictured(t, snap)
	first := Ask(t.Context(), p, framework.NewPodInfo(c.Pod), snap)
	first.check(t, c)
	// The same question again, in a cycle of its own.
	if again := Ask(t.Context(), p, framework.NewPodInfo(c.Pod), snap); !reflect.DeepEqual(first, again) {
		t.Errorf("asked again, it answers\n%v, and first\n%v", again, first)
	}
	undone(t, p, c)
	manyAtATime(t, p, c, first)
	lifetime(t, p, c)
	if pictured(t, snap) != shown {
		t.Error("the plugin wrote into the snapshot, which others share")
	}
}

func named(t *testing.T, p framework.Plugin) {
	if name := p.Name(); name == "" || p.Name() != name {
		t.Error("the name is empty or changes")
	}
	if h, ok := p.(framework.Hints); ok && h.Hints() == 0 &&
		(framework.Takes(p, framework.AtFilter) || framework.Takes(p, framework.AtJudge)) {
		if _, filters := p.(framework.Filter); filters {
			t.Error("it filters, and no event can change its mind: a pod that it refused would never be tried again")
		}
	}
}

// odd are clusters that a plugin forgets: nothing in them is said.
func odd() []Case {
	bare := func() *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare", Namespace: "default", UID: "bare"}}
	}
	gone := bare()
	now := metav1.NewTime(time.Unix(1, 0))
	gone.DeletionTimestamp, gone.Spec.Containers = &now, []corev1.Container{{}}
	return []Case{
		{Name: "no nodes", Pod: bare()},
		{Name: "a node of which nothing is known", Pod: bare(), Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}},
		{Name: "a pod that goes", Pod: gone, Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"}}}},
	}
}

// Snapshot is the case's cluster.
func (c Case) Snapshot() *framework.Snapshot {
	// Generations only ever grow: a plugin that keeps a copy of the nodes knows a new snapshot by them.
	born := time.Now().UnixNano()
	s := &framework.Snapshot{Index: map[string]int{}, Generation: born, NodesGeneration: born}
	for i, n := range c.Nodes {
		info := framework.NewNodeInfo(n.DeepCopy())
		for _, p := range c.Running {
			if p.Spec.NodeName == n.Name {
				info = info.WithPod(framework.NewPodInfo(p.DeepCopy()))
			}
		}
		info.Generation = born + int64(i) + 1
		s.Nodes, s.Index[n.Name], s.Generation = append(s.Nodes, info), i, info.Generation
	}
	return s
}

// pictured is everything of a snapshot that a plugin could write into.
func pictured(t *testing.T, s *framework.Snapshot) string {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Answers are what a plugin thinks of a cluster.
type Answers struct {
	// Pod is why the pod fits nowhere, nil where it may.
	Pod *framework.Status
	// Nodes, in the order of the snapshot; none where the pod fits nowhere.
	Nodes []framework.Verdict
	names []string
}

// Ask runs a cycle of one plugin as the scheduler does, without a way out: every node is judged.
func Ask(ctx context.Context, p framework.Plugin, pod *framework.PodInfo, snap *framework.Snapshot) Answers {
	out := Answers{Nodes: make([]framework.Verdict, len(snap.Nodes)), names: make([]string, len(snap.Nodes))}
	for i, n := range snap.Nodes {
		out.names[i] = n.Node.Name
	}
	if j, ok := p.(framework.Judge); ok && framework.Takes(p, framework.AtJudge) {
		out.Nodes, out.Pod = j.Judge(ctx, pod, snap)
		return out
	}
	state, filters := framework.NewState(), true
	state.Accompany(framework.Company{Snapshot: snap})
	if f, ok := p.(framework.PreFilter); ok && framework.Takes(p, framework.AtPreFilter) {
		nodes, st := f.PreFilter(ctx, state, pod, snap)
		switch {
		case st != nil && st.Code == framework.Skip:
			filters = false
		case !st.IsSuccess():
			out.Pod, out.Nodes = st, nil
			return out
		}
		for i, n := range snap.Nodes {
			if nodes != nil && !nodes[n.Node.Name] {
				out.Nodes[i].Status = framework.NewStatus(framework.Unresolvable, "the search was narrowed")
			}
		}
	}
	if f, ok := p.(framework.Filter); ok && filters && framework.Takes(p, framework.AtFilter) {
		for i, n := range snap.Nodes {
			if out.Nodes[i].Status == nil {
				out.Nodes[i].Status = f.Filter(ctx, state, pod, n)
			}
		}
	}
	out.rate(ctx, p, state, pod, snap)
	return out
}

// rate fills in the scores of the nodes that are left.
func (a *Answers) rate(ctx context.Context, p framework.Plugin, state *framework.State, pod *framework.PodInfo, snap *framework.Snapshot) {
	s, ok := p.(framework.Score)
	if !ok || !framework.Takes(p, framework.AtScore) {
		return
	}
	var left []*framework.NodeInfo
	var at []int
	for i, n := range snap.Nodes {
		if a.Nodes[i].Status.IsSuccess() {
			left, at = append(left, n), append(at, i)
		}
	}
	if pre, ok := p.(framework.PreScore); ok && framework.Takes(p, framework.AtPreScore) {
		if st := pre.PreScore(ctx, state, pod, left); !st.IsSuccess() {
			if st.Code != framework.Skip {
				a.Pod = st
			}
			return
		}
	}
	scores := make([]int64, len(left))
	for i, n := range left {
		score, st := s.Score(ctx, state, pod, n)
		if !st.IsSuccess() {
			a.Pod = st
			return
		}
		scores[i] = score
	}
	if n, ok := p.(framework.Normalize); ok && len(left) > 0 {
		if st := n.Normalize(ctx, state, pod, left, scores); !st.IsSuccess() {
			a.Pod = st
			return
		}
	}
	for i, score := range scores {
		a.Nodes[at[i]].Score = score
	}
}

// check holds answers to the contract and to a case.
func (a Answers) check(t *testing.T, c Case) {
	t.Helper()
	if a.Pod != nil {
		refusal(t, "the pod", a.Pod)
		if c.strict && len(c.Refused) < len(c.Nodes) {
			t.Errorf("it fits nowhere: %v", a.Pod.Reasons)
		}
		return
	}
	if len(a.Nodes) != len(c.Nodes) {
		t.Fatalf("%d verdicts for %d nodes", len(a.Nodes), len(c.Nodes))
	}
	scores := map[string]int64{}
	for i, v := range a.Nodes {
		name := a.names[i]
		want, refused := c.Refused[name]
		if !v.Status.IsSuccess() {
			refusal(t, name, v.Status)
			if c.strict && !refused {
				t.Errorf("node %s is refused: %v", name, v.Status.Reasons)
			}
			if refused && !strings.Contains(strings.Join(v.Status.Reasons, ", "), want) {
				t.Errorf("node %s is refused for %v, want %q", name, v.Status.Reasons, want)
			}
			continue
		}
		if refused {
			t.Errorf("node %s is not refused, want %q", name, want)
		}
		if v.Score < 0 || v.Score > framework.MaxScore {
			t.Errorf("node %s has score %d: 0 to %d was expected", name, v.Score, framework.MaxScore)
		}
		scores[name] = v.Score
	}
	ordered(t, c.Order, scores)
}

func ordered(t *testing.T, order []string, scores map[string]int64) {
	t.Helper()
	for i := 1; i < len(order); i++ {
		if scores[order[i-1]] < scores[order[i]] {
			t.Errorf("node %s has %d and node %s %d: the first was to be as good", order[i-1], scores[order[i-1]], order[i], scores[order[i]])
		}
	}
	if n := len(order); n > 1 && scores[order[0]] <= scores[order[n-1]] {
		t.Errorf("node %s has %d and node %s %d: the first was to be better", order[0], scores[order[0]], order[n-1], scores[order[n-1]])
	}
}

// refusal: what a user reads in the pod's condition has a reason, and no fault is behind it.
func refusal(t *testing.T, what string, st *framework.Status) {
	t.Helper()
	if st.Code != framework.Unschedulable && st.Code != framework.Unresolvable {
		t.Errorf("%s: code %d, reasons %v, error %v: a refusal was expected", what, st.Code, st.Reasons, st.Err)
	}
	if len(st.Reasons) == 0 || st.Reasons[0] == "" {
		t.Errorf("%s is refused without a reason", what)
	}
}

// undone: a pod that a simulation put on a node and took away leaves no trace.
func undone(t *testing.T, p framework.Plugin, c Case) {
	t.Helper()
	pre, ok := p.(framework.PreFilter)
	ext, extends := p.(framework.PreFilterExtensions)
	f, filters := p.(framework.Filter)
	if !ok || !extends || !filters || !framework.Takes(p, framework.AtPreFilter) {
		return
	}
	snap, pod := c.Snapshot(), framework.NewPodInfo(c.Pod)
	other := framework.NewPodInfo(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "other", Namespace: c.Pod.Namespace, UID: "other",
		Labels: c.Pod.Labels,
	}})
	state := framework.NewState()
	if _, st := pre.PreFilter(t.Context(), state, pod, snap); !st.IsSuccess() {
		return
	}
	for _, n := range snap.Nodes {
		before := f.Filter(t.Context(), state, pod, n)
		what := state.Clone()
		with := n.WithPod(other)
		if st := ext.AddPod(t.Context(), what, pod, other, with); !st.IsSuccess() {
			t.Errorf("AddPod: %+v", st)
		}
		if st := ext.RemovePod(t.Context(), what, pod, other, with.WithoutPod(other)); !st.IsSuccess() {
			t.Errorf("RemovePod: %+v", st)
		}
		if after := f.Filter(t.Context(), what, pod, n); !reflect.DeepEqual(before, after) {
			t.Errorf("node %s: %+v, and after a pod came and went %+v", n.Node.Name, before, after)
		}
		if own := f.Filter(t.Context(), state, pod, n); !reflect.DeepEqual(before, own) {
			t.Errorf("node %s: a simulation changed the cycle's own state: %+v, before %+v", n.Node.Name, own, before)
		}
	}
}

// manyAtATime: Filter and Score of a cycle run in parallel, and so do cycles.
func manyAtATime(t *testing.T, p framework.Plugin, c Case, want Answers) {
	t.Helper()
	if _, judges := p.(framework.Judge); judges && framework.Takes(p, framework.AtJudge) {
		return // one cycle at a time has the table, which is another snapshot's otherwise
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if got := Ask(t.Context(), p, framework.NewPodInfo(c.Pod), c.Snapshot()); !reflect.DeepEqual(got, want) {
				t.Errorf("beside others it answers\n%v, alone\n%v", got, want)
			}
		})
	}
	wg.Wait()
}

// lifetime takes the pod to a node and back, and to the end.
func lifetime(t *testing.T, p framework.Plugin, c Case) {
	t.Helper()
	if len(c.Nodes) == 0 {
		return
	}
	ctx, state, pod, node := t.Context(), framework.NewState(), framework.NewPodInfo(c.Pod), c.Nodes[0].Name
	verdict := func(what string, st *framework.Status) {
		if !st.IsSuccess() && st.Code != framework.Skip && st.Code != framework.Wait {
			refusal(t, what, st)
		}
	}
	if e, ok := p.(framework.PreEnqueue); ok && framework.Takes(p, framework.AtPreEnqueue) {
		verdict("PreEnqueue", e.PreEnqueue(ctx, pod))
	}
	if q, ok := p.(framework.QueueSort); ok && framework.Takes(p, framework.AtQueueSort) {
		rank, st := q.Rank(ctx, pod, time.Unix(0, 0))
		again, _ := q.Rank(ctx, pod, time.Unix(0, 0))
		if verdict("Rank", st); rank != again {
			t.Errorf("rank %d, and then %d", rank, again)
		}
	}
	if r, ok := p.(framework.Reserve); ok && framework.Takes(p, framework.AtReserve) {
		r.Unreserve(ctx, state, pod, node) // of what was never reserved: a cycle ends wherever it is
		for range 2 {
			verdict("Reserve", r.Reserve(ctx, state, pod, node))
			r.Unreserve(ctx, state, pod, node)
		}
	}
	if m, ok := p.(framework.Permit); ok && framework.Takes(p, framework.AtPermit) {
		st, wait := m.Permit(ctx, state, pod, node)
		verdict("Permit", st)
		if waits := st != nil && st.Code == framework.Wait; waits != (wait > 0) {
			t.Errorf("Permit answers %+v, and to wait for %s", st, wait)
		}
	}
	if b, ok := p.(framework.PreBind); ok && framework.Takes(p, framework.AtPreBind) {
		verdict("PreBind", b.PreBind(ctx, state, pod, node))
	}
	if b, ok := p.(framework.PostBind); ok && framework.Takes(p, framework.AtPostBind) {
		b.PostBind(ctx, state, pod, node)
	}
}

// returns: who waits for a plugin whose cycle is over would hold the scheduler up.
func returns(t *testing.T, p framework.Plugin) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := odd()[1]
	done := run.Go("frameworktest: question", func() error {
		Ask(ctx, p, framework.NewPodInfo(c.Pod), c.Snapshot())
		return nil
	})
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it does not return")
	}
}
