// SPDX-License-Identifier: Apache-2.0

package reconcilehost

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// caches are the informers that reconcilers share, each alive as long as somebody
// uses it.
type caches struct {
	client dynamic.Interface
	log    *slog.Logger
	ends   sync.WaitGroup

	mu sync.Mutex
	by map[controllers.Watched]*shared
}

// shared is one informer. Its life is independent of the reconciler that needed it
// first.
type shared struct {
	cache.SharedIndexInformer
	users int
	stop  context.CancelFunc

	mu   sync.Mutex
	last error // of its list or watch
}

func newCaches(client dynamic.Interface, log *slog.Logger) *caches {
	return &caches{client: client, log: log, by: map[controllers.Watched]*shared{}}
}

// acquire returns the informer for what is watched, and a function that gives it back.
func (c *caches) acquire(ctx context.Context, w controllers.Watched) (*shared, func(), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.by[w]
	if s == nil {
		var err error
		if s, err = c.start(context.WithoutCancel(ctx), w); err != nil {
			return nil, nil, err
		}
		c.by[w] = s
	}
	s.users++
	return s, func() { c.release(w, s) }, nil
}

func (c *caches) start(ctx context.Context, w controllers.Watched) (*shared, error) {
	informer := dynamicinformer.NewFilteredDynamicInformer(c.client, w.Resource, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) { o.LabelSelector = w.Selector }).Informer()
	if err := controllers.IndexByController(informer); err != nil {
		return nil, fmt.Errorf("watching %s: %w", w.Resource.GroupResource(), err)
	}
	if err := informer.SetTransform(withoutManagedFields); err != nil {
		return nil, fmt.Errorf("watching %s: %w", w.Resource.GroupResource(), err)
	}
	ctx, stop := context.WithCancel(ctx)
	s := &shared{SharedIndexInformer: informer, stop: stop}
	// A kind that isn't installed yet is no reason to shout: the watch goes on trying,
	// and the reconciler's status tells.
	err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		s.mu.Lock()
		s.last = err
		s.mu.Unlock()
		c.log.DebugContext(ctx, "a watch for reconcilers is tried again", "resource", w.Resource.GroupResource().String(), "error", err)
	})
	if err != nil {
		stop()
		return nil, fmt.Errorf("watching %s: %w", w.Resource.GroupResource(), err)
	}
	c.ends.Go(func() { informer.RunWithContext(ctx) })
	return s, nil
}

func (s *shared) problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.HasSynced() {
		return nil
	}
	return s.last
}

func (c *caches) release(w controllers.Watched, s *shared) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.users--; s.users > 0 {
		return
	}
	s.stop()
	delete(c.by, w)
}

func (c *caches) wait() { c.ends.Wait() }

// withoutManagedFields: they are of no use to a reconciler, and a third of an object.
// They are the one part that is not what the server has.
func withoutManagedFields(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}
