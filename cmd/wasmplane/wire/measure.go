package wire

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // rest_client_*
	_ "k8s.io/component-base/metrics/prometheus/version"    // kubernetes_build_info

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/store/measured"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// measure puts upstream's metrics of etcd's client before the store.
func (s *server) measure(contract *api.Contract) error {
	st, err := measured.New(s.store, resourceOfKey(contract), s.metrics)
	if err != nil {
		return err
	}
	s.store = st
	return nil
}

// objectCounts tells how many objects there are, under upstream's name. They are
// counted when somebody asks.
type objectCounts struct{ registries *registry.Set }

var objectCount = prometheus.NewDesc("apiserver_resource_objects", "Number of stored objects at the time of last check split by kind.", []string{"group", "resource"}, nil)

// storageObjects is the same under the name that upstream had before.
var storageObjects = prometheus.NewDesc("apiserver_storage_objects", "Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.", []string{"resource"}, nil)

// Describe implements prometheus.Collector.
func (objectCounts) Describe(to chan<- *prometheus.Desc) {
	to <- objectCount
	to <- storageObjects
}

// Collect implements prometheus.Collector.
func (o objectCounts) Collect(to chan<- prometheus.Metric) {
	resources, _ := o.registries.Resources()
	for _, r := range resources {
		if n, ok := o.registries.Count(r.GroupResource); ok {
			to <- prometheus.MustNewConstMetric(objectCount, prometheus.GaugeValue, float64(n), r.Group, r.GroupResource.Resource)
			to <- prometheus.MustNewConstMetric(storageObjects, prometheus.GaugeValue, float64(n), r.GroupResource.String())
		}
	}
}

// cacheFigures are upstream's metrics of the watch cache, read when somebody asks.
type cacheFigures struct {
	cache    *watchcache.Cache
	resource func(key string) (schema.GroupResource, bool)
}

func cacheDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("apiserver_watch_cache_"+name, help, []string{"group", "resource"}, nil)
}

var (
	cacheReceived   = cacheDesc("events_received_total", "Counter of events received in watch cache broken by resource type.")
	cacheDispatched = cacheDesc("events_dispatched_total", "Counter of events dispatched in watch cache broken by resource type.")
	cacheLoads      = cacheDesc("initializations_total", "Counter of watch cache initializations broken by resource type.")
	cacheCapacity   = cacheDesc("capacity", "Total capacity of watch cache broken by resource type.")
	cacheRevision   = cacheDesc("resource_version", "Current resource version of watch cache broken by resource type.")
)

// Describe implements prometheus.Collector.
func (cacheFigures) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{cacheReceived, cacheDispatched, cacheLoads, cacheCapacity, cacheRevision} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (f cacheFigures) Collect(to chan<- prometheus.Metric) {
	for prefix, n := range f.cache.Figures() {
		gr, ok := f.resource(prefix)
		if !ok {
			continue
		}
		tell := func(d *prometheus.Desc, kind prometheus.ValueType, value float64) {
			to <- prometheus.MustNewConstMetric(d, kind, value, gr.Group, gr.Resource)
		}
		tell(cacheReceived, prometheus.CounterValue, float64(n.Received))
		tell(cacheDispatched, prometheus.CounterValue, float64(n.Dispatched))
		tell(cacheLoads, prometheus.CounterValue, float64(n.Loads))
		tell(cacheCapacity, prometheus.GaugeValue, float64(n.Capacity))
		tell(cacheRevision, prometheus.GaugeValue, float64(n.Revision))
	}
}

// sizeEvery is how often etcd is asked for the size of its database.
const sizeEvery = 30 * time.Second

// followSize keeps the size of the database in a metric.
func (s *server) followSize(ctx context.Context) error {
	tick := time.NewTicker(sizeEvery)
	defer tick.Stop()
	for {
		if n, err := s.etcd.Size(ctx); err == nil { // a store that does not answer is told of elsewhere
			s.databaseSize.Set(float64(n))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// measureCache registers what is known of the cache, the objects and the store.
func (s *server) measureCache(contract *api.Contract) error {
	s.databaseSize = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "apiserver_storage_size_bytes", Help: "Size of the storage database file physically allocated in bytes.",
		ConstLabels: prometheus.Labels{"storage_cluster_id": "etcd-0"},
	})
	for _, c := range []prometheus.Collector{objectCounts{s.registries}, cacheFigures{s.cache, resourceOfKey(contract)}, s.databaseSize} {
		if err := s.metrics.Register(c); err != nil {
			return fmt.Errorf("register the metrics of what is stored: %w", err)
		}
	}
	return nil
}
