// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics carry upstream's names.
type metrics struct {
	validating, mutating *checks
}

// checks of one kind of policies.
type checks struct {
	total   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

func newMetrics() *metrics {
	return &metrics{
		validating: newChecks("apiserver_validating_admission_policy_", "policy", "policy_binding", "error_type", "enforcement_action"),
		mutating:   newChecks("apiserver_mutating_admission_policy_", "policy", "policy_binding", "error_type"),
	}
}

func newChecks(prefix string, by ...string) *checks {
	return &checks{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "check_total", Help: "Checks of admission policies, by policy, binding, error and what was done about it.",
		}, by),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "check_duration_seconds", Help: "Time that checks of admission policies took, by policy and binding.",
			Buckets: []float64{0.0000005, 0.001, 0.01, 0.1, 1.0},
		}, by),
	}
}

func (c *checks) observe(took time.Duration, values ...string) {
	c.total.WithLabelValues(values...).Inc()
	c.seconds.WithLabelValues(values...).Observe(took.Seconds())
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.validating.total, m.validating.seconds, m.mutating.total, m.mutating.seconds}
}
