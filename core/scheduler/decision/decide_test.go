// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/sweep"
)

// rows refuses every third node and finds the others equally good.
type rows struct{}

func (rows) Name() string { return "rows" }

func (rows) Filter(_ context.Context, _ *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	runtime.Gosched() // lets goroutines overtake each other
	if n.Node.Labels["third"] == "true" {
		return framework.NewStatus(framework.Unschedulable, "a third node")
	}
	return nil
}

func (rows) Score(context.Context, *framework.State, *framework.PodInfo, *framework.NodeInfo) (int64, *framework.Status) {
	return 50, nil
}

func rowsOf(n int) *framework.Snapshot {
	snap := &framework.Snapshot{Index: map[string]int{}}
	for i := range n {
		name := fmt.Sprintf("n%03d", i)
		snap.Index[name] = i
		snap.Nodes = append(snap.Nodes, framework.NewNodeInfo(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"third": fmt.Sprint(i%3 == 2)},
		}}))
	}
	return snap
}

// What decided once decides again: with the same Circumstances, and with any number of
// goroutines, everything that a Decision says is the same.
func TestADecisionCanBeReplayed(t *testing.T) {
	prof, err := Compile(Profile{Name: "replay", Plugins: []Weighted{{Plugin: rows{}}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	snap, pod := rowsOf(400), framework.NewPodInfo(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}})
	clock := func() time.Time { return time.Unix(0, 0) }
	decide := func(workers int, seed uint64) *Decision {
		d := prof.Decide(t.Context(), pod, snap, Circumstances{Start: 390, Workers: workers, Seed: seed, Now: clock}, Blind{})
		d.Effort.Now, d.State = nil, nil // two functions are never equal
		return d
	}
	recorded := decide(1, 7)
	if recorded.Node == "" || len(recorded.Feasible) != sweep.Enough(400, 0) {
		t.Fatalf("decided for %q among %d nodes, want one among %d", recorded.Node, len(recorded.Feasible), sweep.Enough(400, 0))
	}
	if n := recorded.Effort.Asked("Filter", "rows"); n != recorded.Evaluated {
		t.Errorf("the filter counts as asked %d times about %d nodes", n, recorded.Evaluated)
	}
	for _, workers := range []int{1, 2, 8} {
		for range 20 {
			if again := decide(workers, 7); !reflect.DeepEqual(again, recorded) {
				t.Fatalf("with %d workers: node %s after %d nodes, %d feasible; recorded were %s, %d, %d", workers,
					again.Node, again.Evaluated, len(again.Feasible), recorded.Node, recorded.Evaluated, len(recorded.Feasible))
			}
		}
	}
	others := map[string]bool{}
	for seed := range uint64(20) {
		others[decide(1, seed).Node] = true
	}
	if len(others) < 2 {
		t.Error("among equals every seed takes the same node")
	}
}

// The nodes that a span shows are the best ones, and of equal ones the first.
func TestTheBestNodesAreShown(t *testing.T) {
	d := &Decision{Scores: map[string][]int64{}}
	d.Feasible = rowsOf(100).Nodes
	first, second := make([]int64, 100), make([]int64, 100)
	for i := range first {
		first[i], second[i] = int64(i*37%100), int64(i%2*1000)
	}
	d.Scores["first"], d.Scores["second"] = first, second
	var shows map[string]map[string]int64
	if err := json.Unmarshal([]byte(d.ScoresByNode()), &shows); err != nil {
		t.Fatal(err)
	}
	order := make([]int, 100)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(first[b] + second[b] - first[a] - second[a]) })
	for _, i := range order[:shown] {
		want := map[string]int64{"first": first[i], "second": second[i], "total": first[i] + second[i]}
		if got := shows[d.Feasible[i].Node.Name]; !maps.Equal(got, want) {
			t.Errorf("node %d: %v, want %v", i, got, want)
		}
	}
	if len(shows) != shown {
		t.Errorf("%d nodes are shown", len(shows))
	}
}

// one is a plugin that narrows the search to some nodes, as a pod of a DaemonSet does.
type one struct{ names map[string]bool }

func (one) Name() string { return "NodeAffinity" }

func (o one) PreFilter(context.Context, *framework.State, *framework.PodInfo, *framework.Snapshot) (map[string]bool, *framework.Status) {
	return o.names, nil
}

// counting counts the nodes that it is asked about, and refuses some.
type counting struct {
	asked   *atomic.Int64
	refuses string
}

func (counting) Name() string { return "counting" }

func (c counting) Filter(_ context.Context, _ *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	c.asked.Add(1)
	if n.Node.Name == c.refuses {
		return framework.NewStatus(framework.Unschedulable, "refused")
	}
	return nil
}

// A search that is narrowed looks at those nodes alone, wherever it begins; a pod that has no node is told of the others too.
func TestANarrowedSearchLooksAtThoseNodesAlone(t *testing.T) {
	snap, pod := rowsOf(400), framework.NewPodInfo(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}})
	few := []int{2, 3, 5, 7, 11, 13, 17}
	for _, c := range []struct {
		names    []string
		refuses  string
		only     []int
		node     string
		asked    int64
		refusals string
	}{
		{[]string{"n123"}, "", nil, "n123", 1, ""},
		{[]string{"n123", "is not there"}, "", nil, "n123", 1, ""},
		{[]string{"n123", "n124"}, "n124", nil, "n123", 2, ""},
		{[]string{"n123"}, "n123", nil, "", 1, "NodeAffinity 399, counting 1"},
		{[]string{"is not there"}, "", nil, "", 0, "NodeAffinity 400"},
		{[]string{"n003", "n004"}, "", few, "n003", 1, ""},
		{[]string{"n003", "n004"}, "n003", few, "", 1, " 393, NodeAffinity 6, counting 1"},
	} {
		asked, names := &atomic.Int64{}, map[string]bool{}
		for _, name := range c.names {
			names[name] = true
		}
		prof, err := Compile(Profile{Name: "narrow", Plugins: []Weighted{{Plugin: one{names}}, {Plugin: counting{asked, c.refuses}}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, start := range []int{0, 100, 399} {
			asked.Store(0)
			d := prof.Decide(t.Context(), pod, snap, Circumstances{Now: time.Now, Start: start, Workers: 4, Only: c.only}, Blind{})
			var refusals []string
			if d.Node == "" {
				for _, r := range d.Refusals() {
					refusals = append(refusals, fmt.Sprint(r.Plugin, " ", r.Nodes))
				}
			}
			if d.Node != c.node || asked.Load() != c.asked || strings.Join(refusals, ", ") != c.refusals {
				t.Errorf("%v without %q of %v from %d: node %q, %d asked, refusals %q; want %+v", c.names, c.refuses, c.only, start,
					d.Node, asked.Load(), refusals, c)
			}
		}
	}
}

// A span names the first of the nodes that were left out, in order.
func TestASpanNamesAFewNodes(t *testing.T) {
	prof, err := Compile(Profile{Name: "spans", Plugins: []Weighted{{Plugin: rows{}}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pod := framework.NewPodInfo(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}})
	for nodes, want := range map[int]string{
		3: "2 of 3 nodes fit; left out: n002: a third node [rows]",
		60: "40 of 60 nodes fit; left out: n002: a third node [rows]; n005: a third node [rows]; n008: a third node [rows]; " +
			"n011: a third node [rows]; n014: a third node [rows]; n017: a third node [rows]; n020: a third node [rows]; " +
			"n023: a third node [rows]; n026: a third node [rows]; n029: a third node [rows] and 10 more",
	} {
		if got := prof.Decide(t.Context(), pod, rowsOf(nodes), Circumstances{Now: time.Now, Workers: 1}, Blind{}).NodesLeftOut(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
