// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// metrics have upstream's names.
type metrics struct {
	now   *prometheus.GaugeVec
	total *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		now: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "aggregator_unavailable_apiservice",
			Help: "APIServices which are marked as unavailable, by name.",
		}, []string{"name"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "aggregator_unavailable_apiservice_total",
			Help: "How often APIServices were found unavailable, by name and reason.",
		}, []string{"name", "reason"}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.now, m.total} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("aggregator: register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) observe(name string, c apiregistrationv1.APIServiceCondition) {
	if c.Status == apiregistrationv1.ConditionTrue {
		m.now.WithLabelValues(name).Set(0)
		return
	}
	m.now.WithLabelValues(name).Set(1)
	m.total.WithLabelValues(name, c.Reason).Inc()
}

func (m *metrics) forget(name string) {
	m.now.DeleteLabelValues(name)
	m.total.DeletePartialMatch(prometheus.Labels{"name": name})
}
