// SPDX-License-Identifier: Apache-2.0

package reconcilehost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/run"
)

// hosted is one reconciler with all that serves it. While nothing happens that is its data alone.
type hosted struct {
	cfg        Config
	reconciler controllers.Reconciler
	in         controllers.Inputs
	client     dynamic.Interface
	namespace  string // of its service account
	account    string
	rbac       *rbac
	events     *events
	log        *slog.Logger
	beginning  run.Tasks  // what brings it to where it is served
	change     sync.Mutex // of serving: held while a loop is opened or closed

	mu       sync.Mutex
	ended    bool
	serving  *loop // nil while it is not served
	waiting  []*view
	believed believed
	status   Status
	memory   map[controllers.Key]*recall
}

// recall is what is remembered of one key between two reconciles, to leave out
// writes that change nothing. Losing it costs a few such writes.
type recall struct {
	applied map[objectKey]applied
	status  uint64 // hash of the status applied last
	seen    string // resource version that the status write produced
	events  []controllers.Event
}

func (m *recall) empty() bool {
	return len(m.applied) == 0 && m.status == 0 && m.seen == "" && len(m.events) == 0
}

type objectKey struct {
	kind            schema.GroupKind
	namespace, name string
}

type applied struct {
	hash    uint64
	version string
}

func newHosted(cfg Config, r controllers.Reconciler, client dynamic.Interface, namespace, account string, rules *rbac) *hosted {
	return &hosted{
		cfg: cfg, reconciler: r, in: r.Inputs(), client: client, namespace: namespace, account: account, rbac: rules,
		events: &events{client: client, component: r.Name()},
		log:    cfg.Log.With("reconciler", r.Name()),
		status: Status{Name: r.Name()},
		memory: map[controllers.Key]*recall{},
	}
}

func (h *hosted) report() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.status
	var problem error
	for _, v := range h.waiting {
		problem = errors.Join(problem, v.problem())
	}
	if problem != nil {
		s.Problem = problem.Error()
	}
	return s
}

// setStatus puts into the status whether it is served. It reports whether the problem is news.
func (h *hosted) setStatus(serving bool, problem error) (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := ""
	if problem != nil {
		text = problem.Error()
	}
	news = h.status.Problem != text
	h.status.Serving, h.status.Problem = serving, text
	return news
}

// begin brings the reconciler to where it is served, beside its caller, until stop. c and ctx live
// longer than it.
func (h *hosted) begin(ctx context.Context, c *caches) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.beginning.Go("reconciler "+h.reconciler.Name(), func() { h.serve(ctx, c) })
	}
}

// stop ends it. The context of begin has ended.
func (h *hosted) stop() {
	h.mu.Lock()
	h.ended = true
	h.mu.Unlock()
	h.beginning.Wait()
	h.close()
	h.events.shutdown()
}

// serve opens a loop for the reconciler. As long as that fails (a permission is missing) it tries
// again: when RBAC changes, and by the clock, as other authorizers don't tell when they
// change their mind.
func (h *hosted) serve(ctx context.Context, c *caches) {
	retry := run.Backoff{First: time.Second, Longest: h.cfg.Retry}
	for {
		_, changed := h.rbac.at()
		err := h.permitted(ctx)
		if err == nil {
			err = h.open(ctx, c)
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		wait := retry.Next()
		if h.setStatus(false, err) {
			h.log.WarnContext(ctx, "a reconciler is not served", "error", err, "retryIn", wait)
		}
		if !run.SleepOr(ctx, wait, changed, settle) {
			return
		}
	}
}

func (h *hosted) watched() []controllers.Watched {
	return append([]controllers.Watched{h.in.Primary}, h.in.Owned...)
}

// open serves the reconciler, beginning with all objects that there are. Afterwards whatever
// happens is told to the loop by those that watch.
func (h *hosted) open(ctx context.Context, c *caches) error {
	l := &loop{hosted: h}
	var seen []*view
	for _, w := range h.watched() {
		v, giveBack, err := c.acquire(ctx, w)
		if err != nil {
			l.close()
			return err
		}
		l.ends = append(l.ends, giveBack)
		seen = append(seen, v)
	}
	l.primary, l.owned = seen[0], seen[1:]
	if !h.await(ctx, seen) {
		l.close()
		return ctx.Err()
	}
	h.change.Lock()
	defer h.change.Unlock()
	working, stop := context.WithCancel(ctx)
	l.OnDemand = controllers.NewOnDemand(controllers.Env{Log: h.cfg.Log, Tracer: h.cfg.Tracer}, h.reconciler.Name(), h.cfg.Workers,
		l.reconcile)
	l.refused = func(err error) { h.refuse(ctx, c, err) }
	l.ends = append(l.ends, l.Stop, stop)
	h.mu.Lock()
	h.serving, h.status.Serving, h.status.Problem = l, true, ""
	h.mu.Unlock()
	l.Start(working)
	l.ends = append(l.ends, l.primary.listen(l.primaryChanged))
	for _, o := range l.owned {
		l.ends = append(l.ends, o.listen(l.ownedChanged))
	}
	for _, obj := range l.primary.all() {
		l.primaryChanged(nil, obj)
	}
	return nil
}

// await waits until the caches are filled. Meanwhile the status tells what they wait for.
func (h *hosted) await(ctx context.Context, seen []*view) bool {
	set := func(waiting []*view) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.waiting = waiting
	}
	set(seen)
	defer set(nil)
	for _, v := range seen {
		if !run.Await(ctx, v.synced) {
			return false
		}
	}
	return true
}

// close ends the loop, if there is one, and waits for the key that it works on.
func (h *hosted) close() {
	h.change.Lock()
	defer h.change.Unlock()
	h.mu.Lock()
	l := h.serving
	h.serving, h.believed = nil, believed{}
	h.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// refuse ends the loop of a reconciler that lost its right, and waits for it to come back.
func (h *hosted) refuse(ctx context.Context, c *caches, err error) {
	if ctx.Err() != nil {
		return
	}
	h.setStatus(false, err)
	h.log.WarnContext(ctx, "a reconciler lost its right and is not served", "error", err)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.beginning.Go("reconciler "+h.reconciler.Name(), func() {
			h.close()
			h.serve(ctx, c)
		})
	}
}

// loop is one stretch of serving.
type loop struct {
	*controllers.OnDemand[controllers.Key]
	*hosted
	primary *view
	owned   []*view
	refused func(error)
	first   sync.Once // refusal
	ends    []func()  // what ends it, the last first
}

func (l *loop) close() {
	for _, end := range slices.Backward(l.ends) {
		end()
	}
}

func (l *loop) primaryChanged(old, current metav1.Object) {
	if current == nil {
		current = old
	}
	l.Add(cache.MetaObjectToName(current))
}

// ownedChanged queues the primaries that an owned object belongs, or belonged, to.
func (l *loop) ownedChanged(old, current metav1.Object) {
	for _, obj := range []metav1.Object{old, current} {
		if obj == nil {
			continue
		}
		ref := metav1.GetControllerOfNoCopy(obj)
		if ref == nil || ref.Kind != l.in.Primary.Kind || schema.FromAPIVersionAndKind(ref.APIVersion, "").Group != l.in.Primary.Resource.Group {
			continue
		}
		// A cluster-scoped primary owns objects in any namespace; only one of the two
		// keys names something.
		for _, key := range []controllers.Key{{Namespace: obj.GetNamespace(), Name: ref.Name}, {Name: ref.Name}} {
			if p := l.primary.get(key); p != nil && p.GetUID() == ref.UID {
				l.Add(key)
				break
			}
		}
	}
}

func (l *loop) snapshot(key controllers.Key) (controllers.Snapshot, error) {
	s := controllers.Snapshot{Namespace: key.Namespace, Name: key.Name, Primary: l.primary.get(key), Now: time.Now()}
	if s.Primary == nil {
		return s, nil
	}
	for _, o := range l.owned {
		mine, err := o.controlled(s.Primary)
		if err != nil {
			return s, err
		}
		s.Owned = append(s.Owned, mine...)
	}
	return s, nil
}

func (l *loop) reconcile(ctx context.Context, key controllers.Key) error {
	if err := l.permitted(ctx); err != nil {
		if !apierrors.IsForbidden(err) {
			l.setStatus(true, err)
			return err // nobody answered: it sees nothing, and tries again
		}
		l.first.Do(func() { l.refused(err) })
		return nil
	}
	s, err := l.snapshot(key)
	if err != nil {
		return err
	}
	if s.Primary != nil {
		controllers.About(ctx, l.in.Primary.Kind, s.Primary)
	}
	err = l.once(ctx, key, s)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.Reconciles++
	l.status.Problem = ""
	if err != nil && !apierrors.IsConflict(err) {
		l.status.Failures++
		l.status.Problem = fmt.Sprintf("%s: %v", key, err)
	}
	if s.Primary == nil {
		delete(l.memory, key)
	}
	return err
}

func (l *loop) once(ctx context.Context, key controllers.Key, s controllers.Snapshot) error {
	plan, err := l.reconciler.Reconcile(ctx, s)
	if err != nil {
		return fmt.Errorf("reconciler %s: %w", l.reconciler.Name(), err)
	}
	l.mu.Lock()
	m := l.memory[key]
	l.mu.Unlock()
	if m == nil {
		m = &recall{}
	}
	// One worker has a key at a time, so m is ours.
	err = l.carryOut(ctx, s, plan, m)
	if !m.empty() { // most keys of most reconcilers have nothing to remember
		l.mu.Lock()
		l.memory[key] = m
		l.mu.Unlock()
	}
	if err != nil {
		return err
	}
	if plan.Requeue > 0 {
		l.AddAfter(key, plan.Requeue)
	}
	return nil
}
