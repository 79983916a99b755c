// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
)

// world is a cluster in memory, whose time the test moves on.
type world struct {
	v     *scheduler.Virtual
	now   time.Time
	pods  map[string]*corev1.Pod
	bound []string          // "pod on node", in order
	told  map[string]string // the last message of a pod's condition
	// deleted has the pods in order; one that has gone already cannot be.
	deleted []string
	// fails is why the API refuses to bind a pod; nil = it does not.
	fails func(pod string) error
}

func newWorld(tb testing.TB, seed uint64, extra ...scheduler.Weighted) *world {
	tb.Helper()
	w := &world{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), pods: map[string]*corev1.Pod{}, told: map[string]string{}}
	inf := informers.NewSharedInformerFactory(nil, 0)
	v, err := scheduler.NewVirtual(scheduler.VirtualConfig{
		Profiles: []scheduler.Profile{{
			Name:    corev1.DefaultSchedulerName,
			Plugins: append(native.Default(native.Config{Informers: inf}), extra...),
		}},
		Informers: inf, Effects: w, Now: func() time.Time { return w.now }, Seed: seed, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		tb.Fatal(err)
	}
	w.v = v
	return w
}

func (w *world) change(name string, f func(*corev1.Pod)) {
	old := w.pods[name]
	now := old.DeepCopy()
	f(now)
	w.pods[name] = now
	w.v.ChangePod(old, now)
}

// Bind implements scheduler.Effects.
func (w *world) Bind(_ context.Context, b *corev1.Binding) error {
	if w.fails != nil {
		if err := w.fails(b.Name); err != nil {
			return err
		}
	}
	w.bound = append(w.bound, b.Name+" on "+b.Target.Name)
	w.change(b.Name, func(p *corev1.Pod) { p.Spec.NodeName = b.Target.Name })
	return nil
}

// PatchStatus implements scheduler.Effects.
func (w *world) PatchStatus(_ context.Context, p *corev1.Pod, status map[string]any) error {
	if all, ok := status["conditions"].([]corev1.PodCondition); ok {
		w.told[p.Name] = all[0].Message
	}
	if node, ok := status["nominatedNodeName"]; ok && w.pods[p.Name] != nil {
		w.change(p.Name, func(p *corev1.Pod) { p.Status.NominatedNodeName, _ = node.(string) })
	}
	return nil
}

// PatchGroup implements scheduler.Effects.
func (w *world) PatchGroup(_ context.Context, g *schedulingv1beta1.PodGroup, c metav1.Condition) error {
	w.told["group "+g.Name] = string(c.Status) + " " + c.Message
	return nil
}

// Delete implements scheduler.Effects.
func (w *world) Delete(_ context.Context, p *corev1.Pod) error {
	w.deleted = append(w.deleted, p.Name)
	w.v.RemovePod(w.pods[p.Name])
	delete(w.pods, p.Name)
	return nil
}

func (w *world) add(p *corev1.Pod) {
	w.pods[p.Name] = p
	w.v.AddPod(p)
}

func (w *world) node(name, cpu, zone string) {
	w.v.SetNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: zone}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			"cpu": resource.MustParse(cpu), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110"),
		}},
	})
}

// told is everything that a decision says, but for the state of its plugins.
func told(d *scheduler.Decision) string {
	var b strings.Builder
	fmt.Fprintln(&b, d.Node, d.Seed, d.Start, d.Total, d.Evaluated, d.Whole, d.PostFilter, d.Message())
	if n := d.Nomination; n != nil {
		fmt.Fprintln(&b, "nominated", n.Node)
		for _, v := range n.Victims {
			fmt.Fprintln(&b, "victim", v.Pod.Name)
		}
	}
	for _, n := range d.Feasible {
		fmt.Fprintln(&b, n.Node.Name)
	}
	var refused []string
	for name, st := range d.Statuses {
		refused = append(refused, fmt.Sprint(name, st.Code, st.Plugin, st.Reasons))
	}
	slices.Sort(refused)
	fmt.Fprintln(&b, refused, d.Scores)
	return b.String()
}

// history schedules a crowd that affinity, spread, priorities and preemption have a say about.
func history(t *testing.T, w *world, seed uint64, step func(scheduler.Try, func(int) *scheduler.Decision)) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // it is to be repeated
	for i := range 60 {
		w.node(fmt.Sprintf("n%02d", i), []string{"2", "4"}[i%2], []string{"a", "b", "c"}[i%3])
	}
	for i := range 400 {
		p := pod(fmt.Sprintf("p%03d", i), []string{"300m", "700m", "1", "3"}[r.IntN(4)])
		app := fmt.Sprintf("app-%d", r.IntN(5))
		p.Labels = map[string]string{"app": app}
		selector := &metav1.LabelSelector{MatchLabels: p.Labels}
		priority := int32(r.IntN(3))
		p.Spec.Priority = &priority
		switch r.IntN(4) {
		case 0:
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 2, TopologyKey: corev1.LabelTopologyZone,
				WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector,
			}}
		case 1:
			p.Spec.Affinity = &corev1.Affinity{
				PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
					{TopologyKey: corev1.LabelHostname, LabelSelector: selector},
				}},
			}
		}
		w.add(p)
		for range 1 + r.IntN(3) {
			try, again, worked, next := w.v.StepToRepeat(t.Context())
			if !worked {
				if !next.IsZero() {
					w.now = next
				}
				break
			}
			step(try, again)
		}
		w.now = w.now.Add(time.Duration(r.IntN(900)) * time.Millisecond)
	}
}

func TestEveryDecisionOfAHistoryCanBeMadeAgain(t *testing.T) {
	type record struct {
		told  string
		again func(int) *scheduler.Decision
	}
	var all []record
	refused, nominated := 0, 0
	w := newWorld(t, 1)
	history(t, w, 7, func(try scheduler.Try, again func(int) *scheduler.Decision) {
		if again == nil {
			return
		}
		all = append(all, record{told(try.Decision), again})
		if try.Decision.Node == "" {
			refused++
		}
		if try.Decision.Nomination != nil {
			nominated++
		}
	})
	if len(all) < 300 || refused == 0 || nominated == 0 {
		t.Fatalf("%d decisions, %d refusals, %d nominations: the history shows too little", len(all), refused, nominated)
	}
	for i, r := range all {
		for _, workers := range []int{1, 4} {
			if again := told(r.again(workers)); again != r.told {
				t.Fatalf("decision %d, again with %d workers:\n%s\nit was:\n%s", i, workers, again, r.told)
			}
		}
	}
}

func TestTheSameEventsAndSeedGiveTheSameHistory(t *testing.T) {
	run := func(seed uint64) []string {
		w := newWorld(t, seed)
		history(t, w, 3, func(scheduler.Try, func(int) *scheduler.Decision) {})
		return w.bound
	}
	first := run(1)
	if !reflect.DeepEqual(first, run(1)) {
		t.Error("the same seed gave another history")
	}
	if reflect.DeepEqual(first, run(2)) {
		t.Error("another seed gave the same history")
	}
}

// patience holds pods back until they have waited a minute, and never lets those go that are called never.
type patience struct{}

func (patience) Name() string { return "patience" }

func (patience) Permit(_ context.Context, s *framework.State, p *framework.PodInfo, _ string) (*framework.Status, time.Duration) {
	began, asked := s.Get(patience{}).(time.Time)
	if !asked {
		began = s.Now()
		s.Set(patience{}, began)
	}
	if left := time.Minute - s.Now().Sub(began); left > 0 || strings.HasPrefix(p.Pod.Name, "never") {
		return framework.NewStatus(framework.Wait), max(left, time.Minute)
	}
	return nil, 0
}

// In virtual time, pods that a plugin holds back get their nodes when it lets them, and
// give their room back after a quarter of an hour, as they do on a cluster.
func TestPermissionIsWaitedForInVirtualTime(t *testing.T) {
	w := newWorld(t, 1, scheduler.Weighted{Plugin: patience{}})
	w.node("n", "4", "a")
	began := w.now
	w.add(pod("late", "1"))
	w.add(pod("never", "3"))
	refused := time.Duration(0)
	for w.now.Sub(began) < 16*time.Minute {
		_, worked, next := w.v.Step(t.Context())
		switch {
		case len(w.bound) == 1 && w.now.Sub(began) < time.Minute:
			t.Fatal("bound before the plugin let it")
		case w.v.Snapshot().Nodes[0].Requested.MilliCPU == 1000 && len(w.bound) == 1 && refused == 0:
			refused = w.now.Sub(began)
		}
		if !worked && next.IsZero() {
			t.Fatal("nothing is due any more, and a pod waits")
		}
		if !worked {
			w.now = next
		}
	}
	if !slices.Equal(w.bound, []string{"late on n"}) || refused != 15*time.Minute {
		t.Errorf("bound %v; the room of the other one was free again after %s", w.bound, refused)
	}
}

// A pod that waits for permission loses its room to one that is more important.
func TestAPodThatWaitsForPermissionMakesRoom(t *testing.T) {
	w := newWorld(t, 1, scheduler.Weighted{Plugin: patience{}})
	w.node("n", "4", "a")
	w.add(pod("never", "3"))
	if _, worked, _ := w.v.Step(t.Context()); !worked || len(w.v.Snapshot().Nodes[0].Pods) != 1 {
		t.Fatal("the first pod has no room")
	}
	important := pod("important", "3")
	high := int32(10)
	important.Spec.Priority = &high
	w.add(important)
	for end := w.now.Add(3 * time.Minute); w.now.Before(end) && len(w.bound) == 0; {
		if _, worked, next := w.v.Step(t.Context()); !worked {
			w.now = next
		}
	}
	if !slices.Equal(w.bound, []string{"important on n"}) {
		t.Errorf("bound %v", w.bound)
	}
}
