// SPDX-License-Identifier: Apache-2.0

// Package scheduler gives each pod its node: it takes the next waiting pod,
// decides on a snapshot of the cluster which node is best, and binds.
//
// The decision is pure (package decision) and asks the plugins of the pod's profile,
// native and Wasm alike. This file is the edge: informers in, bindings, events
// and conditions out. The scheduler talks only to the API; it works against any
// Kubernetes API server.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	oteltrace "go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"github.com/wasmplane/wasmplane/core/scheduler/clearance"
	"github.com/wasmplane/wasmplane/core/scheduler/decision"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/gang"
	"github.com/wasmplane/wasmplane/core/scheduler/measure"
	"github.com/wasmplane/wasmplane/core/scheduler/nodecache"
	"github.com/wasmplane/wasmplane/core/scheduler/nominated"
	"github.com/wasmplane/wasmplane/core/scheduler/observation"
	"github.com/wasmplane/wasmplane/core/scheduler/permission"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
	"github.com/wasmplane/wasmplane/core/scheduler/report"
	"github.com/wasmplane/wasmplane/core/trace"
)

type (
	// Decision is the outcome of one cycle for one pod.
	Decision = decision.Decision
	// Profile is one scheduling policy: the plugins for pods that name it.
	Profile = decision.Profile
	// Weighted is a plugin with the weight of its score; 0 means 1.
	Weighted = decision.Weighted
)

// Config of a scheduler.
type Config struct {
	// Client and Informers of the scheduler's own identity. The informers are
	// started and stopped by their owner.
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	// Profiles by which pods are scheduled; a pod whose schedulerName no profile
	// has is somebody else's.
	Profiles []Profile
	// Events records events; one recorder per profile name.
	Events func(profile string) events.EventRecorder
	Queue  queue.Config
	// Workers judge nodes in parallel; 0 = one per processor.
	Workers int
	// Bindings in flight at once; 0 = 64.
	Bindings int
	Logger   *slog.Logger
	Tracer   oteltrace.Tracer
	// PodGroups are served: their pods are placed together.
	PodGroups bool
	// Metrics gets the scheduler's; nil = nobody does. A scheduler that follows
	// another in the same process goes on with its counts.
	Metrics prometheus.Registerer
}

// environment is what differs where the cluster is not a real one.
type environment struct {
	effects report.Effects
	// reports and removals are carried out beside the loop; nil = at once.
	reports  *report.Reports
	removals *clearance.Removals
	now      func() time.Time
	seed     func() uint64 // of the next decision
	// gang bounds how long one gang is looked at; nil = for as long as it takes.
	gang func(context.Context, error) (context.Context, context.CancelFunc)
}

// Scheduler is the component.
type Scheduler struct {
	cfg      Config
	profiles atomic.Pointer[map[string]*decision.Compiled]
	cache    *nodecache.Cache
	queue    *queue.Queue
	ready    chan struct{}
	synced   []cache.InformerSynced
	start    int
	environment
	binding  chan struct{} // a token per binding in flight
	bindings sync.WaitGroup
	metrics  *measure.Metrics
	workers  atomic.Int64 // that judge nodes at once

	nominated nominated.Nominations
	waiting   permission.Waiters
	gangs     *gang.Groups // nil = there are no pod groups
	debts     debts        // the cycle's alone
	lanes     lanes        // the cycle's alone
}

// New checks the configuration and registers with the informers.
func New(cfg Config) (*Scheduler, error) {
	s, err := assemble(cfg, environment{report.API{Client: cfg.Client}, report.New(), clearance.New(), time.Now, rand.Uint64, boundGang})
	if err != nil {
		return nil, err
	}
	return s, s.listen()
}

// assemble makes a scheduler that nobody tells anything yet.
func assemble(cfg Config, e environment) (*Scheduler, error) {
	if len(cfg.Profiles) == 0 {
		return nil, errors.New("the scheduler needs at least one profile")
	}
	if cfg.Bindings == 0 {
		cfg.Bindings = 64
	}
	if cfg.Tracer == nil {
		cfg.Tracer = trace.Discard()
	}
	s := &Scheduler{
		cfg: cfg, cache: nodecache.New(), environment: e, debts: debts{}, lanes: lanes{},
		ready: make(chan struct{}), binding: make(chan struct{}, cfg.Bindings),
	}
	s.setWorkers(cfg.Workers)
	if cfg.PodGroups {
		s.gangs = gang.NewGroups()
	}
	s.metrics = measure.New(measure.Sources{
		Queue: func() (int, int, int, int) { return s.queue.Len() }, Refusers: s.refusers, Gated: s.gated,
		Cache: s.cache.Size, Binding: func() int { return len(s.binding) },
	})
	if err := s.metrics.Register(cfg.Metrics); err != nil {
		return nil, fmt.Errorf("register the scheduler's metrics: %w", err)
	}
	cfg.Queue.Rank, cfg.Queue.Moved, cfg.Queue.Now = s.rank, s.metrics.Moved, s.now
	cfg.Queue.Lane, cfg.Queue.LaneRank = s.lane, s.laneRank
	s.queue = queue.New(cfg.Queue)
	if err := s.SetProfiles(cfg.Profiles); err != nil {
		return nil, err
	}
	return s, nil
}

// SetProfiles replaces the profiles, between two cycles. On an error the ones in
// force stay in force.
func (s *Scheduler) SetProfiles(profiles []Profile) error {
	compiled := map[string]*decision.Compiled{}
	for _, p := range profiles {
		if _, twice := compiled[p.Name]; twice {
			return fmt.Errorf("two scheduler profiles are called %q", p.Name)
		}
		c, err := decision.Compile(p, s.metrics)
		if err != nil {
			return err
		}
		compiled[p.Name] = c
	}
	before := s.profiles.Swap(&compiled)
	if before != nil && (sorts(*before) || sorts(compiled)) {
		s.queue.Rerank()
	}
	if before != nil {
		s.adopt(func(name string) bool { return compiled[name] != nil && (*before)[name] == nil })
	}
	// Another plugin may find a node where the one before did not.
	s.queue.Happened(framework.AnyEvent, nil)
	return nil
}

// refusers counts the waiting pods that each plugin has refused.
func (s *Scheduler) refusers() map[measure.Refuser]int {
	n := map[measure.Refuser]int{}
	s.queue.Refused(func(p *framework.PodInfo, r queue.Refusal) {
		if why, ok := r.Why.(*standing); ok {
			for _, plugin := range why.by {
				n[measure.Refuser{Plugin: plugin, Profile: p.Pod.Spec.SchedulerName}]++
			}
		}
	})
	return n
}

// gated counts the pods with scheduling gates by profile: no queue has them.
func (s *Scheduler) gated() map[string]int {
	n := map[string]int{}
	all, err := s.cfg.Informers.Core().V1().Pods().Lister().List(labels.Everything())
	if err != nil { // an informer's lister has no errors
		return n
	}
	for _, p := range all {
		if p.Spec.NodeName == "" && len(p.Spec.SchedulingGates) > 0 && p.Status.Phase == corev1.PodPending &&
			s.profile(p.Spec.SchedulerName) != nil {
			n[p.Spec.SchedulerName]++
		}
	}
	return n
}

// sorts says whether a plugin orders the queue.
func sorts(profiles map[string]*decision.Compiled) bool {
	for _, p := range profiles {
		if p.Sorter != nil {
			return true
		}
	}
	return false
}

// rank is the place of a pod in the queue. A plugin that fails gives none.
func (s *Scheduler) rank(ctx context.Context, p *framework.PodInfo, added time.Time) int64 {
	prof := s.profile(p.Pod.Spec.SchedulerName)
	if prof == nil || prof.Sorter == nil {
		return 0
	}
	rank, st := prof.Sorter.Rank(ctx, p, added)
	if !st.IsSuccess() {
		s.cfg.Logger.WarnContext(ctx, "a plugin could not order a pod; it waits by its priority alone", "plugin", prof.Sorter.Name(),
			"kind", "Pod", "namespace", p.Pod.Namespace, "name", p.Pod.Name, "error", st.Joined())
		return 0
	}
	return rank
}

func (s *Scheduler) profile(name string) *decision.Compiled { return (*s.profiles.Load())[name] }

// Ready is closed once the scheduler has seen the cluster and begins to work.
func (s *Scheduler) Ready() <-chan struct{} { return s.ready }

// Run schedules until ctx ends; bindings that are under way are finished.
func (s *Scheduler) Run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), s.synced...) {
		return nil
	}
	close(s.ready)
	if r := s.cfg.Metrics; r != nil {
		if err := r.Register(s.metrics); err != nil {
			return fmt.Errorf("register the scheduler's metrics: %w", err)
		}
		defer r.Unregister(s.metrics)
	}
	s.bindings.Go(func() { s.reports.Run(ctx) })
	s.bindings.Go(func() { s.removals.Run(ctx) })
	for {
		it := s.queue.Pop(ctx)
		if it == nil {
			break
		}
		for _, t := range s.cycle(ctx, it, func(*corev1.Pod, *Decision) {}) {
			s.bindings.Go(func() {
				t.seen.Bound = s.bind(t.ctx, t)
				t.seen.Finish(t.decision)
			})
			if len(t.profile.Permits) == 0 && t.gang == nil {
				s.throttle(ctx)
			}
		}
	}
	s.bindings.Wait()
	return nil
}

// taken is a pod with the room that it has taken, to be bound.
type taken struct {
	ctx      context.Context //nolint:containedctx // the trace of the try
	profile  *decision.Compiled
	item     *queue.Item
	decision *Decision
	seen     *observation.Observation
	gang     *gang.Barrier // nil = it is bound by itself
	voted    bool          // it is prepared, and the barrier knows of it
	expected bool          // its node is written to it
}

// cycle tells the story of one try up to the binding: decide, take the room. What it returns
// is to be bound. decided is told of the decision before it takes effect.
func (s *Scheduler) cycle(ctx context.Context, it *queue.Item, decided func(*corev1.Pod, *Decision)) []*taken {
	pod := it.Info.Pod
	prof := s.profile(pod.Spec.SchedulerName)
	if prof == nil || s.cache.Holds(pod.UID) {
		s.queue.Done(pod.UID)
		return nil
	}
	if s.indebted(ctx, prof, it) {
		return nil
	}
	s.asPromised(it)
	pod = it.Info.Pod
	if g := s.gangs.Of(pod); g != nil {
		return s.gangCycle(ctx, prof, it, g, decided)
	}
	if st := prof.PreEnqueue(ctx, it.Info); st != nil {
		s.gate(ctx, prof, it, st)
		return nil
	}
	traced, o := observation.Of(ctx, it, prof.Name, s.cfg.Tracer, s.metrics, s.now)
	template := s.template(prof, it.Info)
	if r, stands := s.queue.Standing(template); stands {
		d := *r.Why.(*standing).decision
		decided(pod, &d)
		s.speak(ctx, prof, it, &d, template)
		o.Finish(&d)
		return nil
	}
	snap := s.cache.Snapshot()
	began := s.now()
	d := prof.Decide(traced, it.Info, snap, decision.Circumstances{
		Promised: s.nominated.Of(pod.UID), Ahead: s.ahead(prof, pod), Whole: s.gangs.Whole,
		Start: s.start, Workers: int(s.workers.Load()), Seed: s.seed(), Now: s.now,
	}, o)
	if costly(pod) || prof.Reclaims() && d.Effort.Preempted {
		s.debts.add(pod.Namespace, 1, s.now().Sub(began), s.now())
	}
	decided(pod, d)
	s.metrics.Decided(prof.Name, &d.Effort)
	s.metrics.Algorithm(s.now().Sub(o.Began))
	if d.Total > 0 {
		s.start = (s.start + d.Evaluated) % d.Total
	}
	if d.Node == "" {
		s.refuse(ctx, prof, it, d, template)
		o.Finish(d)
		return nil
	}
	if err := s.cache.Assume(it.Info, d.Node); err != nil {
		s.cfg.Logger.WarnContext(ctx, "a pod is already placed; leaving it alone", "kind", "Pod", "namespace", pod.Namespace, "name", pod.Name,
			"error", err)
		s.queue.Done(pod.UID)
		o.Finish(d)
		return nil
	}
	if st := prof.Reserve(traced, d, it.Info); !st.IsSuccess() {
		s.undo(ctx, prof, it, d, st)
		o.Finish(d)
		return nil
	}
	s.unpromise(pod.UID)
	s.queue.Placed(pod.UID, template)
	return []*taken{{ctx: traced, profile: prof, item: it, decision: d, seen: o}}
}

// throttle waits until fewer bindings than allowed are in flight: deciding faster
// than the API takes bindings would only lengthen the queue of those decided.
func (s *Scheduler) throttle(ctx context.Context) {
	select {
	case s.binding <- struct{}{}:
		<-s.binding
	case <-ctx.Done():
	}
}

func key(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }
