// SPDX-License-Identifier: Apache-2.0

package measured

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// sizeInterval is how often the store is asked for the size of its database.
const sizeInterval = 30 * time.Second

// Size keeps the size of a database in upstream's metric.
type Size struct {
	size  func(context.Context) (int64, error)
	gauge prometheus.Gauge
}

// NewSize registers the metric; size answers bytes.
func NewSize(size func(context.Context) (int64, error), r prometheus.Registerer) (*Size, error) {
	s := &Size{size: size, gauge: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "apiserver_storage_size_bytes", Help: "Bytes that the store's database file takes on its disk.",
		ConstLabels: prometheus.Labels{"storage_cluster_id": "etcd-0"},
	})}
	if err := r.Register(s.gauge); err != nil {
		return nil, fmt.Errorf("register the metric of the store's size: %w", err)
	}
	return s, nil
}

// Run asks until ctx ends. A store that does not answer keeps its last size here: its
// readiness check reports the failure.
func (s *Size) Run(ctx context.Context) error {
	tick := time.NewTicker(sizeInterval)
	defer tick.Stop()
	for {
		if n, err := s.size(ctx); err == nil {
			s.gauge.Set(float64(n))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
