// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/exits"
	"github.com/wasmplane/wasmplane/core/kubelet/fit"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podlifecycle"
	"github.com/wasmplane/wasmplane/core/kubelet/podmetrics"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
	"github.com/wasmplane/wasmplane/core/kubelet/static"
	"github.com/wasmplane/wasmplane/core/kubelet/status"
)

// owner is who has the workers: what concerns more pods than one is decided there.
type owner interface {
	// admit says whether the node takes the pod, and keeps room for it.
	admit(ctx context.Context, p *corev1.Pod) (fit.Verdict, error)
	// forget drops a pod of which nothing is left.
	forget(w *worker)
}

// worker is one pod on this node. Its goroutine alone steps the machine; all
// others only send it events.
type worker struct {
	*parts
	owner   owner
	uid     types.UID
	machine *podlifecycle.Machine

	mu     sync.Mutex
	queue  []pod.Event
	signal chan struct{}
	// pod as last seen, for those who only need to know whom they deal with.
	pod *corev1.Pod
	// removed says that the API no longer has the pod.
	removed bool
	// cancels of what may be given up when the pod ends.
	cancels map[pod.Action]context.CancelFunc
	place   spec.Place
	ips     []string
	sandbox string // the one that is ready
	logs    map[string]string
	exits   exits.Exits
	// began is when the pod was first seen; running is told of once.
	began time.Time
	ran   bool
	// measured is what was done with the pod.
	measured podmetrics.Pod
	// evicted and ended pods are not evicted again. Those that are over have no volumes, those that are bare no containers either.
	evicted, ended, over, bare bool
	// static pods come from files: the API has mirror, if anything, and made is their status.
	static bool
	mirror *corev1.Pod
	made   *corev1.PodStatus
}

func newWorker(node *parts, o owner, p *corev1.Pod, found pod.Snapshot) *worker {
	now := time.Now()
	w := &worker{
		parts: node, owner: o, uid: p.UID, machine: podlifecycle.NewMachine(p, found, now, node.cfg.Delays),
		signal: make(chan struct{}, 1), cancels: map[pod.Action]context.CancelFunc{}, pod: p, began: now, static: static.Is(p),
		measured: podmetrics.Pod{Metrics: node.cfg.Metrics},
	}
	if len(found.Sandboxes) > 0 {
		w.ran = true // its start is not ours to tell
	}
	return w
}

// send hands an event to the pod. It never blocks.
func (w *worker) send(ev pod.Event) {
	w.mu.Lock()
	w.queue = append(w.queue, ev)
	if u, ok := ev.(pod.Updated); ok {
		w.pod = u.Pod
	}
	w.mu.Unlock()
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// remove hands over that the API no longer has the pod.
func (w *worker) remove(p *corev1.Pod) {
	w.mu.Lock()
	w.removed = true
	w.mu.Unlock()
	w.send(pod.Removed{Pod: p})
}

func (w *worker) isRemoved() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.removed
}

func (w *worker) take() []pod.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queue
	w.queue = nil
	return q
}

func (w *worker) identity() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

// run owns the pod's machine until the pod is gone or ctx ends.
func (w *worker) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-w.signal:
		case <-timer.C:
			w.step(ctx, pod.Tick{})
		}
		for _, ev := range w.take() {
			w.step(ctx, ev)
		}
		if w.machine.Stage() == pod.Gone {
			w.exits.Set(nil)
			w.owner.forget(w)
			return
		}
		w.report(ctx)
		timer.Stop()
		if at := w.machine.Wake(); !at.IsZero() {
			timer.Reset(max(time.Until(at), 0))
		}
	}
}

func (w *worker) step(ctx context.Context, ev pod.Event) {
	for _, a := range w.machine.Step(time.Now(), ev) {
		w.act(ctx, a)
	}
}

// stepTimeout bounds a step that is not given up when the kubelet stops.
const stepTimeout = 2 * time.Minute

// act starts an action; its end comes back as an event.
func (w *worker) act(ctx context.Context, a pod.Action) {
	switch a := a.(type) {
	case pod.Note:
		w.recordNote(a)
		return
	case pod.Cancel:
		w.mu.Lock()
		for _, cancel := range w.cancels {
			cancel()
		}
		w.mu.Unlock()
		return
	case pod.Forget:
		return
	}
	begin := func() (context.Context, context.CancelFunc) { return ctx, func() {} }
	switch a.(type) {
	case pod.StartSandbox, pod.Create, pod.Start:
		// Not given up halfway, when the kubelet stops: the runtime would be left
		// with a process that it does not know to run.
		begin = func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
		}
	case pod.Pull, pod.PostStart, pod.Mount:
		actx, cancel := context.WithCancel(ctx)
		begin = func() (context.Context, context.CancelFunc) { return actx, cancel }
		w.mu.Lock()
		w.cancels[a] = cancel
		w.mu.Unlock()
	}
	view := w.machine.Pod()
	switch a.(type) {
	case pod.Mount, pod.Create, pod.Resize, pod.Bound:
		view = w.machine.Granted()
	}
	w.tasks.Go("kubelet: action for a pod", func() {
		release, err := w.turn(ctx, view, a)
		if err != nil {
			return // the kubelet stops before it has begun
		}
		began := time.Now()
		actx, cancel := begin()
		done := w.execute(actx, view, a)
		w.measured.Done(a, view, began, done)
		cancel()
		release()
		w.mu.Lock()
		delete(w.cancels, a)
		w.mu.Unlock()
		if ctx.Err() != nil {
			return // the kubelet stops: the pod stays as it is
		}
		done.Action = a
		w.send(done)
	})
}

func (w *worker) recordNote(n pod.Note) {
	kind := corev1.EventTypeNormal
	if n.Warning {
		kind = corev1.EventTypeWarning
	}
	w.Event(w.machine.Pod(), n.Container, kind, n.Reason, n.Message)
}

// report makes the pod's status and hands it on, with the containers to be probed.
func (w *worker) report(ctx context.Context) {
	v := w.machine.View()
	if v.Stage >= pod.Ended {
		w.vacate(w.uid) // who sees that it has ended finds its place free
	}
	w.mu.Lock()
	w.ips, w.sandbox = nil, ""
	if v.Sandbox != nil {
		w.ips = v.Sandbox.IPs
		if v.Sandbox.Ready {
			w.sandbox = v.Sandbox.ID
		}
	}
	running := map[string]string{}
	for i := range v.Containers {
		if c := v.Containers[i].Current; c != nil && c.State == pod.Running {
			running[c.Name] = c.ID
		}
	}
	w.exits.Set(running)
	w.recordLogs(&v)
	w.ended, w.over = v.Stage >= pod.Ended, v.Stage >= pod.Finished
	w.bare = w.over && !slices.ContainsFunc(v.Containers, pod.ContainerView.Kept)
	w.mu.Unlock()
	if v.Stage == pod.New {
		return
	}
	prev := w.lastStatus()
	if prev == nil {
		prev = &v.Pod.Status
	}
	st := status.Generate(v, prev, w.statusNode(), time.Now())
	w.measured.Terminated(prev, &st)
	w.healthy(v.Pod, &st)
	if v.Stage <= pod.Finished {
		w.publish(v.Pod, &st)
	}
	w.probes.Set(v.Pod, st.PodIP, w.machine.Targets())
	if st.Phase == corev1.PodRunning && !w.ran {
		w.ran = true
		w.measured.Running(v.Pod, w.began)
		_, span := w.Span(ctx, "running", v.Pod, attribute.Int64("wasmplane.since_seen_us", time.Since(w.began).Microseconds()))
		span.End(oteltrace.WithTimestamp(time.Now()))
	}
}

// evicting reports whether the pod was evicted and has not ended yet.
func (w *worker) evicting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.evicted && !w.ended
}

// givesBack reports whether the pod was evicted and still has containers or volumes.
func (w *worker) givesBack() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.evicted && !w.bare
}

// beginEviction marks the pod as evicted. It reports whether this is the first time.
func (w *worker) beginEviction() (p *corev1.Pod, first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first = !w.evicted
	w.evicted = true
	return w.pod, first
}

// occupant is the pod, whether it has ended, and whether it has no volumes either.
func (w *worker) occupant() (p *corev1.Pod, ended, over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod, w.ended, w.over
}

// readySandbox is the ID of the sandbox that is ready; "" where none is.
func (w *worker) readySandbox() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sandbox
}

// logFiles of the containers that run, by their IDs.
func (w *worker) logFiles() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logs
}

// recordLogs remembers where the containers write. Lock held.
func (w *worker) recordLogs(v *pod.View) {
	w.logs = nil
	for i := range v.Containers {
		if c := v.Containers[i].Current; c != nil && c.State == pod.Running && c.LogPath != "" {
			if w.logs == nil {
				w.logs = map[string]string{}
			}
			w.logs[c.ID] = c.LogPath
		}
	}
}
