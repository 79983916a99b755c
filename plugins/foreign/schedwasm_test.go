// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/loader"
)

func schedGuest(tb testing.TB) []byte { tb.Helper(); return guest(tb, "sched", "-buildmode=c-shared") }

// scheduler is everything that the adapter can be asked.
type scheduler interface { //nolint:interfacebloat // every point of scheduling
	framework.Selective
	framework.Hints
	framework.PreFilter
	framework.PreFilterExtensions
	framework.Filter
	framework.PostFilter
	framework.PreScore
	framework.Score
	framework.Normalize
	framework.Reserve
	framework.Permit
	framework.PreBind
	framework.Bind
	framework.PostBind
}

func schedulerOf(tb testing.TB, l *loader.Loader) scheduler {
	tb.Helper()
	all := l.SchedulerPlugins()
	if len(all) != 1 {
		tb.Fatalf("%d scheduler plugins, status %+v", len(all), l.Status())
	}
	return all[0].Plugin.(scheduler)
}

func newNode(name, zone string) *framework.NodeInfo {
	return &framework.NodeInfo{
		Node:       &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}}},
		ImageSizes: map[string]int64{"nginx": 1000},
	}
}

func snapshot(nodes ...*framework.NodeInfo) *framework.Snapshot {
	s := &framework.Snapshot{Nodes: nodes, Index: map[string]int{}, Generation: 1, NodesGeneration: 1, ImageNodes: map[string]int{"nginx": 1}}
	for i, n := range nodes {
		s.Index[n.Node.Name] = i
	}
	return s
}

func podInfo(uid string) *framework.PodInfo {
	p := pod()
	p.UID = types.UID(uid)
	return &framework.PodInfo{Pod: p}
}

func said(st *framework.Status) string {
	if st == nil {
		return "ok"
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", st.Code, strings.Join(st.Reasons, ", ")))
}

// recorder keeps the events of plugins.
type recorder struct {
	mu   sync.Mutex
	said []string
}

func (r *recorder) Record(plugin string, about corev1.ObjectReference, kind, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, fmt.Sprintf("%s %s/%s %s %s: %s", plugin, about.Kind, about.Name, kind, reason, message))
}

// TestAPodsWay goes with one pod through every point of scheduling.
func TestAPodsWay(t *testing.T) {
	events := &recorder{}
	f := hostfn.New(hostfn.Backend{Events: events})
	t.Cleanup(f.Close)
	l := load(t, schedGuest(t), f, "settings: {prefer: n2, normalize: true}\ngrants: {events: true}")
	a := schedulerOf(t, l)
	p, s := podInfo("1"), snapshot(newNode("n1", "a"), newNode("n2", "b"))
	ctx, state := t.Context(), framework.NewState()
	for _, at := range []framework.Point{
		framework.AtPreFilter, framework.AtFilter, framework.AtPostFilter, framework.AtPreScore, framework.AtScore, framework.AtReserve,
		framework.AtPermit, framework.AtPreBind, framework.AtBind, framework.AtPostBind,
	} {
		if !a.Takes(at) {
			t.Errorf("it takes no part at %s", at)
		}
	}
	if a.Hints() != framework.NodeAdded|framework.NodeRemoved|framework.NodeAllocatableGrew|framework.NodeLabelsChanged|
		framework.NodeTaintsChanged|framework.PodChanged {
		t.Errorf("events %b", a.Hints())
	}
	if narrowed, st := a.PreFilter(ctx, state, p, s); st != nil || narrowed != nil {
		t.Fatalf("prefilter: %v, %s", narrowed, said(st))
	}
	for _, n := range s.Nodes {
		if st := a.Filter(ctx, state, p, n); st != nil {
			t.Fatalf("filter: %s", said(st))
		}
	}
	if st := a.PreScore(ctx, state, p, s.Nodes); st != nil {
		t.Fatalf("prescore: %s", said(st))
	}
	var scores []int64
	for _, n := range s.Nodes {
		score, st := a.Score(ctx, state, p, n)
		if st != nil {
			t.Fatalf("score: %s", said(st))
		}
		scores = append(scores, score)
	}
	if scores[0] != 10 || scores[1] != 70 {
		t.Errorf("scores %v", scores)
	}
	if st := a.Normalize(ctx, state, p, s.Nodes, scores); st != nil || scores[0] != 90 || scores[1] != 30 {
		t.Errorf("normalized %v, %s", scores, said(st))
	}
	if st := a.AddPod(ctx, state, p, podInfo("2"), s.Nodes[0]); !strings.HasPrefix(said(st), "2 added ") {
		t.Errorf("addpod: %s", said(st))
	}
	if st := a.Reserve(ctx, state, p, "n2"); st != nil {
		t.Fatalf("reserve: %s", said(st))
	}
	// Another pod's cycle begins meanwhile: it has an instance of its own.
	if _, st := a.PreFilter(ctx, framework.NewState(), podInfo("other"), s); st != nil {
		t.Fatal(said(st))
	}
	if st, _ := a.Permit(ctx, state, p, "n2"); st != nil {
		t.Fatalf("permit: %s", said(st))
	}
	if st := a.PreBind(ctx, state, p, "n2"); st != nil {
		t.Fatalf("prebind: %s", said(st))
	}
	if _, st := a.Bind(ctx, state, p, "n2"); st == nil || st.Code != framework.Skip {
		t.Fatalf("bind: %s", said(st))
	}
	a.PostBind(ctx, state, p, "n2")
	want := "policy Pod/web Normal Bound: after prefilter,filter,filter,prescore,score,normalizescore,reserve,permit,prebind,bind"
	if len(events.said) != 1 || events.said[0] != want {
		t.Errorf("events %q\nwant %q", events.said, want)
	}
	if n := l.Status()[0].Instances; n > 2 {
		t.Errorf("%d instances for two pods", n)
	}
}

func TestWhatASchedulerPluginAnswers(t *testing.T) {
	n1, n2 := newNode("n1", "zone-a"), newNode("n2", "zone-b")
	s := snapshot(n1, n2)
	for name, c := range map[string]struct {
		entry string
		do    func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string
		want  string
	}{
		"a node that is avoided": {`settings: {avoid: zone-b}`, func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string {
			return said(a.Filter(ctx, state, p, n1)) + ", " + said(a.Filter(ctx, state, p, n2))
		}, "ok, 2 node n2 has zone-b, seen after prefilter,filter"},
		"configuration as text": {`settings: '{"avoid": "zone-a"}'`, func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string {
			return said(a.Filter(ctx, state, p, n1))
		}, "2 node n1 has zone-a, seen after prefilter"},
		"a search that is narrowed": {`settings: {narrow: [n2]}`, func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string {
			nodes, _ := a.PreFilter(ctx, state, p, s)
			return fmt.Sprint(nodes)
		}, "map[n2:true]"},
		"a refusal in advance": {`settings: {refuse: prefilter}`, func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string {
			_, st := a.PreFilter(ctx, state, p, s)
			return said(st)
		}, "2 refused at prefilter after prefilter"},
		"a nomination": {`settings: {nominate: n1}`, func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string {
			n, st := a.PostFilter(ctx, state, p, s, map[string]*framework.Status{"n1": framework.NewStatus(framework.Unschedulable)}, nil)
			return fmt.Sprint(n.Node, " ", said(st))
		}, "n1 ok"},
		"a nomination of nothing": {`settings: {nominate: nowhere}
failurePolicy: Fail`, func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string {
			_, st := a.PostFilter(ctx, state, p, s, map[string]*framework.Status{"n1": framework.NewStatus(framework.Unschedulable)}, nil)
			return said(st)
		}, `1 it nominated node "nowhere", which does not exist`},
		"no nomination": {`settings: {}`, func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string {
			_, st := a.PostFilter(ctx, state, p, s, nil, nil)
			return said(st)
		}, "2"},
		"a reservation that is refused": {`settings: {refuse: reserve}`, func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string {
			return said(a.Reserve(ctx, state, p, "n1"))
		}, "2 refused at reserve after prefilter,reserve"},
		"a permit that is refused": {`settings: {refuse: permit}`, func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string {
			st, _ := a.Permit(ctx, state, p, "n1")
			return said(st)
		}, "2 refused at permit after prefilter,permit"},
		"a binding that is refused": {`settings: {refuse: bind}`, func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string {
			_, st := a.Bind(ctx, state, p, "n1")
			return said(st)
		}, "2 refused at bind after prefilter,bind"},
		"a filter that traps": {`settings: {trap: filter}`, func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string {
			first := a.Filter(ctx, state, p, n1)
			second := a.Filter(ctx, state, p, n1) // the cycle has failed: it is not begun again in the middle
			return fmt.Sprint(first.Code, " ", second.Code, " ", strings.Contains(said(first), `plugin "policy" failed`), " ",
				strings.Contains(said(first), "; it printed: panic: as configured"))
		}, "1 1 true true"},
		"a filter that does not end": {
			"settings: {loop: filter}\nlimits: {startFuel: 200000000, fuel: 2000000}",
			func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string {
				return fmt.Sprint(strings.Contains(said(a.Filter(ctx, state, p, n1)), "used up its fuel"))
			}, "true",
		},
		"a filter that fails open": {
			"settings: {trap: filter}\nfailurePolicy: Ignore",
			func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string {
				return said(a.Filter(ctx, state, p, n1))
			}, "ok",
		},
		"one that only looks on": {
			"settings: {avoid: zone-b}\nmode: Shadow",
			func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string {
				return said(a.Filter(ctx, state, p, n2))
			}, "ok",
		},
		"points that the entry leaves out": {
			"settings: {avoid: zone-b}\npoints: [scheduling.score]",
			func(ctx context.Context, a scheduler, state *framework.State, p *framework.PodInfo) string {
				return fmt.Sprint(a.Takes(framework.AtFilter), a.Takes(framework.AtScore)) + " " + said(a.Filter(ctx, state, p, n2))
			}, "false true ok",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := schedulerOf(t, load(t, schedGuest(t), nil, c.entry))
			p, state := podInfo("1"), framework.NewState()
			if _, st := a.PreFilter(t.Context(), state, p, s); st != nil && !strings.Contains(c.entry, "prefilter") {
				t.Fatal(said(st))
			}
			if got := c.do(t.Context(), a, state, p); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestAPodThatWaits(t *testing.T) {
	s := snapshot(newNode("n1", "a"))
	ctx := t.Context()
	waiting := func(entry string) (scheduler, *framework.PodInfo) {
		a := schedulerOf(t, load(t, schedGuest(t), nil, entry))
		p := podInfo("1")
		if _, st := a.PreFilter(ctx, nil, p, s); st != nil {
			t.Fatal(said(st))
		}
		if st := a.Reserve(ctx, nil, p, "n1"); st != nil {
			t.Fatal(said(st))
		}
		return a, p
	}
	a, p := waiting("settings: {waitMS: 30}")
	st, left := a.Permit(ctx, nil, p, "n1")
	for st != nil && st.Code == framework.Wait {
		if left > 30*time.Millisecond {
			t.Fatalf("it waits for %s", left)
		}
		select {
		case <-time.After(left):
		case <-ctx.Done():
		}
		st, left = a.Permit(ctx, nil, p, "n1")
	}
	if got := said(st); got != "2 rejected due to timeout after waiting at plugin policy" {
		t.Errorf("permit: %s", got)
	}
	a.Unreserve(ctx, nil, p, "n1")
	if st, _ := a.Permit(ctx, nil, p, "n1"); st != nil { // its cycle is over
		t.Errorf("permit: %s", said(st))
	}
}

// TestAPodThatIsRejectedWhileItWaits: the guest finds and rejects a pod that it holds back,
// by functions that answer nothing, as upstream's guests import them.
func TestAPodThatIsRejectedWhileItWaits(t *testing.T) {
	s := snapshot(newNode("n1", "a"))
	ctx := t.Context()
	a := schedulerOf(t, load(t, schedGuest(t), nil, `settings: {waitMS: 600000, rejectBy: "second", reject: "first"}`))
	permit := func(uid string) (*framework.PodInfo, *framework.Status) {
		p := podInfo(uid)
		if _, st := a.PreFilter(ctx, nil, p, s); st != nil {
			t.Fatal(said(st))
		}
		if st := a.Reserve(ctx, nil, p, "n1"); st != nil {
			t.Fatal(said(st))
		}
		st, _ := a.Permit(ctx, nil, p, "n1")
		return p, st
	}
	if _, st := permit("second"); said(st) != "2 rejected false, found false, false written where it did not fit" {
		t.Errorf("with nobody waiting: %s", said(st))
	}
	first, st := permit("first")
	if st == nil || st.Code != framework.Wait {
		t.Fatalf("the first waits: %s", said(st))
	}
	if _, st := permit("second"); said(st) != "2 rejected true, found true, false written where it did not fit" {
		t.Errorf("with one waiting: %s", said(st))
	}
	if st, _ := a.Permit(ctx, nil, first, "n1"); said(st) != "2 plugin policy rejected the pod while it waited" {
		t.Errorf("the first: %s", said(st))
	}
}

// A swap in the middle: a pod whose node is chosen goes on with the version that chose it.
func TestAReloadDuringACycle(t *testing.T) {
	l := load(t, schedGuest(t), nil, "settings: {}")
	a := schedulerOf(t, l)
	s := snapshot(newNode("n1", "a"))
	chosen, looking := podInfo("1"), podInfo("2")
	if _, st := a.PreFilter(t.Context(), nil, chosen, s); st != nil {
		t.Fatal(said(st))
	}
	if st := a.Reserve(t.Context(), nil, chosen, "n1"); st != nil {
		t.Fatal(said(st))
	}
	if _, st := a.PreFilter(t.Context(), nil, looking, s); st != nil {
		t.Fatal(said(st))
	}
	if err := l.Apply(t.Context(), loader.File, entry(t, "settings: {refuse: prebind}")); err != nil {
		t.Fatal(err)
	}
	if schedulerOf(t, l) != a {
		t.Error("the adapter is another one")
	}
	if st := a.PreBind(t.Context(), nil, chosen, "n1"); st != nil {
		t.Errorf("prebind: %s", said(st))
	}
	a.PostBind(t.Context(), nil, chosen, "n1")
	if st := a.Filter(t.Context(), nil, looking, s.Nodes[0]); st == nil || st.Code != framework.Error {
		t.Errorf("filter: %s", said(st))
	}
	if _, st := a.PreFilter(t.Context(), nil, looking, s); st != nil {
		t.Fatal(said(st))
	}
	if st := a.PreBind(t.Context(), nil, looking, "n1"); said(st) != "2 refused at prebind after prefilter,prebind" {
		t.Errorf("prebind: %s", said(st))
	}
}

func TestHostileSchedulerPlugin(t *testing.T) {
	const head = `(module (import "k8s.io/api" "node" (func $node (param i32 i32 i32 i32) (result i32)))
		(import "k8s.io/scheduler" "currentPod" (func $pod (param i32 i32) (result i32)))
		(import "k8s.io/scheduler" "result.status_reason" (func $reason (param i32 i32)))
		(import "k8s.io/scheduler" "result.normalized_score_list" (func $scores (param i32 i32)))
		(import "k8s.io/klog" "logs" (func $logs (param i32 i32 i32 i32 i32)))
		(memory (export "memory") 1)
		(func (export "filter") (result i32) `
	for name, c := range map[string]struct{ run, want string }{
		"buffer outside":     {`(drop (call $pod (i32.const -8) (i32.const -1)))`, "bad pointer"},
		"name outside":       {`(drop (call $node (i32.const -1) (i32.const 5) (i32.const 0) (i32.const 0)))`, "bad pointer"},
		"huge name":          {`(drop (call $node (i32.const 0) (i32.const -1) (i32.const 0) (i32.const 0)))`, "ok"},
		"huge reason":        {`(call $reason (i32.const 0) (i32.const -1))`, "output size"},
		"reason outside":     {`(call $reason (i32.const 65535) (i32.const 9))`, "bad pointer"},
		"scores of nonsense": {`(call $scores (i32.const 0) (i32.const 9))`, "input refused"},
		"log outside":        {`(call $logs (i32.const 0) (i32.const -1) (i32.const 9) (i32.const -1) (i32.const 9))`, "bad pointer"},
		"flood of log":       {`(loop $l (call $logs (i32.const 0) (i32.const 0) (i32.const 4096) (i32.const 0) (i32.const 4096)) (br $l))`, "fuel"},
		"an unknown status":  {`(return (i32.const 77))`, "unknown status"},
	} {
		t.Run(name, func(t *testing.T) {
			a := schedulerOf(t, load(t, assemble(t, head+c.run+" (i32.const 0)))"), nil, "limits: {startFuel: 3000000, fuel: 3000000}"))
			p, s := podInfo("1"), snapshot(newNode("n1", "a"))
			if _, st := a.PreFilter(t.Context(), nil, p, s); st != nil {
				t.Fatal(said(st))
			}
			if st := a.Filter(t.Context(), nil, p, s.Nodes[0]); !strings.Contains(said(st), c.want) {
				t.Errorf("filter: %s, want %q", said(st), c.want)
			}
		})
	}
	for source, want := range map[string]string{
		`(module (memory (export "memory") 1) (func (export "filter")))`:                           "filter is (): expected () -> i32",
		`(module (memory (export "memory") 1) (func (export "score") (result i32) (i32.const 0)))`: "score is () -> i32: expected () -> i64",
	} {
		if _, err := tryLoad(t, assemble(t, source), nil, "abi: kube-scheduler-wasm"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := tryLoad(t, assemble(t, `(module (memory (export "memory") 1))`), nil, "abi: kube-scheduler-wasm"); err == nil || !strings.Contains(err.Error(), "no function of a scheduling point") {
		t.Errorf("error %v", err)
	}
	if _, err := tryLoad(t, schedGuest(t), nil, "settings: {}\npoints: [admission.validate]"); err == nil || !strings.Contains(err.Error(),
		"takes part in scheduling") {
		t.Errorf("error %v", err)
	}
}
