// SPDX-License-Identifier: Apache-2.0

// Package quotaadmission is the ResourceQuota plugin: it charges what a write is
// going to use to the namespace's quotas, and refuses what does not fit.
//
// It guarantees that no two writes are admitted for the same room, whichever
// server they came to: a charge is a compare-and-swap of the quota's status. The
// writes of one namespace that wait are charged together, so a burst of creates
// costs few of them. What was charged for a write that then failed, the quota
// controller gives back.
//
// It stands last among the validators: nothing is charged for what another one
// refuses.
package quotaadmission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	expiring "k8s.io/apimachinery/pkg/util/cache"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/quota"
	"github.com/wasmplane/wasmplane/core/run"
)

// Name of the plugin.
const Name = "ResourceQuota"

const (
	// patience is how long a write waits for its charge.
	patience = 10 * time.Second
	// attempts at a quota that others write as well.
	attempts = 20
	// remembered is how many quotas are known better than the informer knows them.
	remembered = 1000
	// liveFor is how long the server's answer counts that a namespace has no quota, and
	// for how long after a write of a namespace's quotas it is asked each time.
	liveFor = 30 * time.Second
	// namespaces that are remembered for that.
	namespaces = 10000
)

// Config of the plugin.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory // the caller starts them
	// Limited may be used only where a quota covers it.
	Limited []quota.Limited
	// Warm bounds how long a request waits for quotas that are still being read; 0 = 10 s.
	Warm time.Duration
	Now  func() time.Time // nil = time.Now
	Log  *slog.Logger     // nil = discard
}

// Plugin is the ResourceQuota plugin.
type Plugin struct {
	cfg    Config
	lister listers.ResourceQuotaLister
	synced cache.DoneChecker

	mu      sync.Mutex
	waiting map[string][]*waiter // by namespace; an entry, empty too: somebody works on it
	written *lru.Cache           // quotas as they were last written, by namespace/name

	// live holds what the server said about namespaces for which the informer has no
	// quota: one may just have been made, here or at another server.
	live *expiring.LRUExpireCache
	// changed are namespaces whose quotas were written through this server a moment
	// ago: neither the informer nor live may have seen that.
	changed *expiring.LRUExpireCache
}

// waiter is one write that waits for its charge.
type waiter struct {
	measure  *quota.Measure
	change   quota.Change
	dryRun   bool
	err      error
	finished bool // err is final
	done     chan struct{}
}

// New makes the plugin and registers the informer that it needs.
func New(cfg Config) (*Plugin, error) {
	if cfg.Client == nil || cfg.Informers == nil {
		return nil, errors.New("the ResourceQuota plugin: Client and Informers are both needed")
	}
	if cfg.Warm <= 0 {
		cfg.Warm = 10 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	quotas := cfg.Informers.Core().V1().ResourceQuotas()
	return &Plugin{
		cfg: cfg, lister: quotas.Lister(), synced: quotas.Informer().HasSyncedChecker(),
		waiting: map[string][]*waiter{}, written: lru.New(remembered),
		live: expiring.NewLRUExpireCache(namespaces), changed: expiring.NewLRUExpireCache(namespaces),
	}, nil
}

// Name implements admission.Plugin.
func (*Plugin) Name() string { return Name }

// Charges implements admission.Charger.
func (*Plugin) Charges() {}

// Handles implements admission.Plugin: most namespaces have no quota, and once that
// was asked it is known at once.
func (p *Plugin) Handles(r *admission.Request) bool {
	return p.charges(r) || writesQuota(r)
}

func (p *Plugin) charges(r *admission.Request) bool {
	if r.Namespace == "" || r.Resource.Resource == "namespaces" && r.Resource.Group == "" || quota.Ignored(r.Resource.GroupResource()) {
		return false
	}
	switch {
	case r.Operation == admission.Create && r.Subresource == "":
	case r.Operation == admission.Update && (r.Subresource == "" || r.Subresource == "resize" || r.Subresource == "status"):
		if !quota.Updates(r.Resource.GroupResource()) { // most are never charged, and renewals of leases are most updates
			return false
		}
	default:
		return false
	}
	select {
	case <-p.synced.Done():
		return quota.Limits(p.cfg.Limited, r.Resource.GroupResource()) || p.mayHave(r.Namespace)
	default:
		return true
	}
}

// mayHave says whether the namespace may have a quota, without asking anybody.
func (p *Plugin) mayHave(namespace string) bool {
	if _, just := p.changed.Get(namespace); just {
		return true
	}
	if some, err := p.lister.ResourceQuotas(namespace).List(labels.Everything()); err != nil || len(some) > 0 {
		return true
	}
	known, asked := p.live.Get(namespace)
	return !asked || len(known.([]*corev1.ResourceQuota)) > 0
}

// writesQuota says whether the request changes what a quota allows. What is charged
// to one changes its status only, and is known from the answer.
func writesQuota(r *admission.Request) bool {
	if r.DryRun || r.Resource.Group != "" || r.Resource.Resource != "resourcequotas" {
		return false
	}
	return r.Operation == admission.Delete || r.Subresource == "" || r.Subresource == "status" && allowsOther(r)
}

func allowsOther(r *admission.Request) bool {
	now, was := quotaOf(r.Object), quotaOf(r.OldObject)
	return now == nil || was == nil || !quotav1.Equals(now.Status.Hard, was.Status.Hard)
}

func quotaOf(o *object.Object) *corev1.ResourceQuota {
	if o == nil {
		return nil
	}
	v, err := o.Versioned()
	if err != nil {
		return nil
	}
	q, _ := v.(*corev1.ResourceQuota)
	return q
}

// Validate implements admission.Validator.
func (p *Plugin) Validate(ctx context.Context, r *admission.Request) error {
	if writesQuota(r) {
		p.changed.Add(r.Namespace, true, liveFor)
	}
	if !p.charges(r) {
		return nil
	}
	w, err := p.waiter(r)
	if err != nil || w == nil {
		return err
	}
	if err := p.ready(ctx, r); err != nil {
		return err
	}
	p.enqueue(ctx, r.Namespace, w)
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-w.done:
	case <-patient.Done():
		return apierrors.NewInternalError(errors.New("resource quota evaluation timed out"))
	}
	if refused, ok := quota.AsRefused(w.err); ok {
		return admission.Forbidden(r, refused)
	}
	return w.err
}

// waiter is what the request may charge; nil for nothing.
func (p *Plugin) waiter(r *admission.Request) (*waiter, error) {
	if r.Object == nil {
		return nil, nil
	}
	w := &waiter{measure: quota.For(r.Resource.GroupResource()), dryRun: r.DryRun, done: make(chan struct{})}
	var err error
	if w.change.Object, err = r.Object.Versioned(); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if r.Operation == admission.Update {
		if r.OldObject == nil {
			return nil, admission.Forbidden(r, errors.New("unable to get previous usage since prior version of object was not found"))
		}
		if w.change.Old, err = r.OldObject.Versioned(); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		if !w.measure.Charges(r.Subresource, w.change.Object, w.change.Old) {
			return nil, nil
		}
	}
	// The goroutine that charges outlives a request that gives up; the strategy's
	// next attempt may write into what this one shows.
	if w.measure.Typed() {
		w.change.Object = w.change.Object.DeepCopyObject()
	} else {
		w.change.Object = &metav1.PartialObjectMetadata{}
	}
	w.change.Subresource, w.change.Now = r.Subresource, p.cfg.Now()
	return w, nil
}

func (p *Plugin) ready(ctx context.Context, r *admission.Request) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Warm)
	defer cancel()
	select {
	case <-p.synced.Done():
		return nil
	case <-ctx.Done():
		return admission.Forbidden(r, errors.New("not yet ready to handle request"))
	}
}

// enqueue hands the waiter to whoever works on the namespace. Nobody: a goroutine
// does, until nothing waits any more.
func (p *Plugin) enqueue(ctx context.Context, namespace string, w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list, busy := p.waiting[namespace]
	p.waiting[namespace] = append(list, w)
	if !busy {
		working := context.WithoutCancel(ctx)
		run.Go("quota: charge of a namespace", func() error {
			p.work(working, namespace)
			return nil
		})
	}
}

// work charges what waits, together, until nothing does. Its ctx is the first
// waiter's without its end: the others' charges must not fall with it.
func (p *Plugin) work(ctx context.Context, namespace string) {
	for {
		p.mu.Lock()
		batch := p.waiting[namespace]
		if len(batch) == 0 {
			delete(p.waiting, namespace)
			p.mu.Unlock()
			return
		}
		p.waiting[namespace] = []*waiter{}
		p.mu.Unlock()
		p.charge(ctx, namespace, batch)
	}
}

// charge settles every waiter of the batch.
func (p *Plugin) charge(ctx context.Context, namespace string, batch []*waiter) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer func() {
		failed := recover()
		for _, w := range batch {
			if !w.finished {
				w.err = apierrors.NewInternalError(fmt.Errorf("resource quota evaluation failed: %v", failed))
			}
			close(w.done)
		}
	}()
	quotas, err := p.quotas(ctx, namespace)
	for n := 0; err == nil; n++ {
		var missed map[string]bool
		if missed, err = p.attempt(ctx, quotas, batch); err != nil || len(missed) == 0 {
			break
		}
		if n == attempts {
			err = apierrors.NewConflict(corev1.Resource("resourcequotas"), anyOf(missed),
				errors.New("the quota is written too often by others; please try again"))
			break
		}
		// Those that were written stay charged; only the others are tried again.
		quotas, err = p.fresh(ctx, namespace, missed)
	}
	for _, w := range batch {
		if !w.finished {
			w.finish(err)
		}
	}
}

func anyOf(names map[string]bool) string {
	for n := range names {
		return n
	}
	return ""
}

func (w *waiter) finish(err error) { w.err, w.finished = err, true }

// attempt holds the waiters that are not settled against the quotas, one after
// the other, and writes what changed. missed are the quotas that somebody else
// wrote in between.
func (p *Plugin) attempt(ctx context.Context, quotas []*corev1.ResourceQuota, batch []*waiter) (missed map[string]bool, err error) {
	running := quotas
	for _, w := range batch {
		if w.finished {
			continue
		}
		next, err := w.measure.Charge(running, p.cfg.Limited, w.change)
		switch {
		case err != nil:
			w.finish(err)
		case w.dryRun || same(running, next):
			w.finish(nil)
		default:
			running = next
		}
	}
	for i, q := range running {
		if q == quotas[i] || quotav1.Equals(q.Status.Used, quotas[i].Status.Used) {
			continue
		}
		updated, err := p.cfg.Client.CoreV1().ResourceQuotas(q.Namespace).UpdateStatus(ctx, q, metav1.UpdateOptions{})
		switch {
		case err == nil:
			p.written.Add(q.Namespace+"/"+q.Name, updated)
		case apierrors.IsConflict(err):
			if missed == nil {
				missed = map[string]bool{}
			}
			missed[q.Name] = true
		case apierrors.IsNotFound(err): // a quota that is gone limits nothing
		default:
			return nil, err
		}
	}
	return missed, nil
}

func same(a, b []*corev1.ResourceQuota) bool {
	for i := range a {
		if a[i] != b[i] && !quotav1.Equals(a[i].Status.Used, b[i].Status.Used) {
			return false
		}
	}
	return true
}

// quotas of a namespace, each as new as it is known here.
func (p *Plugin) quotas(ctx context.Context, namespace string) ([]*corev1.ResourceQuota, error) {
	list, err := p.list(ctx, namespace)
	if err != nil {
		return nil, fmt.Errorf("error resolving quota: %w", err)
	}
	out := make([]*corev1.ResourceQuota, len(list))
	for i, q := range list {
		out[i] = p.newer(q)
	}
	return out, nil
}

// list trusts the informer, unless the namespace's quotas were made or changed a moment ago.
func (p *Plugin) list(ctx context.Context, namespace string) ([]*corev1.ResourceQuota, error) {
	if _, just := p.changed.Get(namespace); just {
		return p.ask(ctx, namespace)
	}
	if list, err := p.lister.ResourceQuotas(namespace).List(labels.Everything()); err != nil || len(list) > 0 {
		return list, err
	}
	if known, ok := p.live.Get(namespace); ok {
		return known.([]*corev1.ResourceQuota), nil
	}
	list, err := p.ask(ctx, namespace)
	if err != nil {
		return nil, err
	}
	p.live.Add(namespace, list, liveFor)
	return list, nil
}

// ask the server itself.
func (p *Plugin) ask(ctx context.Context, namespace string) ([]*corev1.ResourceQuota, error) {
	list, err := p.cfg.Client.CoreV1().ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := make([]*corev1.ResourceQuota, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out, nil
}

// newer is the quota as this server wrote it, where the informer has not seen that yet.
func (p *Plugin) newer(q *corev1.ResourceQuota) *corev1.ResourceQuota {
	key := q.Namespace + "/" + q.Name
	known, ok := p.written.Get(key)
	if !ok {
		return q
	}
	written := known.(*corev1.ResourceQuota)
	if written.UID != q.UID || revision(q) >= revision(written) {
		p.written.Remove(key)
		return q
	}
	return written
}

func revision(o runtime.Object) int64 {
	q, ok := o.(*corev1.ResourceQuota)
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(q.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// fresh asks the server itself for the quotas of those names.
func (p *Plugin) fresh(ctx context.Context, namespace string, names map[string]bool) ([]*corev1.ResourceQuota, error) {
	all, err := p.ask(ctx, namespace)
	return slices.DeleteFunc(all, func(q *corev1.ResourceQuota) bool { return !names[q.Name] }), err
}
