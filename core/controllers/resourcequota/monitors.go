// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/quota"
)

// refreshEvery: how soon a quota of a resource that was not served, or is not any
// more, is told.
const refreshEvery = 30 * time.Second

// monitors watch the resources that quotas limit.
type monitors struct {
	reader   kubernetes.Interface
	metadata metadata.Interface
	owner    *Controller
	log      *slog.Logger
	wake     chan struct{}

	mu      sync.Mutex
	shared  map[schema.GroupResource]cache.SharedIndexInformer
	running map[schema.GroupResource]*monitor
	unknown map[schema.GroupResource]bool // the server does not serve them
}

type monitor struct {
	informer cache.SharedIndexInformer
	synced   cache.InformerSynced
	stop     func()
}

func newMonitors(env controllers.Env, meta metadata.Interface, owner *Controller) *monitors {
	core := env.Informers.Core().V1()
	return &monitors{
		reader: env.Reader, metadata: meta, owner: owner, log: owner.loop.Log(), wake: make(chan struct{}, 1),
		// They are asked for here, before the shared informers start.
		shared: map[schema.GroupResource]cache.SharedIndexInformer{
			{Resource: "pods"}:                   core.Pods().Informer(),
			{Resource: "services"}:               core.Services().Informer(),
			{Resource: "persistentvolumeclaims"}: core.PersistentVolumeClaims().Informer(),
		},
		running: map[schema.GroupResource]*monitor{}, unknown: map[schema.GroupResource]bool{},
	}
}

// objects of one resource in a namespace. known is false for a resource that the
// server does not serve.
func (w *monitors) objects(m *quota.Measure, namespace string) (list []runtime.Object, known bool, err error) {
	w.mu.Lock()
	running, unknown := w.running[m.Resource], w.unknown[m.Resource]
	w.mu.Unlock()
	switch {
	case running == nil && unknown:
		return nil, false, nil
	case running == nil:
		w.want()
		return nil, false, fmt.Errorf("%s is going to be watched: %w", m.Resource, controllers.ErrNotYet)
	case !running.synced():
		return nil, false, fmt.Errorf("%s has not been listed yet: %w", m.Resource, controllers.ErrNotYet)
	}
	found, err := running.informer.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil, false, err
	}
	return objects(found), true, nil
}

func (w *monitors) want() {
	select {
	case w.wake <- struct{}{}:
	default: // it is due already
	}
}

// run keeps the watches in step with what quotas need, until ctx ends.
func (w *monitors) run(ctx context.Context) {
	var ends sync.WaitGroup
	defer ends.Wait()
	defer w.stopAll()
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		w.update(ctx, &ends)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-w.wake:
		}
	}
}

func (w *monitors) stopAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.running {
		m.stop()
	}
}

// update starts what is missing and stops what nobody needs any more.
func (w *monitors) update(ctx context.Context, ends *sync.WaitGroup) {
	needed := w.owner.needed()
	w.mu.Lock()
	for gr, m := range w.running {
		if !slices.ContainsFunc(needed, func(n *quota.Measure) bool { return n.Resource == gr }) {
			m.stop()
			delete(w.running, gr)
		}
	}
	missing := slices.DeleteFunc(needed, func(n *quota.Measure) bool { return w.running[n.Resource] != nil })
	w.mu.Unlock()
	if len(missing) == 0 {
		return
	}
	var served map[schema.GroupResource]schema.GroupVersionResource
	for _, m := range missing {
		if w.shared[m.Resource] == nil && served == nil {
			if served = w.served(); served == nil {
				return // it is tried again
			}
		}
		w.start(ctx, ends, m, served)
	}
}

// served lists the namespaced resources that can be watched, in the version that
// the server prefers. Nil: the server could not be asked.
func (w *monitors) served() map[schema.GroupResource]schema.GroupVersionResource {
	groups, lists, err := w.reader.Discovery().ServerGroupsAndResources()
	if err != nil && len(lists) == 0 {
		w.log.Warn("what the server serves could not be discovered; quotas of it wait", "error", err)
		return nil
	}
	preferred := map[string]string{}
	for _, g := range groups {
		preferred[g.Name] = g.PreferredVersion.Version
	}
	out := map[schema.GroupResource]schema.GroupVersionResource{}
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range l.APIResources {
			gvr := gv.WithResource(r.Name)
			_, known := out[gvr.GroupResource()]
			if r.Namespaced && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") &&
				(!known || preferred[gv.Group] == gv.Version) {
				out[gvr.GroupResource()] = gvr
			}
		}
	}
	return out
}

// start watches one resource.
func (w *monitors) start(ctx context.Context, ends *sync.WaitGroup, m *quota.Measure,
	served map[schema.GroupResource]schema.GroupVersionResource,
) {
	informer := w.shared[m.Resource]
	own := informer == nil
	if own {
		gvr, ok := served[m.Resource]
		w.mu.Lock()
		w.unknown[m.Resource] = !ok
		w.mu.Unlock()
		if !ok {
			return
		}
		informer = w.informer(gvr, m)
	}
	registration, err := informer.AddEventHandler(w.handler(m))
	if err != nil {
		w.log.WarnContext(ctx, "a resource that a quota limits cannot be watched", "resource", m.Resource.String(), "error", err)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	started := &monitor{informer: informer, synced: registration.HasSynced, stop: func() {
		_ = informer.RemoveEventHandler(registration) // fails only when the informer has ended
		cancel()
	}}
	if own {
		ends.Go(func() { informer.RunWithContext(ctx) })
	}
	w.mu.Lock()
	w.running[m.Resource] = started
	w.mu.Unlock()
	// Who asked before the list was there comes again with a delay; nobody should
	// have to wait for more than the list.
	ends.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			w.owner.touched(m, metav1.NamespaceAll, 0)
		}
	})
}

func (w *monitors) informer(gvr schema.GroupVersionResource, m *quota.Measure) cache.SharedIndexInformer {
	byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	if m.Typed() { // a resource claim: what it asks for counts
		return resourceinformers.NewResourceClaimInformer(w.reader, metav1.NamespaceAll, 0, byNamespace)
	}
	return metadatainformer.NewFilteredMetadataInformer(w.metadata, gvr, metav1.NamespaceAll, 0, byNamespace, nil).Informer()
}

// handler tells the controller of what may have changed what is used.
func (w *monitors) handler(m *quota.Measure) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(o any, initial bool) {
			if x, ok := o.(metav1.Object); ok && !initial {
				w.owner.touched(m, x.GetNamespace(), recount)
			}
		},
		UpdateFunc: func(before, after any) {
			x, ok1 := after.(metav1.Object)
			o, ok2 := after.(runtime.Object)
			old, ok3 := before.(runtime.Object)
			if ok1 && ok2 && ok3 && m.Releases(o, old, time.Now()) {
				w.owner.touched(m, x.GetNamespace(), 0)
			}
		},
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if x, ok := o.(metav1.Object); ok {
				w.owner.touched(m, x.GetNamespace(), 0)
			}
		},
	}
}
