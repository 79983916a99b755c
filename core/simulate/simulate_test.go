// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
	"github.com/wasmplane/wasmplane/core/simulate"
)

func defaults() simulate.Policy {
	return simulate.Policy{Name: "default", Profiles: func(inf informers.SharedInformerFactory) ([]scheduler.Profile, queue.Config, error) {
		return []scheduler.Profile{{Name: corev1.DefaultSchedulerName, Plugins: native.Default(native.Config{Informers: inf})}}, queue.Config{},
			nil
	}}
}

func nodes(n int, cpu string) (c simulate.Cluster) {
	c.Prices = map[string]float64{}
	for i := range n {
		name := fmt.Sprintf("n%d", i)
		c.Prices[name] = 2
		c.Nodes = append(c.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:   name,
				Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: string(rune('a' + i%2))},
			},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
				"cpu": resource.MustParse(cpu), "memory": resource.MustParse("64Gi"),
				"pods": resource.MustParse("110"),
			}},
		})
	}
	return c
}

func comes(at time.Duration, name, cpu string, lasts time.Duration, change ...func(*simulate.Arrival)) simulate.Arrival {
	var grace int64 = 30
	a := simulate.Arrival{At: at, Lasts: lasts, Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{
			SchedulerName: corev1.DefaultSchedulerName, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "c", Image: "i",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					"cpu":    resource.MustParse(cpu),
					"memory": resource.MustParse("1Gi"),
				}},
			}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}}
	for _, f := range change {
		f(&a)
	}
	return a
}

func priority(n int32) func(*simulate.Arrival) {
	return func(a *simulate.Arrival) { a.Pod.Spec.Priority = &n }
}

func run(t *testing.T, cfg simulate.Config) *simulate.Result {
	t.Helper()
	if cfg.Policy.Profiles == nil {
		cfg.Policy = defaults()
	}
	r, err := simulate.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A crowd that fills the nodes, waits, is preempted and comes back.
func crowd(seed uint64) simulate.Config {
	cfg := simulate.Config{Cluster: nodes(20, "4"), Length: 6 * time.Hour, Try: time.Millisecond, Seed: seed}
	for i := range 300 {
		cpu := []string{"500m", "1", "3"}[i%3]
		cfg.Arrivals = append(cfg.Arrivals, comes(time.Duration(i)*20*time.Second, fmt.Sprintf("p%d", i), cpu,
			time.Duration(10+i%50)*time.Minute, priority(int32(i%7/6)), func(a *simulate.Arrival) {
				a.Comeback = simulate.Restart
			}))
	}
	return cfg
}

func TestTheSameSeedGivesTheSameBytes(t *testing.T) {
	text := func(seed uint64) (string, *simulate.Result) {
		r := run(t, crowd(seed))
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b), r
	}
	first, r := text(1)
	if r.Pods.Preempted == 0 || r.Waiting.P99 == 0 || r.Tries <= r.Pods.Placed {
		t.Fatalf("the crowd shows too little: %+v, %d tries", r.Pods, r.Tries)
	}
	if again, _ := text(1); again != first {
		t.Errorf("the same seed gave\n%s\nand\n%s", first, again)
	}
	if other, _ := text(2); other == first {
		t.Error("another seed gave the same")
	}
}

// One node has room for two pods of an hour: the third one waits until the first is over.
func TestWaitingUseAndCostAreWhatTheyAre(t *testing.T) {
	r := run(t, simulate.Config{Cluster: nodes(1, "4"), Length: 4 * time.Hour, Arrivals: []simulate.Arrival{
		comes(0, "a", "2", time.Hour), comes(0, "b", "2", time.Hour), comes(0, "c", "2", time.Hour),
	}})
	if r.Pods != (simulate.Pods{Arrived: 3, Placed: 3, Finished: 3}) {
		t.Errorf("pods: %+v", r.Pods)
	}
	if w := r.Waiting; w.P50 != 0 || w.P99 != 3600 || w.Longest != 3600 {
		t.Errorf("waiting: %+v", w)
	}
	// 4 cpu for an hour, 2 for another, of 4 for four.
	if cpu := r.Resources[corev1.ResourceCPU]; cpu.Mean != 0.375 || cpu.Peak != 1 {
		t.Errorf("cpu: %+v", cpu)
	}
	if n := r.Nodes; n.Hours != 2 || n.Cost != 4 || n.Peak != 1 || n.Mean != 0.5 {
		t.Errorf("nodes: %+v", n)
	}
}

func TestWhatKeepsPodsIsSaid(t *testing.T) {
	r := run(t, simulate.Config{Cluster: nodes(3, "4"), Length: time.Hour, Arrivals: []simulate.Arrival{
		comes(0, "large", "9", 0), comes(0, "larger", "10", 0),
		comes(0, "nobody's", "1", 0, func(a *simulate.Arrival) { a.Pod.Spec.SchedulerName = "other" }),
		comes(0, "elsewhere", "1", 0, func(a *simulate.Arrival) { a.Pod.Spec.NodeSelector = map[string]string{"disk": "ssd"} }),
	}})
	want := []simulate.Reason{
		{Plugin: "NodeResourcesFit", Reason: "Insufficient cpu", Pods: 2},
		{Reason: "it was not tried: no profile has its schedulerName, or its turn did not come", Pods: 1},
		{Plugin: "NodeAffinity", Reason: "node(s) didn't match Pod's node affinity/selector", Pods: 1},
	}
	if fmt.Sprint(r.Pending) != fmt.Sprint(want) || r.Pods.Pending != 4 || r.Waiting.Pending != 3600 {
		t.Errorf("pending %d for %gs: %+v", r.Pods.Pending, r.Waiting.Pending, r.Pending)
	}
}

// A preempted pod takes its grace period to go; what comes back runs for what was left.
func TestAPreemptedPodComesBack(t *testing.T) {
	for comeback, finished := range map[simulate.Comeback]int{simulate.Never: 1, simulate.GoesOn: 2, simulate.Restart: 1} {
		r := run(t, simulate.Config{Cluster: nodes(1, "4"), Length: 100 * time.Minute, Arrivals: []simulate.Arrival{
			comes(0, "low", "4", time.Hour, func(a *simulate.Arrival) { a.Comeback = comeback }),
			comes(30*time.Minute, "high", "4", 30*time.Minute, priority(10)),
		}})
		// high waits for half a minute; low has run for half an hour and as much, and is done
		// after an hour and 90 minutes.
		if r.Preemptions != 1 || r.Pods.Preempted != 1 || r.Pods.Finished != finished || r.Waiting.Longest < 30 {
			t.Errorf("comeback %d: %+v, %d preemptions, waiting %+v", comeback, r.Pods, r.Preemptions, r.Waiting)
		}
	}
}

// A gang comes at four times; it is placed when the node is empty, as one.
func TestAGangIsPlacedAsOne(t *testing.T) {
	name, of := "g", int32(3)
	member := func(a *simulate.Arrival) {
		a.Pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
	}
	cfg := simulate.Config{Cluster: nodes(1, "4"), Length: time.Hour, Try: time.Millisecond, Seed: 1, Policy: defaults()}
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "g"}}
	g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: of}
	cfg.Cluster.Groups = []*schedulingv1beta1.PodGroup{g}
	cfg.Arrivals = []simulate.Arrival{
		comes(0, "first", "2", 30*time.Minute),
		comes(time.Minute, "a", "1", 0, member), comes(2*time.Minute, "b", "1", 0, member), comes(3*time.Minute, "c", "1", 0, member),
		comes(40*time.Minute, "last", "1", 0),
	}
	r := run(t, cfg)
	if r.Pods.Placed != 5 || r.Waiting.Longest < 29*60 || r.Waiting.Longest > 29*60+10 {
		t.Errorf("%d placed, waiting %+v; want 5, and 29 minutes of the gang's first", r.Pods.Placed, r.Waiting)
	}
}

// Stranded is free cpu where the median pod does not fit.
func TestStrandedIsWhereTheTypicalPodDoesNotFit(t *testing.T) {
	r := run(t, simulate.Config{Cluster: nodes(2, "4"), Length: time.Hour, Arrivals: []simulate.Arrival{
		comes(0, "a", "3", 0), comes(0, "b", "2", 0), comes(0, "c", "1", 0, func(a *simulate.Arrival) { a.Pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n9"} }),
	}})
	last := r.Series[len(r.Series)-1]
	// One node has 1 cpu left, the other 2; the median asks for 2.
	if last.Stranded != 0.3333 {
		t.Errorf("stranded %g of %+v", last.Stranded, last)
	}
}

func BenchmarkADay(b *testing.B) {
	cfg := simulate.Config{Cluster: nodes(1000, "16"), Length: 24 * time.Hour, Try: time.Millisecond, Policy: defaults()}
	for i := range 10_000 {
		cfg.Arrivals = append(cfg.Arrivals, comes(time.Duration(i)*8*time.Second, fmt.Sprintf("p%d", i), []string{"500m", "2", "4"}[i%3],
			time.Duration(1+i%5)*time.Hour))
	}
	for b.Loop() {
		if _, err := simulate.Run(b.Context(), cfg); err != nil {
			b.Fatal(err)
		}
	}
}
