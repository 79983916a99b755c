// SPDX-License-Identifier: Apache-2.0

package reconcilehost

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/run"
)

// mostSelected is how many informers of one kind are narrowed by selectors of their own, which
// spares memory where few reconcilers look at few of many objects. Whoever comes with
// another selector looks at an informer of all objects, which costs the server one watch and not one
// for each reconciler.
const mostSelected = 4

// caches are the informers that reconcilers share, each alive as long as somebody
// uses it.
type caches struct {
	client dynamic.Interface
	log    *slog.Logger
	ends   run.Tasks

	mu sync.Mutex
	by map[controllers.Watched]*shared
}

// shared is one informer with one handler, however many listen to it. Its life is independent of
// the reconciler that needed it first.
type shared struct {
	cache.SharedIndexInformer
	users  int
	stop   context.CancelFunc
	synced <-chan struct{} // closed when all that exists has been delivered

	mu        sync.Mutex
	last      error // of its list or watch
	listeners map[*listener]struct{}
}

// listener is called with each change, one after the other, and must not wait for anything.
type listener struct {
	changed func(old, current metav1.Object)
}

func newCaches(client dynamic.Interface, log *slog.Logger) *caches {
	return &caches{client: client, log: log, by: map[controllers.Watched]*shared{}}
}

// acquire returns what is watched, and a function that gives it back.
func (c *caches) acquire(ctx context.Context, w controllers.Watched) (*view, func(), error) {
	selector, err := labels.Parse(w.Selector)
	if err != nil {
		return nil, nil, fmt.Errorf("watching %s: the selector %q: %w", w.Resource.GroupResource(), w.Selector, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w = c.covering(w)
	s := c.by[w]
	if s == nil {
		if s, err = c.start(context.WithoutCancel(ctx), w, withoutManagedFields); err != nil {
			return nil, nil, err
		}
		c.by[w] = s
	}
	s.users++
	return &view{shared: s, selector: selector}, func() { c.release(w, s) }, nil
}

// covering is the informer to use for what is watched: its own, or one of all objects of the kind.
func (c *caches) covering(w controllers.Watched) controllers.Watched {
	whole := w
	whole.Selector = ""
	if c.by[w] != nil || w == whole {
		return w
	}
	selected := 0
	for other := range c.by {
		if other.Resource == w.Resource && other.Selector != "" {
			selected++
		}
	}
	if c.by[whole] != nil || selected >= mostSelected {
		return whole
	}
	return w
}

// start runs an informer until its stop is called.
func (c *caches) start(ctx context.Context, w controllers.Watched, transform cache.TransformFunc) (*shared, error) {
	informer := dynamicinformer.NewFilteredDynamicInformer(c.client, w.Resource, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) { o.LabelSelector = w.Selector }).Informer()
	ctx, stop := context.WithCancel(ctx)
	s := &shared{SharedIndexInformer: informer, stop: stop, listeners: map[*listener]struct{}{}}
	if err := s.prepare(ctx, c.log.With("resource", w.Resource.GroupResource().String()), transform); err != nil {
		stop()
		return nil, fmt.Errorf("watching %s: %w", w.Resource.GroupResource(), err)
	}
	c.ends.Go("reconcilers: "+w.Resource.GroupResource().String(), func() { informer.RunWithContext(ctx) })
	return s, nil
}

func (s *shared) prepare(ctx context.Context, log *slog.Logger, transform cache.TransformFunc) error {
	if err := controllers.IndexByController(s); err != nil {
		return err
	}
	if err := s.SetTransform(transform); err != nil {
		return err
	}
	// A kind that isn't installed yet is no reason to shout: the watch goes on trying,
	// and the reconciler's status tells.
	err := s.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		s.mu.Lock()
		s.last = err
		s.mu.Unlock()
		log.DebugContext(ctx, "a watch for reconcilers is tried again", "error", err)
	})
	if err != nil {
		return err
	}
	registration, err := s.AddEventHandler(controllers.Changes(s.notify))
	if err != nil {
		return err
	}
	s.synced = registration.HasSyncedChecker().Done()
	return nil
}

// notify calls all listeners with a change.
func (s *shared) notify(old, current metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.listeners {
		l.changed(old, current)
	}
}

func (s *shared) listen(l *listener) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners[l] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.listeners, l)
	}
}

func (s *shared) hasSynced() bool {
	select {
	case <-s.synced:
		return true
	default:
		return false
	}
}

// problem is why it has no objects yet; nil where it has.
func (s *shared) problem() error {
	if s.hasSynced() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
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
