// SPDX-License-Identifier: Apache-2.0

// Package measured is a store that counts and times what is asked of another
// one, under the names that upstream's apiserver has for its etcd client, so that
// its dashboards and alerts work.
package measured

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/store"
)

// Store implements store.Store and store.LeanStore.
type Store struct {
	inner     store.Store
	resource  func(key string) (schema.GroupResource, bool)
	durations *prometheus.HistogramVec
	requests  *prometheus.CounterVec
	failures  *prometheus.CounterVec
	known     sync.Map // of call: *series, which spare looking up labels
}

var _ store.LeanStore = (*Store)(nil)

type call struct {
	operation string
	resource  schema.GroupResource
}

type series struct {
	duration           prometheus.Observer
	requests, failures prometheus.Counter
}

// New registers the metrics. resource names the resource of a key, or of a prefix
// that ends with a slash.
func New(inner store.Store, resource func(key string) (schema.GroupResource, bool), r prometheus.Registerer) (*Store, error) {
	labels := []string{"operation", "group", "resource"}
	s := &Store{
		inner: inner, resource: resource,
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "etcd_request_duration_seconds", Help: "How long requests of the store took, by operation and resource.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, labels),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "etcd_requests_total",
			Help: "Requests of the store, by operation and resource.",
		}, labels),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "etcd_request_errors_total",
			Help: "Requests of the store that failed, by operation and resource.",
		}, labels),
	}
	for _, c := range []prometheus.Collector{s.durations, s.requests, s.failures} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register the store's metrics: %w", err)
		}
	}
	return s, nil
}

// observe counts one request. That a key is missing or has another revision is an
// answer and no failure.
func (s *Store) observe(operation, key string, begin time.Time, err error) {
	gr, _ := s.resource(key)
	c := call{operation, gr}
	found, ok := s.known.Load(c)
	if !ok {
		found, _ = s.known.LoadOrStore(c, &series{
			s.durations.WithLabelValues(operation, gr.Group, gr.Resource), s.requests.WithLabelValues(operation, gr.Group, gr.Resource),
			s.failures.WithLabelValues(operation, gr.Group, gr.Resource),
		})
	}
	m, ok := found.(*series)
	if !ok {
		return
	}
	m.requests.Inc()
	var conflict *store.ConflictError
	var fence *store.FenceError
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.As(err, &conflict) && !errors.As(err, &fence) {
		m.failures.Inc()
		return
	}
	m.duration.Observe(time.Since(begin).Seconds())
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) (store.KV, error) {
	begin := time.Now()
	kv, err := s.inner.Get(ctx, key)
	s.observe("get", key, begin, err)
	return kv, err
}

// Put implements store.Store.
func (s *Store) Put(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration) (int64, error) {
	return s.PutFenced(ctx, key, value, expect, ttl, store.Fences{})
}

// PutFenced implements store.Fenced.
func (s *Store) PutFenced(ctx context.Context, key string, value []byte, expect int64, ttl time.Duration, f store.Fences) (int64, error) {
	begin, operation := time.Now(), "update"
	if expect == 0 {
		operation = "create"
	}
	revision, err := store.PutFenced(ctx, s.inner, key, value, expect, ttl, f)
	s.observe(operation, key, begin, err)
	return revision, err
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, key string, expect int64) (int64, error) {
	return s.DeleteFenced(ctx, key, expect, store.Fences{})
}

// DeleteFenced implements store.Fenced.
func (s *Store) DeleteFenced(ctx context.Context, key string, expect int64, f store.Fences) (int64, error) {
	begin := time.Now()
	revision, err := store.DeleteFenced(ctx, s.inner, key, expect, f)
	s.observe("delete", key, begin, err)
	return revision, err
}

// List implements store.Store.
func (s *Store) List(ctx context.Context, prefix string, o store.ListOptions) (store.Page, error) {
	begin := time.Now()
	page, err := s.inner.List(ctx, prefix, o)
	s.observe("list", prefix, begin, err)
	return page, err
}

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	return s.inner.Watch(ctx, prefix, from)
}

// WatchLean implements store.LeanStore.
func (s *Store) WatchLean(ctx context.Context, prefix string, from int64) (store.Watcher, error) {
	return store.WatchLean(ctx, s.inner, prefix, from)
}

// Revision implements store.Store.
func (s *Store) Revision(ctx context.Context) (int64, error) { return s.inner.Revision(ctx) }

// Compact implements store.Store.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	return s.inner.Compact(ctx, revision)
}
