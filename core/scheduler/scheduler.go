// Package scheduler gives each pod its node: it takes the next waiting pod,
// decides on a snapshot of the cluster which node is best, and binds.
//
// The decision is pure (decide.go) and asks the plugins of the pod's profile,
// native and Wasm alike. This file is the edge: informers in, bindings, events
// and conditions out. The scheduler talks only to the API; it works against any
// Kubernetes API server.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"github.com/prometheus/client_golang/prometheus"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/nodecache"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
	"github.com/wasmplane/wasmplane/core/trace"
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
	// Metrics gets the scheduler's; nil = nobody does. A scheduler that follows
	// another in the same process goes on with its counts.
	Metrics prometheus.Registerer
}

// Scheduler is the component.
type Scheduler struct {
	cfg      Config
	profiles atomic.Pointer[map[string]*profile]
	cache    *nodecache.Cache
	queue    *queue.Queue
	ready    chan struct{}
	synced   []cache.InformerSynced
	start    int
	binding  chan struct{} // a token per binding in flight
	bindings sync.WaitGroup
	metrics  *metrics

	nominated nominations
	waiting   waiters
}

// New checks the configuration and registers with the informers.
func New(cfg Config) (*Scheduler, error) {
	if len(cfg.Profiles) == 0 {
		return nil, errors.New("the scheduler needs at least one profile")
	}
	if cfg.Workers == 0 {
		cfg.Workers = runtime.GOMAXPROCS(0)
	}
	if cfg.Bindings == 0 {
		cfg.Bindings = 64
	}
	if cfg.Tracer == nil {
		cfg.Tracer = trace.Discard()
	}
	s := &Scheduler{
		cfg: cfg, cache: nodecache.New(),
		ready: make(chan struct{}), binding: make(chan struct{}, cfg.Bindings),
	}
	s.metrics = newMetrics(s)
	if err := s.metrics.register(cfg.Metrics); err != nil {
		return nil, fmt.Errorf("register the scheduler's metrics: %w", err)
	}
	cfg.Queue.Rank, cfg.Queue.Moved = s.rank, s.metrics.moved
	s.queue = queue.New(cfg.Queue)
	if err := s.SetProfiles(cfg.Profiles); err != nil {
		return nil, err
	}
	return s, s.listen()
}

// SetProfiles replaces the profiles, between two cycles. On an error the ones in
// force stay in force.
func (s *Scheduler) SetProfiles(profiles []Profile) error {
	compiled := map[string]*profile{}
	for _, p := range profiles {
		if _, twice := compiled[p.Name]; twice {
			return fmt.Errorf("two scheduler profiles are called %q", p.Name)
		}
		c, err := compile(p)
		if err != nil {
			return err
		}
		c.metrics = s.metrics
		compiled[p.Name] = c
	}
	before := s.profiles.Swap(&compiled)
	if before != nil && (sorts(*before) || sorts(compiled)) {
		s.queue.Rerank()
	}
	// Another plugin may find a node where the one before did not.
	s.queue.Happened(framework.AnyEvent)
	return nil
}

// sorts says whether a plugin orders the queue.
func sorts(profiles map[string]*profile) bool {
	for _, p := range profiles {
		if p.sorter != nil {
			return true
		}
	}
	return false
}

// rank is the place of a pod in the queue. A plugin that fails gives none.
func (s *Scheduler) rank(ctx context.Context, p *framework.PodInfo, added time.Time) int64 {
	prof := s.profile(p.Pod.Spec.SchedulerName)
	if prof == nil || prof.sorter == nil {
		return 0
	}
	rank, st := prof.sorter.Rank(ctx, p, added)
	if !st.IsSuccess() {
		s.cfg.Logger.Warn("a plugin could not order a pod; it waits by its priority alone", "plugin", prof.sorter.Name(), "pod", key(p.Pod), "error", joinReasons(st))
		return 0
	}
	return rank
}

func (s *Scheduler) profile(name string) *profile { return (*s.profiles.Load())[name] }

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
	for {
		it := s.queue.Pop(ctx)
		if it == nil {
			break
		}
		s.cycle(ctx, it)
	}
	s.bindings.Wait()
	return nil
}

// cycle tells the story of one try: decide, take the node, bind.
func (s *Scheduler) cycle(ctx context.Context, it *queue.Item) {
	pod := it.Info.Pod
	prof := s.profile(pod.Spec.SchedulerName)
	if prof == nil || s.cache.Holds(pod.UID) {
		s.queue.Done(pod.UID)
		return
	}
	if st := prof.preEnqueue(ctx, it.Info); st != nil {
		s.gate(ctx, prof, it, st)
		return
	}
	traced, o := s.observe(ctx, it, prof.name)
	snap := s.cache.Snapshot()
	with := promises{s.nominated.of(pod.UID), s.nominated.ahead(pod)}
	d := prof.decide(traced, it.Info, snap, with, s.start, s.cfg.Workers, o)
	s.metrics.algorithm.Observe(time.Since(o.began).Seconds())
	if d.Total > 0 {
		s.start = (s.start + d.Evaluated) % d.Total
	}
	if d.Node == "" {
		s.refuse(ctx, prof, it, d)
		o.finish(d)
		return
	}
	if err := s.cache.Assume(it.Info, d.Node); err != nil {
		s.cfg.Logger.Warn("a pod is already placed; leaving it alone", "pod", key(pod), "error", err)
		s.queue.Done(pod.UID)
		o.finish(d)
		return
	}
	if st := prof.reserve(traced, d, it.Info); !st.IsSuccess() {
		s.undo(ctx, prof, it, d, st)
		o.finish(d)
		return
	}
	s.nominated.drop(pod.UID)
	s.bindings.Go(func() {
		o.bound = s.bind(traced, prof, it, d, o)
		o.finish(d)
	})
	if len(prof.permits) == 0 {
		s.throttle(ctx)
	}
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

// preEnqueue is the first refusal of those who say whether a pod may be tried; nil = it may.
func (c *profile) preEnqueue(ctx context.Context, p *framework.PodInfo) *framework.Status {
	for _, pre := range c.preEnqueues {
		if st := pre.PreEnqueue(ctx, p); !st.IsSuccess() {
			return by(st, pre)
		}
	}
	return nil
}

// gate leaves a pod out of the cycles, and says why on it.
func (s *Scheduler) gate(ctx context.Context, prof *profile, it *queue.Item, st *framework.Status) {
	pod := it.Info.Pod
	if st.Code == framework.Error {
		s.cfg.Logger.Error("a plugin could not say whether a pod may be scheduled", "pod", key(pod), "error", joinReasons(st))
		s.queue.Errored(pod.UID)
	} else {
		s.queue.Gated(pod.UID, prof.interest([]string{st.Plugin}))
	}
	if err := s.setCondition(ctx, pod, corev1.PodReasonSchedulingGated, joinReasons(st), ""); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		s.cfg.Logger.Warn("the reason why a pod waits could not be written to it", "pod", key(pod), "error", err)
	}
}

func (c *profile) reserve(ctx context.Context, d *Decision, p *framework.PodInfo) *framework.Status {
	end := c.metrics.point(c.name, "Reserve")
	for i, r := range c.reserves {
		if st := r.Reserve(ctx, d.State, p, d.Node); !st.IsSuccess() {
			end(st)
			for ; i >= 0; i-- {
				c.reserves[i].Unreserve(ctx, d.State, p, d.Node)
			}
			return by(st, r)
		}
	}
	end(nil)
	return nil
}

// bind carries a decision out and says whether the pod has its node. Waiting for
// permission ends when the scheduler stops; a binding that has begun is finished.
func (s *Scheduler) bind(ctx context.Context, prof *profile, it *queue.Item, d *Decision, o *observation) bool {
	_, end := o.begin(ctx, "bind")
	st := s.permit(ctx, prof, it, d)
	if st.IsSuccess() {
		st = s.bindNow(ctx, prof, it, d)
	}
	end(d)
	if !st.IsSuccess() {
		for i := len(prof.reserves) - 1; i >= 0; i-- {
			prof.reserves[i].Unreserve(context.WithoutCancel(ctx), d.State, it.Info, d.Node)
		}
		s.undo(ctx, prof, it, d, st)
		return false
	}
	s.queue.Done(it.Info.Pod.UID)
	s.event(prof, it.Info.Pod, corev1.EventTypeNormal, "Scheduled", "Binding",
		fmt.Sprintf("Successfully assigned %s/%s to %s", it.Info.Pod.Namespace, it.Info.Pod.Name, d.Node))
	return true
}

func (s *Scheduler) bindNow(ctx context.Context, prof *profile, it *queue.Item, d *Decision) *framework.Status {
	select {
	case s.binding <- struct{}{}:
		defer func() { <-s.binding }()
	case <-ctx.Done():
		return framework.AsStatus(ctx.Err())
	}
	bindCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if st := prof.prepare(bindCtx, d, it.Info); !st.IsSuccess() {
		return st
	}
	if st := s.write(bindCtx, prof, d, it.Info); !st.IsSuccess() {
		return st
	}
	end := prof.metrics.point(prof.name, "PostBind")
	for _, post := range prof.postBinds {
		post.PostBind(bindCtx, d.State, it.Info, d.Node)
	}
	end(nil)
	return nil
}

// longestWait bounds how long Permit plugins may hold a pod back.
const longestWait = 15 * time.Minute

// permit asks the Permit plugins. One that says Wait is asked again when its time
// is over. A waiting pod that is deleted, or whose room somebody of higher priority
// needs, waits no longer.
func (s *Scheduler) permit(ctx context.Context, prof *profile, it *queue.Item, d *Decision) (st *framework.Status) {
	end := prof.metrics.point(prof.name, "Permit")
	defer func() { end(st) }()
	if len(prof.permits) == 0 {
		return nil
	}
	return s.wait(ctx, prof, it, d)
}

// wait is for permission.
func (s *Scheduler) wait(ctx context.Context, prof *profile, it *queue.Item, d *Decision) (answer *framework.Status) {
	began, waited := time.Now(), false
	defer func() {
		if waited {
			s.metrics.permitWait.WithLabelValues(outcome(answer)).Observe(time.Since(began).Seconds())
		}
	}()
	uid := it.Info.Pod.UID
	refused := s.waiting.add(uid)
	defer s.waiting.remove(uid)
	end := time.NewTimer(longestWait)
	defer end.Stop()
	for _, p := range prof.permits {
		st, wait := p.Permit(ctx, d.State, it.Info, d.Node)
		for !st.IsSuccess() && st.Code == framework.Wait {
			waited = true
			again := time.NewTimer(max(wait, time.Millisecond))
			select {
			case <-again.C:
			case why := <-refused:
				again.Stop()
				return by(framework.NewStatus(framework.Unschedulable, why), p)
			case <-end.C:
				again.Stop()
				return by(framework.NewStatus(framework.Unschedulable, "timed out while waiting for permission to bind"), p)
			case <-ctx.Done():
				again.Stop()
				return framework.AsStatus(ctx.Err())
			}
			st, wait = p.Permit(ctx, d.State, it.Info, d.Node)
		}
		if !st.IsSuccess() {
			return by(st, p)
		}
	}
	return nil
}

func (c *profile) prepare(ctx context.Context, d *Decision, p *framework.PodInfo) (st *framework.Status) {
	end := c.metrics.point(c.name, "PreBind")
	defer func() { end(st) }()
	for _, pre := range c.preBinds {
		if st := pre.PreBind(ctx, d.State, p, d.Node); !st.IsSuccess() {
			return by(st, pre)
		}
	}
	return nil
}

// write binds as the first Bind plugin that doesn't Skip says.
func (s *Scheduler) write(ctx context.Context, prof *profile, d *Decision, p *framework.PodInfo) (st *framework.Status) {
	end := prof.metrics.point(prof.name, "Bind")
	defer func() { end(st) }()
	var how framework.Binding
	for _, b := range prof.binds {
		answer, st := b.Bind(ctx, d.State, p, d.Node)
		if st.IsSuccess() {
			how = answer
			break
		}
		if st.Code != framework.Skip {
			return by(st, b)
		}
	}
	if how.Done {
		return nil
	}
	err := s.cfg.Client.CoreV1().Pods(p.Pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Pod.Namespace, Name: p.Pod.Name, UID: p.Pod.UID, Annotations: how.Annotations},
		Target:     corev1.ObjectReference{Kind: "Node", Name: d.Node},
	}, metav1.CreateOptions{})
	return framework.AsStatus(err)
}

// undo gives the node back after a reservation or binding that failed.
func (s *Scheduler) undo(ctx context.Context, prof *profile, it *queue.Item, d *Decision, st *framework.Status) {
	s.cache.Forget(it.Info.Pod.UID)
	// The room that the pod would have taken may be what others wait for.
	s.queue.Happened(framework.PodRemoved)
	if ctx.Err() != nil {
		return
	}
	d.Whole, d.Node = st, ""
	if apierrors.IsNotFound(st.Err) {
		s.queue.Done(it.Info.Pod.UID)
		return
	}
	s.refuse(ctx, prof, it, d)
}

// refuse puts the pod back and says why, on the pod itself. A nomination is carried
// out first: the pod is tried again when its victims are gone.
func (s *Scheduler) refuse(ctx context.Context, prof *profile, it *queue.Item, d *Decision) {
	pod := it.Info.Pod
	if ctx.Err() != nil {
		return
	}
	node, err := s.nominate(ctx, prof, it.Info, d)
	if err != nil {
		d.Whole = framework.AsStatus(fmt.Errorf("make room on node %s: %w", d.Nomination.Node, err))
	}
	reason, message := corev1.PodReasonUnschedulable, d.Message()
	if st := d.Fatal(); st != nil {
		reason, message = "SchedulerError", joinReasons(st)
		s.cfg.Logger.Error("a pod could not be scheduled because of an error", "pod", key(pod), "error", message)
		s.queue.Errored(pod.UID)
	} else {
		s.queue.Failed(pod.UID, prof.interest(d.RefusedBy()))
	}
	s.event(prof, pod, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", message)
	if err := s.setCondition(ctx, pod, reason, message, node); err != nil && !apierrors.IsNotFound(err) {
		s.cfg.Logger.Warn("the reason why a pod waits could not be written to it", "pod", key(pod), "error", err)
	}
}

// nominate keeps the room on the nominated node for the pod and has the victims
// removed. It returns the node.
func (s *Scheduler) nominate(ctx context.Context, prof *profile, p *framework.PodInfo, d *Decision) (string, error) {
	n := d.Nomination
	if n == nil {
		return "", nil
	}
	s.nominated.set(p, n.Node)
	if n.Node != "" {
		s.metrics.victims.Observe(float64(len(n.Victims)))
	}
	if n.Node == "" {
		if p.Pod.Status.NominatedNodeName == "" {
			return "", nil
		}
		return "", s.patchStatus(ctx, p.Pod, map[string]any{"nominatedNodeName": nil})
	}
	if err := s.makeRoom(ctx, prof, p.Pod, n); err != nil {
		s.nominated.drop(p.Pod.UID)
		return "", err
	}
	return n.Node, nil
}

func joinReasons(st *framework.Status) string {
	if st.Err != nil && len(st.Reasons) == 0 {
		return st.Err.Error()
	}
	out := ""
	for i, r := range st.Reasons {
		if i > 0 {
			out += ", "
		}
		out += r
	}
	return out
}

func (s *Scheduler) event(prof *profile, p *corev1.Pod, kind, reason, action, note string) {
	if s.cfg.Events != nil {
		if len(note) > 1024 { // the API's bound
			note = note[:1021] + "..."
		}
		s.cfg.Events(prof.name).Eventf(p, nil, kind, reason, action, "%s", note)
	}
}

// listen feeds cache and queue from the informers.
func (s *Scheduler) listen() error {
	core := s.cfg.Informers.Core().V1()
	storage := s.cfg.Informers.Storage().V1()
	add := func(inf cache.SharedIndexInformer, h cache.ResourceEventHandler) error {
		reg, err := inf.AddEventHandler(h)
		if err == nil {
			s.synced = append(s.synced, reg.HasSynced)
		}
		return err
	}
	volumes := handler(func(_, _ k8sruntime.Object) { s.queue.Happened(framework.VolumesChanged) })
	return errors.Join(
		add(core.Nodes().Informer(), handler(s.node)),
		add(core.Pods().Informer(), handler(s.pod)),
		add(core.PersistentVolumes().Informer(), volumes),
		add(core.PersistentVolumeClaims().Informer(), volumes),
		add(storage.StorageClasses().Informer(), volumes),
		// Nothing waits for these, but no decision may be made before they are there.
		add(s.cfg.Informers.Policy().V1().PodDisruptionBudgets().Informer(), cache.ResourceEventHandlerFuncs{}),
		add(core.Namespaces().Informer(), cache.ResourceEventHandlerFuncs{}),
		// Who a pod's like are follows from these.
		add(core.Services().Informer(), cache.ResourceEventHandlerFuncs{}),
		add(core.ReplicationControllers().Informer(), cache.ResourceEventHandlerFuncs{}),
		add(s.cfg.Informers.Apps().V1().ReplicaSets().Informer(), cache.ResourceEventHandlerFuncs{}),
		add(s.cfg.Informers.Apps().V1().StatefulSets().Informer(), cache.ResourceEventHandlerFuncs{}),
	)
}

// handler reduces informer events to (old, new), with nil for what is not there.
func handler(f func(old, now k8sruntime.Object)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f(nil, o.(k8sruntime.Object)) },
		UpdateFunc: func(o, n any) { f(o.(k8sruntime.Object), n.(k8sruntime.Object)) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if last, ok := o.(k8sruntime.Object); ok {
				f(last, nil)
			}
		},
	}
}

func (s *Scheduler) node(old, now k8sruntime.Object) {
	if now == nil {
		s.cache.RemoveNode(old.(*corev1.Node).Name)
		return
	}
	s.queue.Happened(s.cache.SetNode(now.(*corev1.Node)))
}

func (s *Scheduler) pod(old, now k8sruntime.Object) {
	if now == nil {
		s.gone(old.(*corev1.Pod))
		return
	}
	p := now.(*corev1.Pod)
	if o, ok := old.(*corev1.Pod); ok && o.UID != p.UID {
		s.gone(o) // deleted and made anew between two events
	}
	switch {
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		s.gone(p)
	case p.Spec.NodeName != "":
		s.queue.Remove(p.UID)
		s.nominated.drop(p.UID)
		s.cache.SetPod(p)
		if o, ok := old.(*corev1.Pod); !ok || o.Spec.NodeName == "" {
			s.queue.Happened(framework.PodBound)
		}
	case p.DeletionTimestamp != nil || len(p.Spec.SchedulingGates) > 0:
		s.queue.Remove(p.UID)
		s.nominated.drop(p.UID)
		s.waiting.refuse(p.UID, "the pod is being deleted")
	case s.profile(p.Spec.SchedulerName) != nil && !s.cache.Holds(p.UID):
		if node := p.Status.NominatedNodeName; node != "" && s.nominated.of(p.UID) == "" && old == nil {
			s.nominated.set(framework.NewPodInfo(p), node) // promised before this scheduler began
		}
		s.queue.Set(p)
	}
}

func (s *Scheduler) gone(p *corev1.Pod) {
	s.queue.Remove(p.UID)
	s.nominated.drop(p.UID)
	s.waiting.refuse(p.UID, "the pod was deleted")
	if s.cache.RemovePod(p.UID) {
		s.queue.Happened(framework.PodRemoved)
	}
}

func key(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }
