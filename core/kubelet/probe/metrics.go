// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
)

// metrics count probes under upstream's names, for as long as their pod is on the node.
type metrics struct {
	registry *prometheus.Registry
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prober_probe_total", Help: "Probes of containers, by kind of probe and result.",
		}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prober_probe_duration_seconds", Help: "How long probes took.",
		}, []string{"probe_type", "container", "pod", "namespace"}),
	}
	m.registry.MustRegister(m.total, m.duration) // of names that nobody else has in it
	return m
}

// observe a probe that was answered. One that could not be asked counts for nothing, as upstream.
func (m *metrics) observe(c Check, ok bool, took time.Duration) {
	result := "failed"
	if ok {
		result = "successful"
	}
	kind := c.Kind.String()
	m.total.WithLabelValues(kind, result, c.Container.Name, c.Pod.Name, c.Pod.Namespace, string(c.Pod.UID)).Inc()
	m.duration.WithLabelValues(kind, c.Container.Name, c.Pod.Name, c.Pod.Namespace).Observe(took.Seconds())
}

// Forget a pod that is gone: nothing of it is probed or counted any more.
func (m *Manager) Forget(p *corev1.Pod) {
	m.Set(p, "", nil)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.metrics.total.DeletePartialMatch(prometheus.Labels{"pod_uid": string(p.UID)})
	m.metrics.duration.DeletePartialMatch(prometheus.Labels{"namespace": p.Namespace, "pod": p.Name})
}

// Metrics of the probes of all pods.
func (m *Manager) Metrics() prometheus.Gatherer { return m.metrics.registry }
