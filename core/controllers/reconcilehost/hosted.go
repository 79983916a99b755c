// SPDX-License-Identifier: Apache-2.0

package reconcilehost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/run"
)

// hosted is one reconciler with all that serves it.
type hosted struct {
	cfg        Config
	reconciler controllers.Reconciler
	in         controllers.Inputs
	client     dynamic.Interface
	namespace  string // of its service account
	account    string
	events     *events
	log        *slog.Logger

	mu     sync.Mutex
	status Status
	memory map[controllers.Key]*recall
}

// recall is what is remembered of one key between two reconciles, to leave out
// writes that change nothing. Losing it costs a few such writes.
type recall struct {
	applied map[objectKey]applied
	status  uint64 // hash of the status applied last
	seen    string // resource version that the status write produced
	events  []controllers.Event
}

type objectKey struct {
	kind            schema.GroupKind
	namespace, name string
}

type applied struct {
	hash    uint64
	version string
}

func newHosted(cfg Config, r controllers.Reconciler, client dynamic.Interface, namespace, account string) *hosted {
	return &hosted{
		cfg: cfg, reconciler: r, in: r.Inputs(), client: client, namespace: namespace, account: account,
		events: &events{client: client, component: r.Name()},
		log:    cfg.Log.With("reconciler", r.Name()),
		status: Status{Name: r.Name()},
		memory: map[controllers.Key]*recall{},
	}
}

func (h *hosted) report() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.status
}

func (h *hosted) say(serving bool, problem error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status.Serving, h.status.Problem = serving, ""
	if problem != nil {
		h.status.Problem = problem.Error()
	}
}

// serve works, and after whatever stopped it (a permission that is missing) tries
// again, until ctx ends.
func (h *hosted) serve(ctx context.Context, c *caches) {
	defer h.events.shutdown()
	retry := run.Backoff{First: time.Second, Longest: h.cfg.Review}
	for {
		err := h.permitted(ctx)
		if err == nil {
			retry.Reset()
			err = h.work(ctx, c)
		}
		if ctx.Err() != nil {
			return
		}
		h.say(false, err)
		wait := retry.Next()
		h.log.WarnContext(ctx, "a reconciler is not served", "error", err, "retryIn", wait)
		if !run.Sleep(ctx, wait) {
			return
		}
	}
}

func (h *hosted) watched() []controllers.Watched {
	return append([]controllers.Watched{h.in.Primary}, h.in.Owned...)
}

func (h *hosted) permitted(ctx context.Context) error {
	for _, w := range h.watched() {
		if err := h.cfg.Permitted(ctx, h.namespace, h.account, w.Resource); err != nil {
			return err
		}
	}
	return nil
}

// work serves the reconciler until ctx ends or its permission does.
func (h *hosted) work(ctx context.Context, c *caches) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	primary, giveBack, err := c.acquire(ctx, h.in.Primary)
	if err != nil {
		return err
	}
	defer giveBack()
	loop := &loop{hosted: h, primary: primary}
	loop.Loop = controllers.NewLoop(controllers.Env{Log: h.cfg.Log, Tracer: h.cfg.Tracer}, h.reconciler.Name(), h.cfg.Workers, loop.reconcile)
	loop.Watch(primary, controllers.KeyHandler(loop.Loop))
	all := []*shared{primary}
	for _, w := range h.in.Owned {
		owned, giveBack, err := c.acquire(ctx, w)
		if err != nil {
			return err
		}
		defer giveBack()
		loop.owned = append(loop.owned, owned)
		loop.Watch(owned, controllers.Changes(loop.ownedChanged))
		all = append(all, owned)
	}
	loop.Beside(func(ctx context.Context) {
		h.say(true, nil)
		for run.Sleep(ctx, h.cfg.Review) {
			if err := h.permitted(ctx); err != nil && ctx.Err() == nil {
				stop(err)
				return
			}
		}
	})
	var watching run.Tasks
	watching.Go("reconciler "+h.reconciler.Name()+": caches", func() { h.reportWaiting(ctx, all) })
	err = loop.Run(ctx)
	stop(nil)
	watching.Wait()
	return errors.Join(err, context.Cause(ctx))
}

// reportWaiting puts into the status what the caches wait for.
func (h *hosted) reportWaiting(ctx context.Context, all []*shared) {
	for run.Sleep(ctx, time.Second) {
		var problem error
		synced := true
		for _, s := range all {
			synced = synced && s.HasSynced()
			problem = errors.Join(problem, s.problem())
		}
		if synced {
			return
		}
		h.say(false, problem)
	}
}

// loop is one stretch of serving.
type loop struct {
	*controllers.Loop[controllers.Key]
	*hosted
	primary *shared
	owned   []*shared
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
			if p := l.get(key); p != nil && p.GetUID() == ref.UID {
				l.Add(key)
				break
			}
		}
	}
}

func (l *loop) get(key controllers.Key) *unstructured.Unstructured {
	obj, ok, err := l.primary.GetIndexer().GetByKey(key.String())
	if err != nil || !ok {
		return nil
	}
	u, _ := obj.(*unstructured.Unstructured)
	return u
}

func (l *loop) snapshot(key controllers.Key) (controllers.Snapshot, error) {
	s := controllers.Snapshot{Namespace: key.Namespace, Name: key.Name, Primary: l.get(key), Now: time.Now()}
	if s.Primary == nil {
		return s, nil
	}
	for _, o := range l.owned {
		mine, err := controllers.Controlled[*unstructured.Unstructured](o.GetIndexer(), s.Primary, false)
		if err != nil {
			return s, err
		}
		s.Owned = append(s.Owned, mine...)
	}
	return s, nil
}

func (l *loop) reconcile(ctx context.Context, key controllers.Key) error {
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
	if m == nil {
		m = &recall{applied: map[objectKey]applied{}}
		l.memory[key] = m
	}
	l.mu.Unlock()
	// One worker has a key at a time, so m is ours.
	if err := l.carryOut(ctx, s, plan, m); err != nil {
		return err
	}
	if plan.Requeue > 0 {
		l.AddAfter(key, plan.Requeue)
	}
	return nil
}
