// SPDX-License-Identifier: Apache-2.0

package garbage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/run"
)

// Discover lists everything that the server serves, with an error for the groups
// that could not be asked.
type Discover func() ([]*metav1.APIGroup, []*metav1.APIResourceList, error)

const (
	// refreshEvery is the net below the events that announce new resources.
	refreshEvery = 5 * time.Minute
	// refreshDelay lets several changes of definitions (an install of many CRDs)
	// make one refresh.
	refreshDelay = 500 * time.Millisecond
	// firstRetry is the delay after a discovery that failed; it doubles.
	firstRetry = 250 * time.Millisecond
	// firstSync bounds how long the collector waits for all watches at the start.
	// One resource that cannot be listed must not stop the collection of all others.
	firstSync = 30 * time.Second
)

// monitors watch the metadata of every resource that can be deleted.
type monitors struct {
	discover  Discover
	client    metadata.Interface
	shared    func(schema.GroupVersionResource) cache.SharedInformer
	ignored   func(schema.GroupResource) bool
	changed   func(k kind, old, current metav1.Object)
	unwatched func(kind)
	log       *slog.Logger
	refresh   chan struct{}

	mu      sync.Mutex
	kinds   map[schema.GroupVersionKind]kind // all versions
	running map[schema.GroupVersionResource]*monitor
	ends    sync.WaitGroup
}

type monitor struct {
	kind   kind
	stop   context.CancelFunc
	synced cache.InformerSynced
}

// lookUp finds the resource of a kind. A kind that isn't known asks for a refresh:
// it may just have been installed.
func (m *monitors) lookUp(gvk schema.GroupVersionKind) (kind, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.kinds[gvk]
	if !ok {
		m.wantRefresh()
		return kind{}, fmt.Errorf("the server has no kind %s now; nothing is deleted because of it", gvk)
	}
	return k, nil
}

func (m *monitors) wantRefresh() {
	select {
	case m.refresh <- struct{}{}:
	default: // one is due already
	}
}

// run keeps the watches in step with what the server serves, until ctx ends.
func (m *monitors) run(ctx context.Context) {
	defer m.stopAll()
	retry := run.Backoff{First: firstRetry, Longest: refreshEvery}
	for {
		next := refreshEvery
		if err := m.update(ctx); err != nil {
			next = retry.Next()
			m.log.Log(ctx, level(next), "not every API group could be discovered; what they held before is still watched", "error", err,
				"retryIn", next)
		} else {
			retry.Reset()
		}
		if !run.SleepOr(ctx, next, m.refresh, refreshDelay) {
			return
		}
	}
}

// level: a server that is just starting has not got all its groups yet.
func level(retry time.Duration) slog.Level {
	if retry < 8*firstRetry {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// update discovers once and starts and stops watches accordingly.
func (m *monitors) update(ctx context.Context) error {
	groups, lists, err := m.discover()
	if len(lists) == 0 {
		return errors.Join(err, errors.New("discovery came back empty"))
	}
	failed := failedGroups(err)
	if err != nil && failed == nil {
		return err
	}
	all, wanted := table(groups, lists)
	m.mu.Lock()
	defer m.mu.Unlock()
	for gvk, k := range m.kinds {
		if _, there := all[gvk]; !there && failed[gvk.GroupVersion()] {
			all[gvk] = k // we don't know that it is gone
			if _, watched := m.running[k.resource]; watched {
				wanted[k.resource] = k
			}
		}
	}
	m.kinds = all
	for r, running := range m.running {
		if _, keep := wanted[r]; !keep {
			running.stop()
			delete(m.running, r)
			m.unwatched(running.kind)
		}
	}
	for r, k := range wanted {
		if _, there := m.running[r]; !there && !m.ignored(r.GroupResource()) {
			m.running[r] = m.start(ctx, k)
		}
	}
	return err
}

func failedGroups(err error) map[schema.GroupVersion]bool {
	var partial *discovery.ErrGroupDiscoveryFailed
	if !errors.As(err, &partial) {
		return nil
	}
	failed := map[schema.GroupVersion]bool{}
	for gv := range partial.Groups {
		failed[gv] = true
	}
	return failed
}

// table sorts a discovery into all kinds, and the resources to watch: each once,
// in the version that its group prefers.
func table(groups []*metav1.APIGroup,
	lists []*metav1.APIResourceList,
) (map[schema.GroupVersionKind]kind, map[schema.GroupVersionResource]kind) {
	all, watch := map[schema.GroupVersionKind]kind{}, map[schema.GroupVersionResource]kind{}
	rank := map[string]int{}
	for _, g := range groups {
		for i, v := range g.Versions {
			rank[v.GroupVersion] = i + 1
		}
		rank[g.PreferredVersion.GroupVersion] = 0
	}
	sorted := slices.Clone(lists)
	slices.SortStableFunc(sorted, func(a, b *metav1.APIResourceList) int { return rank[a.GroupVersion] - rank[b.GroupVersion] })
	seen := map[schema.GroupResource]bool{}
	for _, list := range sorted {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range list.APIResources {
			if isSubresource(r.Name) || !slices.Contains(r.Verbs, "delete") {
				continue
			}
			k := kind{gv.WithKind(r.Kind), gv.WithResource(r.Name), r.Namespaced}
			all[k.GroupVersionKind] = k
			gr := k.resource.GroupResource()
			if !seen[gr] && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") {
				seen[gr] = true
				watch[k.resource] = k
			}
		}
	}
	return all, watch
}

func isSubresource(name string) bool { return slices.Contains([]byte(name), '/') }

// start watches one resource: by an informer that the process has anyway, or by
// one of metadata only.
func (m *monitors) start(ctx context.Context, k kind) *monitor {
	handler := controllers.Changes(func(old, current metav1.Object) { m.changed(k, old, current) })
	ctx, stop := context.WithCancel(ctx)
	mon := &monitor{kind: k, stop: stop}
	if m.shared != nil {
		if informer := m.shared(k.resource); informer != nil {
			m.listen(ctx, mon, informer, handler, false)
			return mon
		}
	}
	informer := metadatainformer.NewFilteredMetadataInformer(m.client, k.resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	// Most of an object's metadata is managed fields and annotations; the graph needs neither.
	if err := informer.SetTransform(slim); err != nil {
		m.log.DebugContext(ctx, "a metadata informer keeps whole metadata", "resource", k.resource, "error", err)
	}
	m.listen(ctx, mon, informer, handler, true)
	return mon
}

func (m *monitors) listen(ctx context.Context, mon *monitor, informer cache.SharedInformer, handler cache.ResourceEventHandler, own bool) {
	registration, err := informer.AddEventHandler(handler)
	if err != nil { // only an informer that has ended refuses
		mon.synced = func() bool { return true }
		return
	}
	mon.synced = registration.HasSynced
	m.ends.Go(func() {
		if own {
			informer.RunWithContext(ctx)
			return
		}
		<-ctx.Done()
		_ = informer.RemoveEventHandler(registration)
	})
}

func slim(obj any) (any, error) {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		DeletionTimestamp: m.DeletionTimestamp, OwnerReferences: m.OwnerReferences, Finalizers: m.Finalizers,
	}}, nil
}

func (m *monitors) stopAll() {
	m.mu.Lock()
	for _, mon := range m.running {
		mon.stop()
	}
	m.mu.Unlock()
	m.ends.Wait()
}

// synced reports whether every watch has delivered what exists.
func (m *monitors) synced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.running) == 0 {
		return false
	}
	for _, mon := range m.running {
		if !mon.synced() {
			return false
		}
	}
	return true
}
