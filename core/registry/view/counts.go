// SPDX-License-Identifier: Apache-2.0

package view

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wasmplane/wasmplane/core/registry"
)

// counts are how many objects there are, under both of upstream's names. They are
// counted when somebody asks.
type counts struct{ registries *registry.Set }

// NewCounts makes the metrics of how many objects a set holds.
func NewCounts(s *registry.Set) prometheus.Collector { return counts{s} }

var (
	resourceObjects = prometheus.NewDesc("apiserver_resource_objects", "Number of stored objects at the time of last check split by kind.",
		[]string{"group", "resource"}, nil)
	storageObjects = prometheus.NewDesc("apiserver_storage_objects", "Objects in the store, by resource.", []string{"resource"}, nil)
)

// Describe implements prometheus.Collector.
func (counts) Describe(to chan<- *prometheus.Desc) {
	to <- resourceObjects
	to <- storageObjects
}

// Collect implements prometheus.Collector.
func (c counts) Collect(to chan<- prometheus.Metric) {
	resources, _ := c.registries.Resources()
	for _, r := range resources {
		if n, ok := c.registries.Count(r.GroupResource); ok {
			to <- prometheus.MustNewConstMetric(resourceObjects, prometheus.GaugeValue, float64(n), r.Group, r.GroupResource.Resource)
			to <- prometheus.MustNewConstMetric(storageObjects, prometheus.GaugeValue, float64(n), r.GroupResource.String())
		}
	}
}
