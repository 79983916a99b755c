// SPDX-License-Identifier: Apache-2.0

// Package simulate runs the scheduler on a simulated cluster, in virtual time. Its own
// queue, cycles, preemption and plugins, Wasm plugins too, decide about a workload, and the
// results are measured. A day of ten thousand pods on a thousand nodes takes seconds.
//
// The same cluster, workload, policy and seed give the same result. Nothing outside is
// read or written, and no time passes: pods start as soon as they are bound and run for as
// long as their arrival says. What is not simulated: images, volumes, nodes that fail.
package simulate

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
)

// Cluster is what there is before the first pod comes.
type Cluster struct {
	Nodes []*corev1.Node
	// Prices of nodes an hour, by name.
	Prices map[string]float64
	// Objects that plugins look up: Services, ReplicaSets, disruption budgets, namespaces.
	Objects []runtime.Object
	// Running pods, each on the node that its spec names; they stay to the end.
	Running []*corev1.Pod
	// Groups of pods that are placed together.
	Groups []*schedulingv1beta1.PodGroup
}

// Arrival is a pod that comes.
type Arrival struct {
	At  time.Duration // since the beginning
	Pod *corev1.Pod
	// Lasts is how long the pod runs once it has its node; 0 = to the end.
	Lasts time.Duration
	// Comeback says what happens when the pod is removed to make room for another.
	Comeback Comeback
}

// Comeback of a pod that was preempted.
type Comeback uint8

// The ways in which a pod comes back.
const (
	Never   Comeback = iota // nobody makes it anew
	GoesOn                  // a new one runs for what was left
	Restart                 // a new one begins at the beginning
)

// Policy is a way to schedule.
type Policy struct {
	Name string
	// Profiles are made for each run: plugins remember what they have seen. The informers
	// hold the cluster's objects.
	Profiles func(informers.SharedInformerFactory) ([]scheduler.Profile, queue.Config, error)
}

// Config of a run.
type Config struct {
	Cluster  Cluster
	Arrivals []Arrival // in the order of their times
	// Length of what is simulated.
	Length time.Duration
	// Try is how long one try of the scheduler takes, in virtual time.
	Try    time.Duration
	Seed   uint64
	Policy Policy
	// GroupOf tells groups of pods apart that are measured each by itself; nil = none are.
	GroupOf func(*corev1.Pod) string
	Logger  *slog.Logger
}

// Begin is the moment at which every simulation begins.
func Begin() time.Time { return time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC) }

// Run simulates one policy.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if len(cfg.Cluster.Nodes) == 0 {
		return nil, errors.New("a simulation needs at least one node")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	inf, err := holding(cfg.Cluster)
	if err != nil {
		return nil, err
	}
	profiles, waiting, err := cfg.Policy.Profiles(inf)
	if err != nil {
		return nil, err
	}
	r := &run{cfg: cfg, now: Begin(), pods: map[types.UID]*life{}}
	r.end = r.now.Add(cfg.Length)
	if r.scheduler, err = scheduler.NewVirtual(scheduler.VirtualConfig{
		Profiles: profiles, Queue: waiting, Informers: inf, Effects: r,
		Now: func() time.Time { return r.now }, Seed: cfg.Seed, Logger: cfg.Logger,
	}); err != nil {
		return nil, err
	}
	r.meter = newMeter(&cfg, r.scheduler.Snapshot)
	for _, n := range cfg.Cluster.Nodes {
		r.scheduler.SetNode(n)
	}
	for _, g := range cfg.Cluster.Groups {
		r.scheduler.SetGroup(g)
	}
	for _, p := range cfg.Cluster.Running {
		r.place(p)
	}
	for i := range cfg.Arrivals {
		a := &cfg.Arrivals[i]
		r.at(r.now.Add(a.At), func() { r.arrive(&life{origin: a.Pod, lasts: a.Lasts, comeback: a.Comeback}) })
	}
	if err := r.loop(ctx); err != nil {
		return nil, err
	}
	return r.meter.result(r.pods, r.end), nil
}

// run is a simulation that is under way.
type run struct {
	cfg       Config
	scheduler *scheduler.Virtual
	meter     *meter
	now, end  time.Time
	events    events
	numbered  int                 // events so far
	pods      map[types.UID]*life // that came
}

// life of a pod.
type life struct {
	pod      *corev1.Pod // as it is now
	lasts    time.Duration
	comeback Comeback
	arrived  time.Time
	bound    time.Time // zero: it has no node
	gone     bool
	why      Reason // it found no node when it was tried last
	origin   *corev1.Pod
	round    int // how often it has come back
}

// loop lets time pass to the end: what happens at a moment first, then what the scheduler
// makes of it.
func (r *run) loop(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("the simulation was broken off after %s of %s: %w", r.now.Sub(Begin()), r.cfg.Length, err)
		}
		for len(r.events) > 0 && !r.events[0].at.After(r.now) {
			heap.Pop(&r.events).(*event).do()
		}
		try, worked, next := r.scheduler.Step(ctx)
		if worked {
			r.tried(try)
			r.pass(r.now.Add(r.cfg.Try))
			if r.now.After(r.end) {
				return nil
			}
			continue
		}
		if len(r.events) > 0 && (next.IsZero() || r.events[0].at.Before(next)) {
			next = r.events[0].at
		}
		if next.IsZero() || next.After(r.end) {
			r.pass(r.end)
			return nil
		}
		r.pass(next)
	}
}

// pass moves the clock on.
func (r *run) pass(to time.Time) {
	r.meter.pass(r.now, to, r.end)
	r.now = to
}

func (r *run) at(when time.Time, do func()) {
	r.numbered++
	heap.Push(&r.events, &event{at: when, number: r.numbered, do: do})
}

// arrive is a pod that comes.
func (r *run) arrive(l *life) {
	p := *l.origin
	p.CreationTimestamp.Time = r.now
	if l.round > 0 {
		p.Name = fmt.Sprintf("%s-again-%d", p.Name, l.round)
		p.UID = types.UID(fmt.Sprintf("%s-again-%d", p.UID, l.round))
	}
	l.pod, l.arrived = &p, r.now
	r.pods[p.UID] = l
	r.meter.came(&p)
	r.scheduler.AddPod(&p)
}

// place is a pod that ran before the simulation began.
func (r *run) place(p *corev1.Pod) {
	r.pods[p.UID] = &life{pod: p, arrived: r.now, bound: r.now}
	r.meter.running(p, p.Spec.NodeName)
	r.scheduler.AddPod(p)
}

// tried counts a try.
func (r *run) tried(t scheduler.Try) {
	for _, o := range t.Others {
		r.tried(o)
	}
	l := r.pods[t.Pod.UID]
	if l == nil || t.Decision == nil {
		return
	}
	r.meter.decided(t.Decision)
	if t.Decision.Node == "" {
		l.why = whyNot(t.Decision)
	}
}

// change a pod, and have the scheduler know. Nobody changes an object that others hold.
func (r *run) change(l *life, f func(*corev1.Pod)) {
	old, now := l.pod, *l.pod
	f(&now)
	l.pod = &now
	r.scheduler.ChangePod(old, &now)
}

// Bind implements scheduler.Effects.
func (r *run) Bind(_ context.Context, b *corev1.Binding) error {
	l := r.pods[b.UID]
	if l == nil || l.gone {
		return fmt.Errorf("pod %s/%s is gone", b.Namespace, b.Name)
	}
	l.bound = r.now
	r.meter.placed(l.pod, b.Target.Name, r.now.Sub(l.arrived))
	r.change(l, func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.NominatedNodeName, p.Status.Phase = b.Target.Name, "", corev1.PodRunning
		p.Status.StartTime = p.CreationTimestamp.DeepCopy()
		p.Status.StartTime.Time = r.now
	})
	if l.lasts > 0 {
		r.at(r.now.Add(l.lasts), func() { r.ends(l) })
	}
	return nil
}

// PatchStatus implements scheduler.Effects. Of conditions nothing depends.
func (r *run) PatchStatus(_ context.Context, p *corev1.Pod, status map[string]any) error {
	l := r.pods[p.UID]
	node, there := status["nominatedNodeName"]
	if l == nil || l.gone || !there {
		return nil
	}
	r.change(l, func(p *corev1.Pod) { p.Status.NominatedNodeName, _ = node.(string) })
	return nil
}

// PatchGroup implements scheduler.Effects. Of conditions nothing depends.
func (r *run) PatchGroup(context.Context, *schedulingv1beta1.PodGroup, metav1.Condition) error {
	return nil
}

// Delete implements scheduler.Effects: a pod makes room for another. It takes its whole
// grace period to end.
func (r *run) Delete(_ context.Context, p *corev1.Pod) error {
	l := r.pods[p.UID]
	if l == nil || l.gone || l.pod.DeletionTimestamp != nil {
		return nil
	}
	r.meter.evicted(p)
	r.change(l, func(p *corev1.Pod) {
		p.DeletionTimestamp = p.CreationTimestamp.DeepCopy()
		p.DeletionTimestamp.Time = r.now
	})
	var grace time.Duration
	if s := p.Spec.TerminationGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	r.at(r.now.Add(grace), func() { r.ends(l) })
	return nil
}

// ends is a pod that has run for its time, or had to go.
func (r *run) ends(l *life) {
	if l.gone {
		return
	}
	l.gone = true
	r.meter.ended(l.pod, l.pod.Spec.NodeName)
	r.scheduler.RemovePod(l.pod)
	if l.pod.DeletionTimestamp == nil {
		r.meter.finished(l.pod)
		return
	}
	left := l.lasts
	switch {
	case l.comeback == Never:
		return
	case l.comeback == GoesOn && l.lasts > 0:
		if left -= r.now.Sub(l.bound); left <= 0 {
			return
		}
	}
	r.arrive(&life{origin: l.origin, lasts: left, comeback: l.comeback, round: l.round + 1})
}

type event struct {
	at     time.Time
	number int // of two at the same moment the first one that was foreseen comes first
	do     func()
}

type events []*event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	if !e[i].at.Equal(e[j].at) {
		return e[i].at.Before(e[j].at)
	}
	return e[i].number < e[j].number
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(*event)) }
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}
