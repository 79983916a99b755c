// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/toolchain"
)

// raters are the guests that rate nodes: three keep the node table, one is asked for each node.
var raters = []guest{
	{"nodes", "c", toolchain.C, "resident table, C"},
	{"nodes", "rust", toolchain.Rust, "resident table, Rust"},
	{"nodes", "go", toolchain.Go, "resident table, Go"},
	{"nodes", "each", toolchain.C, "a call for each node, C"},
}

// fewestPods is the same in native Go, as a plugin of the scheduler would be written.
type fewestPods struct{}

func (fewestPods) Name() string { return "fewest-pods" }

var full = framework.NewStatus(framework.Unschedulable, "node(s) were full")

func (fewestPods) Judge(_ context.Context, _ *framework.PodInfo, s *framework.Snapshot) ([]framework.Verdict, *framework.Status) {
	out := make([]framework.Verdict, len(s.Nodes))
	for i, n := range s.Nodes {
		pods, room := int64(len(n.Pods)), n.Allocatable.Pods
		if pods >= room {
			out[i].Status = full
			continue
		}
		out[i].Score = 100 * (room - pods) / room
	}
	return out, nil
}

// perNode asks a plugin about each node, as the scheduler does.
type perNode struct {
	framework.Filter
	framework.Score
}

func (p perNode) Judge(ctx context.Context, pod *framework.PodInfo, s *framework.Snapshot) ([]framework.Verdict, *framework.Status) {
	state, out := framework.NewState(), make([]framework.Verdict, len(s.Nodes))
	for i, n := range s.Nodes {
		if out[i].Status = p.Filter.Filter(ctx, state, pod, n); !out[i].Status.IsSuccess() {
			continue
		}
		var st *framework.Status
		if out[i].Score, st = p.Score.Score(ctx, state, pod, n); !st.IsSuccess() {
			return nil, st
		}
	}
	return out, nil
}

type judging interface {
	Judge(ctx context.Context, p *framework.PodInfo, s *framework.Snapshot) ([]framework.Verdict, *framework.Status)
}

type rater struct {
	name    string
	missing error
	judging
}

func allRaters(tb testing.TB) []rater {
	tb.Helper()
	out := []rater{{name: "native Go", judging: fewestPods{}}}
	for _, g := range raters {
		wasm, err := g.build(tb)
		if err != nil {
			out = append(out, rater{name: g.label, missing: err})
			continue
		}
		plugin := loaded(tb, wasm, "").SchedulerPlugins()[0].Plugin
		if g.name != "each" {
			out = append(out, rater{name: g.label, judging: plugin.(framework.Judge)})
			continue
		}
		out = append(out, rater{name: g.label, judging: perNode{plugin.(framework.Filter), plugin.(framework.Score)}})
	}
	return out
}

// nodesOf makes a snapshot of n nodes with 0 to 110 pods each.
func nodesOf(n int) *framework.Snapshot {
	pods := make([]*framework.PodInfo, 111)
	for i := range pods {
		pods[i] = &framework.PodInfo{Pod: &corev1.Pod{}}
	}
	s := &framework.Snapshot{NodesGeneration: 1}
	for i := range n {
		s.Nodes = append(s.Nodes, &framework.NodeInfo{
			Node:        &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}},
			Allocatable: framework.Resources{Pods: 110, MilliCPU: 4000}, Pods: pods[:i%111], Generation: int64(i + 1),
		})
	}
	s.Generation = int64(n)
	return s
}

// turnOver has one node change, as a pod that was bound before does.
func turnOver(s *framework.Snapshot, i int) {
	s.Generation++
	s.Nodes[i%len(s.Nodes)].Generation = s.Generation
}

// TestEveryRaterRatesTheSame: what is compared is one plugin.
func TestEveryRaterRatesTheSame(t *testing.T) {
	s, p := nodesOf(300), &framework.PodInfo{Pod: webPod()}
	want, _ := fewestPods{}.Judge(t.Context(), p, s)
	for _, r := range allRaters(t) {
		if r.missing != nil {
			t.Errorf("%s could not be built: %v", r.name, r.missing)
			continue
		}
		got, st := r.Judge(t.Context(), p, s)
		if !st.IsSuccess() {
			t.Fatalf("%s: %v", r.name, st)
		}
		for i := range got {
			if got[i].Score != want[i].Score || got[i].Status.IsSuccess() != want[i].Status.IsSuccess() ||
				!got[i].Status.IsSuccess() && !reflect.DeepEqual(got[i].Status.Reasons, want[i].Status.Reasons) {
				t.Errorf("%s, node %d: %+v, want %+v", r.name, i, got[i], want[i])
				break
			}
		}
	}
}

// BenchmarkNodes is one pod over 5,000 nodes, of which one has changed since the pod before.
func BenchmarkNodes(b *testing.B) {
	for b.Loop() {
		measureNodes(b, 5000, 10, 200*time.Millisecond).publish(b)
	}
}

func measureNodes(tb testing.TB, nodes, rounds int, turn time.Duration) *table {
	tb.Helper()
	s, p, all := nodesOf(nodes), &framework.PodInfo{Pod: webPod()}, allRaters(tb)
	out := newTable(fmt.Sprintf("One pod over %d nodes: microseconds", nodes), "", "p50", "p99", "CPU", "of native")
	took, used := make([][]time.Duration, len(all)), make([]time.Duration, len(all))
	for round := range rounds + 1 {
		for i, r := range all {
			if r.missing != nil {
				continue
			}
			before, until := cpu(tb), time.Now().Add(turn)
			for n := 0; time.Now().Before(until); n++ {
				turnOver(s, 7+n)
				start := time.Now()
				_, st := r.Judge(tb.Context(), p, s)
				if round > 0 { // the first one warms up
					took[i] = append(took[i], time.Since(start))
				}
				if !st.IsSuccess() {
					tb.Fatalf("%s: %v", r.name, st)
				}
			}
			if round > 0 {
				used[i] += cpu(tb) - before
			}
		}
	}
	for i, r := range all {
		if r.missing != nil {
			out.row(r.name, "missing: "+firstLine(r.missing))
			continue
		}
		out.row(r.name, micros(median(took[i])), micros(quantile(took[i], 0.99)), micros(used[i]/time.Duration(len(took[i]))),
			fmt.Sprintf("%.2f", ratio(median(took[i]), median(took[0]))))
	}
	out.note("Each has one node whose row is written anew, and answers a list of verdicts.")
	return out
}

// BenchmarkRaters is each by itself, for profiles.
func BenchmarkRaters(b *testing.B) {
	s, p := nodesOf(5000), &framework.PodInfo{Pod: webPod()}
	for _, r := range allRaters(b) {
		if r.missing != nil {
			continue
		}
		b.Run(r.name, func(b *testing.B) {
			b.ReportAllocs()
			used := cpu(b)
			for b.Loop() {
				turnOver(s, 7)
				if _, st := r.Judge(b.Context(), p, s); !st.IsSuccess() {
					b.Fatal(st)
				}
			}
			b.ReportMetric(float64(cpu(b)-used)/float64(b.N), "cpu-ns/op")
		})
	}
}
