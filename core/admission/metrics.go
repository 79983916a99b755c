package admission

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics carry upstream's names, so that dashboards work unchanged.
type metrics struct{ duration *prometheus.HistogramVec }

func newMetrics() *metrics {
	return &metrics{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "apiserver_admission_controller_admission_duration_seconds",
		Help:    "Time that an admission plugin took, by plugin, operation, type (admit or validate) and whether it rejected.",
		Buckets: []float64{0.000005, 0.00002, 0.0001, 0.0005, 0.002, 0.01, 0.05, 0.25, 1, 5},
	}, []string{"name", "operation", "rejected", "type"})}
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
	if err := r.Register(c.metrics.duration); err != nil {
		return fmt.Errorf("register the admission metrics: %w", err)
	}
	return nil
}
