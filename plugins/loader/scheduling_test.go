// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// scheduling loads a module that answers what it is told to, at one point.
func scheduling(t *testing.T, point, answer string, more ...string) schedulingPlugin {
	t.Helper()
	l := canned(t, answer, append(more, "points: ["+point+"]")...)
	return l.SchedulerPlugins()[0].Plugin.(schedulingPlugin)
}

// schedulingPlugin is everything that an adapter can be asked.
type schedulingPlugin interface { //nolint:interfacebloat // the union of the points, which are interfaces of one or two methods each
	framework.Selective
	framework.Hints
	framework.PreEnqueue
	framework.QueueSort
	framework.PreFilter
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

// roomy is a Simulator of a cluster where removing anybody is enough, or nobody.
type roomy bool

func (r roomy) Fits(context.Context, *framework.NodeInfo, []*framework.PodInfo) *framework.Status {
	if r {
		return nil
	}
	return framework.NewStatus(framework.Unschedulable, "Insufficient cpu")
}

// TestAPluginAtEveryPointOfScheduling: each answer becomes what a native plugin would say.
func TestAPluginAtEveryPointOfScheduling(t *testing.T) {
	vip, low := int32(100), int32(1)
	p := &framework.PodInfo{Pod: pod("a:1", nil)}
	p.Pod.Spec.Priority = &vip
	victim := &framework.PodInfo{Pod: pod("b:1", nil)}
	victim.Pod.Name, victim.Pod.Namespace, victim.Pod.Spec.Priority = "old", "default", &low
	n1, n2 := node("n1", nil, 0, 1), node("n2", nil, 0, 2)
	n1.Pods = []*framework.PodInfo{victim}
	snap := snapshotOf(1, n1, n2)
	status := func(st *framework.Status) string {
		if st == nil {
			return "ok"
		}
		return fmt.Sprintf("%d %s", st.Code, strings.Join(st.Reasons, ", "))
	}
	for _, c := range []struct {
		name, point, answer string
		do                  func(schedulingPlugin) string
		want                string
	}{
		{
			"a gate that is closed", "scheduling.preEnqueue", `{allowed: false, reasons: [no quota]}`,
			func(a schedulingPlugin) string { return status(a.PreEnqueue(t.Context(), p)) }, "2 no quota",
		},
		{
			"a gate that is open", "scheduling.preEnqueue", `{}`,
			func(a schedulingPlugin) string { return status(a.PreEnqueue(t.Context(), p)) }, "ok",
		},
		{"a rank", "scheduling.queueSort", `42`, func(a schedulingPlugin) string {
			rank, st := a.Rank(t.Context(), p, time.Unix(0, 0))
			return fmt.Sprint(rank, " ", status(st))
		}, "42 ok"},
		{"a rank that is none leaves the order to priority", "scheduling.queueSort", `first`, func(a schedulingPlugin) string {
			rank, st := a.Rank(t.Context(), p, time.Unix(0, 0))
			return fmt.Sprint(rank, " ", status(st))
		}, "0 ok"},
		{"a search that is narrowed", "scheduling.preFilter", `{nodes: [n2], state: {x: 1}}`, func(a schedulingPlugin) string {
			nodes, st := a.PreFilter(t.Context(), framework.NewState(), p, snap)
			return fmt.Sprint(nodes, " ", status(st))
		}, "map[n2:true] ok"},
		{
			"a pod that fits nowhere, whatever leaves", "scheduling.preFilter", `{fits: false, unresolvable: true, reasons: [never]}`,
			func(a schedulingPlugin) string {
				_, st := a.PreFilter(t.Context(), framework.NewState(), p, snap)
				return status(st)
			}, "3 never",
		},
		{"a filter that has nothing to say", "scheduling.preFilter", `{skip: true}`, func(a schedulingPlugin) string {
			_, st := a.PreFilter(t.Context(), framework.NewState(), p, snap)
			return status(st)
		}, "5 "},
		{"a nomination", "scheduling.postFilter", `{nominated: n1, evict: [{namespace: default, name: old}]}`, func(a schedulingPlugin) string {
			n, st := a.PostFilter(t.Context(), framework.NewState(), p, snap, nil, roomy(true))
			return fmt.Sprint(n.Node, " ", n.Victims[0].Pod.Name, " ", status(st))
		}, "n1 old ok"},
		{"a nomination that would not help", "scheduling.postFilter", `{nominated: n1}`, func(a schedulingPlugin) string {
			_, st := a.PostFilter(t.Context(), framework.NewState(), p, snap, nil, roomy(false))
			return status(st)
		}, "2 plugin canned nominated node n1, where the pod does not fit: Insufficient cpu"},
		{
			"a victim that is as important", "scheduling.postFilter", `{nominated: n1, evict: [{namespace: default, name: old}]}`,
			func(a schedulingPlugin) string {
				same := &framework.PodInfo{Pod: p.Pod.DeepCopy()}
				same.Pod.Spec.Priority = &low
				n, st := a.PostFilter(t.Context(), framework.NewState(), same, snap, nil, roomy(true))
				return fmt.Sprint(n, " ", status(st))
			}, "<nil> 1 plugin \"canned\" failed (bad answer): it evicts pod default/old of priority 1 for one of priority 1: only pods of lower priority make room",
		},
		{"scores that are put right", "scheduling.normalize", `[7, 100]`, func(a schedulingPlugin) string {
			scores := []int64{1, 2}
			st := a.Normalize(t.Context(), framework.NewState(), p, snap.Nodes, scores)
			return fmt.Sprint(scores, " ", status(st))
		}, "[7 100] ok"},
		{"too few scores leave those there are", "scheduling.normalize", `[7]`, func(a schedulingPlugin) string {
			scores := []int64{1, 2}
			st := a.Normalize(t.Context(), framework.NewState(), p, snap.Nodes, scores)
			return fmt.Sprint(scores, " ", status(st))
		}, "[1 2] ok"},
		{
			"scores of nobody", "scheduling.preScore", `{skip: true}`,
			func(a schedulingPlugin) string {
				return status(a.PreScore(t.Context(), framework.NewState(), p, snap.Nodes))
			}, "5 ",
		},
		{
			"a reservation refused", "scheduling.reserve", `{allowed: false}`,
			func(a schedulingPlugin) string { return status(a.Reserve(t.Context(), framework.NewState(), p, "n1")) },
			"2 plugin canned holds the pod back",
		},
		{"permission later", "scheduling.permit", `{decision: wait, waitSeconds: 2.5}`, func(a schedulingPlugin) string {
			st, wait := a.Permit(t.Context(), framework.NewState(), p, "n1")
			return fmt.Sprint(status(st), wait)
		}, "4 2.5s"},
		{"no permission", "scheduling.permit", `{decision: deny, reasons: [too late]}`, func(a schedulingPlugin) string {
			st, _ := a.Permit(t.Context(), framework.NewState(), p, "n1")
			return status(st)
		}, "2 too late"},
		{
			"not prepared", "scheduling.preBind", `{allowed: false, reasons: [no volume]}`,
			func(a schedulingPlugin) string { return status(a.PreBind(t.Context(), framework.NewState(), p, "n1")) }, "2 no volume",
		},
		{"a binding with annotations", "scheduling.bind", `{annotations: {gpu: "3"}}`, func(a schedulingPlugin) string {
			b, st := a.Bind(t.Context(), framework.NewState(), p, "n1")
			return fmt.Sprint(b.Annotations, " ", b.Done, " ", status(st))
		}, "map[gpu:3] false ok"},
	} {
		t.Run(c.name, func(t *testing.T) {
			more := "mode: Enforce"
			if strings.Contains(c.want, "bad answer") {
				more = "failurePolicy: Fail"
			}
			if got := c.do(scheduling(t, c.point, c.answer, more)); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestASchedulingPluginIsAskedWhereItHasHooks, and nowhere else; hooks in Shadow have no effect.
func TestASchedulingPluginIsAskedWhereItHasHooks(t *testing.T) {
	a := scheduling(t, "scheduling.preEnqueue", `{allowed: false}`, "mode: Shadow")
	if !a.Takes(framework.AtPreEnqueue) || a.Takes(framework.AtFilter) || a.Takes(framework.AtJudge) || a.Takes(framework.AtQueueSort) {
		t.Error("it takes part elsewhere, or not at preEnqueue")
	}
	if st := a.PreEnqueue(t.Context(), &framework.PodInfo{Pod: pod("a:1", nil)}); !st.IsSuccess() {
		t.Errorf("in Shadow it refuses: %+v", st)
	}
	if a.Hints() != framework.AnyEvent {
		t.Error("without events it waits for some only")
	}
}

// TestACandidateJudgesBesideANodeTable: a second table, whose verdicts are compared and change nothing.
func TestACandidateJudgesBesideANodeTable(t *testing.T) {
	plugintest.Example(t, "prefer-label")
	const plugin = "plugins:\n  - name: prefer-label\n    source: file:build/wasm/prefer-label.wasm\n    settings: {label: disk, value: ssd}\n"
	l := newLoader(t, loader.Config{
		InProcess: true, Dir: plugintest.Root(t),
		Entries: entries(t, plugin+"    candidate: {settings: {label: disk, value: ssd, required: true}}\n"),
	})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := l.SchedulerPlugins()[0].Plugin.(framework.Judge)
	fast := map[string]string{"disk": "ssd"}
	snap := &framework.Snapshot{
		Nodes: []*framework.NodeInfo{node("n1", fast, 0, 1), node("n2", fast, 0, 2)}, Generation: 2,
		NodesGeneration: 1,
	}
	judge := func(generation int64) {
		t.Helper()
		snap.Generation = generation
		verdicts, st := a.Judge(t.Context(), &framework.PodInfo{Pod: pod("a:1", nil)}, snap)
		if !st.IsSuccess() || verdicts[1].Status != nil {
			t.Fatalf("the candidate has an effect: %+v %+v", verdicts, st)
		}
	}
	candidate := func(what string, is func(*loader.CandidateStatus) bool) {
		t.Helper()
		eventually(t, what, func() bool { c := l.Status()[0].Candidate; return c != nil && is(c) })
	}
	judge(2)
	candidate("both say the same", func(c *loader.CandidateStatus) bool { return c.Calls == 1 && c.Differing == 0 && c.MeanFuel > 0 })

	// One node changes: the candidate's table has its row too.
	snap.Nodes[1] = node("n2", nil, 0, 3)
	judge(3)
	candidate("a difference", func(c *loader.CandidateStatus) bool { return c.Calls == 2 && c.Differing == 1 })
	d := l.Status()[0].Candidate.Differences[0]
	if d.Enforced != "2 of 2 nodes fit; n2: 0" || d.Candidate != "1 of 2 nodes fit; n2: node(s) didn't have the label disk=ssd" ||
		!strings.HasPrefix(d.About, "Pod ") || d.Point != "scheduling.table" {
		t.Errorf("%+v", d)
	}

	// It goes, and comes again, in the middle of cycles; nothing is left of it.
	for i := range 3 {
		if err := l.Apply(t.Context(), loader.File, entries(t, plugin)); err != nil {
			t.Fatal(err)
		}
		judge(int64(4 + 2*i))
		if err := l.Apply(t.Context(), loader.File,
			entries(t, plugin+"    candidate: {settings: {label: disk, value: hdd, required: true}}\n")); err != nil {
			t.Fatal(err)
		}
		judge(int64(5 + 2*i))
		candidate("another one judges", func(c *loader.CandidateStatus) bool { return c.Calls == 1 && c.Differing == 1 })
	}
	// Closing the loader waits for every instance that somebody holds: it would not end.
}

// passing answers a state at preFilter, and at preBind an error that is what it was given.
const passing = `(module
	(memory (export "memory") 2)
	(data (i32.const 0) "%s")
	(data (i32.const 2048) "{\"state\":{\"team\":\"blue\",\"n\":9007199254740993}}")
	(func (export "describe") (result i64) (i64.const %d))
	(func (export "alloc") (param i32) (result i32) (i32.const 65536))
	(func (export "call") (param i32 i32 i32) (result i64)
		(if (i32.eq (local.get 0) (i32.const 1)) (then
			(return (i64.or (i64.shl (i64.const 2048) (i64.const 32)) (i64.const 46)))))
		(i64.or (i64.shl (i64.extend_i32_u (local.get 1)) (i64.const 32))
			(i64.or (i64.const 0x80000000) (i64.extend_i32_u (local.get 2))))))`

// TestStateGoesFromPreFilterToTheLaterHooks of the same cycle.
func TestStateGoesFromPreFilterToTheLaterHooks(t *testing.T) {
	manifest := `{"abi":1,"name":"passing","hooks":[{"op":1,"point":"scheduling.preFilter","fields":["pod.metadata.name"]},{"op":2,"point":"scheduling.preBind","fields":["nodeName","state"]}]}`
	wasm, err := wat.Assemble(fmt.Sprintf(passing, strings.ReplaceAll(manifest, `"`, `\"`), len(manifest)))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	replaceFile(t, filepath.Join(dir, "passing.wasm"), wasm)
	l := newLoader(t,
		loader.Config{InProcess: true, Dir: dir, Entries: entries(t, "plugins: [{name: passing, source: \"file:passing.wasm\"}]")})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := l.SchedulerPlugins()[0].Plugin.(schedulingPlugin)
	state, p := framework.NewState(), &framework.PodInfo{Pod: pod("a:1", nil)}
	if _, st := a.PreFilter(t.Context(), state, p, snapshotOf(1)); !st.IsSuccess() {
		t.Fatalf("%+v", st)
	}
	for name, s := range map[string]*framework.State{"its own": state, "a simulation's": state.Clone()} {
		st := a.PreBind(t.Context(), s, p, "n1")
		if st == nil || !strings.Contains(st.Reasons[0], `{"nodeName":"n1","state":{"n":9007199254740993,"team":"blue"}}`) {
			t.Errorf("with %s state, it was given %+v", name, st)
		}
	}
	if st := a.PreBind(t.Context(), framework.NewState(), p, "n1"); st == nil || strings.Contains(st.Reasons[0], "blue") {
		t.Errorf("in another cycle, it was given %+v", st)
	}
}
