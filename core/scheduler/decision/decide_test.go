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
