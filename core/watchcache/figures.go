// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// collector is upstream's metrics of a watch cache, read when somebody asks.
type collector struct {
	cache    *Cache
	resource func(key string) (schema.GroupResource, bool)
}

// NewCollector makes upstream's metrics (apiserver_watch_cache_..., apiserver_storage_events_received_total) of a cache. resource
// names the resource of a prefix; those that it does not know are left out.
func NewCollector(c *Cache, resource func(prefix string) (schema.GroupResource, bool)) prometheus.Collector {
	return collector{c, resource}
}

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("apiserver_watch_cache_"+name, help, []string{"group", "resource"}, nil)
}

var (
	receivedDesc = desc("events_received_total", "Counter of events received in watch cache broken by resource type.")
	// One watch over the whole key space feeds the cache, so both count the same.
	storageDesc = prometheus.NewDesc("apiserver_storage_events_received_total", "Changes that came from the store, by resource.",
		[]string{"group", "resource"}, nil)
	dispatchedDesc = desc("events_dispatched_total", "Counter of events dispatched in watch cache broken by resource type.")
	loadsDesc      = desc("initializations_total", "Counter of watch cache initializations broken by resource type.")
	capacityDesc   = desc("capacity", "Total capacity of watch cache broken by resource type.")
	revisionDesc   = desc("resource_version", "Current resource version of watch cache broken by resource type.")
)

// Describe implements prometheus.Collector.
func (collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{receivedDesc, storageDesc, dispatchedDesc, loadsDesc, capacityDesc, revisionDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	for prefix, f := range c.cache.figures() {
		gr, ok := c.resource(prefix)
		if !ok {
			continue
		}
		send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64) {
			to <- prometheus.MustNewConstMetric(d, kind, value, gr.Group, gr.Resource)
		}
		send(receivedDesc, prometheus.CounterValue, float64(f.received))
		send(storageDesc, prometheus.CounterValue, float64(f.received))
		send(dispatchedDesc, prometheus.CounterValue, float64(f.dispatched))
		send(loadsDesc, prometheus.CounterValue, float64(f.loads))
		send(capacityDesc, prometheus.GaugeValue, float64(f.capacity))
		send(revisionDesc, prometheus.GaugeValue, float64(f.revision))
	}
}
