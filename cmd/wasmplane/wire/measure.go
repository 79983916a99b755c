package wire

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/store/measured"
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

// Describe implements prometheus.Collector.
func (objectCounts) Describe(to chan<- *prometheus.Desc) { to <- objectCount }

// Collect implements prometheus.Collector.
func (o objectCounts) Collect(to chan<- prometheus.Metric) {
	resources, _ := o.registries.Resources()
	for _, r := range resources {
		if n, ok := o.registries.Count(r.GroupResource); ok {
			to <- prometheus.MustNewConstMetric(objectCount, prometheus.GaugeValue, float64(n), r.Group, r.GroupResource.Resource)
		}
	}
}
