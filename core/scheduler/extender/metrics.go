// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of the calls of extenders.
type Metrics struct{ calls *prometheus.HistogramVec }

// NewMetrics registers them, or takes those over that are registered already: a process may lead again. A nil registerer
// makes none.
func NewMetrics(to prometheus.Registerer) (*Metrics, error) {
	if to == nil {
		return nil, nil //nolint:nilnil // a nil one counts nothing
	}
	m := &Metrics{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "wasmplane_scheduler_extender_duration_seconds",
		Help:    "How long scheduler extenders took to answer, by the URL of the extender, the verb, and result: success or error (no answer in time, or not a right one).",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
	}, []string{"extender", "verb", "result"})}
	err := to.Register(m.calls)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if before, ok := there.ExistingCollector.(*prometheus.HistogramVec); ok {
			m.calls, err = before, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("register the metrics of extenders: %w", err)
	}
	return m, nil
}

// called counts a call.
func (m *Metrics) called(url, verb string, err error, took time.Duration) {
	if m == nil {
		return
	}
	result := "success"
	if err != nil {
		result = "error"
	}
	m.calls.WithLabelValues(url, verb, result).Observe(took.Seconds())
}
