// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics carry upstream's names, so that dashboards work unchanged.
type metrics struct {
	duration *prometheus.HistogramVec
	step     *prometheus.HistogramVec
	summary  *prometheus.SummaryVec
}

func newMetrics() *metrics {
	by := []string{"type", "operation", "rejected"}
	return &metrics{duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "apiserver_admission_controller_admission_duration_seconds",
		Help:    "Time that an admission plugin took, by plugin, operation, type (admit or validate) and whether it rejected.",
		Buckets: []float64{0.000005, 0.00002, 0.0001, 0.0005, 0.002, 0.01, 0.05, 0.25, 1, 5},
	}, []string{"name", "operation", "rejected", "type"}), step: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "apiserver_admission_step_admission_duration_seconds",
		Help:    "Time that all admission plugins of a step took together, by type (admit or validate), operation and whether they rejected.",
		Buckets: []float64{0.00002, 0.0001, 0.0005, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5},
	}, by), summary: prometheus.NewSummaryVec(prometheus.SummaryOpts{
		Name:   "apiserver_admission_step_admission_duration_seconds_summary",
		Help:   "As apiserver_admission_step_admission_duration_seconds, as a count and a sum.",
		MaxAge: 5 * time.Hour,
	}, by)}
}

// observeStep records one pass over the chain.
func (m *metrics) observeStep(kind string, op Operation, err error, began time.Time) {
	values := []string{kind, string(op), strconv.FormatBool(err != nil)}
	took := time.Since(began).Seconds()
	m.step.WithLabelValues(values...).Observe(took)
	m.summary.WithLabelValues(values...).Observe(took)
}

func (m *metrics) observe(plugin, point string, op Operation, rejected bool, took time.Duration) {
	kind := "admit"
	if strings.HasSuffix(point, "validate") {
		kind = "validate"
	}
	m.duration.WithLabelValues(plugin, string(op), strconv.FormatBool(rejected), kind).Observe(took.Seconds())
}

// Register adds the chain's metrics to r.
func (c *Chain) Register(r prometheus.Registerer) error {
	for _, m := range []prometheus.Collector{c.metrics.duration, c.metrics.step, c.metrics.summary} {
		if err := r.Register(m); err != nil {
			return fmt.Errorf("register the admission metrics: %w", err)
		}
	}
	return nil
}
