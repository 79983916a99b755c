// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// mostTriggers are remembered while a table cannot be written. What is beyond them is not measured.
const mostTriggers = 10_000

// measures of a proxy, under the names of upstream's.
type measures struct {
	began time.Time

	took, whole, partly *prometheus.HistogramVec // a write of a table
	programmed          *prometheus.HistogramVec
	written, queued     *prometheus.GaugeVec
	failures            *prometheus.CounterVec
	services, endpoints prometheus.Counter
	all                 []prometheus.Collector
}

func newMeasures() *measures {
	m := &measures{began: time.Now()}
	family := []string{"ip_family"}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Subsystem: "kubeproxy", Name: name, Help: help, Buckets: buckets}, family)
		m.all = append(m.all, h)
		return h
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: "kubeproxy", Name: name, Help: help}, family)
		m.all = append(m.all, g)
		return g
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "kubeproxy", Name: name, Help: help}, labels)
		m.all = append(m.all, c)
		return c
	}
	writes := prometheus.ExponentialBuckets(0.001, 2, 15)
	m.took = histogram("sync_proxy_rules_duration_seconds", "How long it took to bring changes into nftables.", writes)
	m.whole = histogram("sync_full_proxy_rules_duration_seconds", "How long it took to write a table anew.", writes)
	m.partly = histogram("sync_partial_proxy_rules_duration_seconds", "How long it took to bring single changes into a table.", writes)
	m.programmed = histogram("network_programming_duration_seconds",
		"From the change of a Service or Pod until the endpoints that it led to were in nftables.", slices.Concat(
			prometheus.LinearBuckets(0.25, 0.25, 2), prometheus.LinearBuckets(1, 1, 59), prometheus.LinearBuckets(60, 5, 12),
			prometheus.LinearBuckets(120, 30, 7)))
	m.written = gauge("sync_proxy_rules_last_timestamp_seconds", "When changes were last brought into nftables.")
	m.queued = gauge("sync_proxy_rules_last_queued_timestamp_seconds", "When a change was last heard of.")
	m.failures = counter("sync_proxy_rules_nftables_sync_failures_total", "Writes of a table that failed.", family...)
	m.services = counter("sync_proxy_rules_service_changes_total", "Changes of Services that were heard of.").WithLabelValues()
	m.endpoints = counter("sync_proxy_rules_endpoint_changes_total", "Changes of EndpointSlices that were heard of.").WithLabelValues()
	return m
}

// synced is told of a write of a family's table.
func (m *measures) synced(f family, whole bool, began time.Time, err error) {
	took, name := time.Since(began).Seconds(), f.name()
	m.took.WithLabelValues(name).Observe(took)
	if whole {
		m.whole.WithLabelValues(name).Observe(took)
	} else {
		m.partly.WithLabelValues(name).Observe(took)
	}
	if err != nil {
		m.failures.WithLabelValues(name).Inc()
		return
	}
	m.written.WithLabelValues(name).SetToCurrentTime()
}

// trigger is what led to a change of endpoints.
type trigger struct {
	ip6 bool
	at  time.Time
}

// triggerOf a slice that has changed; false where it does not say, says what it said before, or speaks of a time before the proxy began.
func (m *measures) triggerOf(before, now *discoveryv1.EndpointSlice) (trigger, bool) {
	said := now.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if said == "" || before != nil && before.Annotations[corev1.EndpointsLastChangeTriggerTime] == said {
		return trigger{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, said)
	if err != nil || at.Before(m.began) {
		return trigger{}, false
	}
	return trigger{ip6: now.AddressType == discoveryv1.AddressTypeIPv6, at: at}, true
}

// takeTriggers hands over what led to the changes that wait.
func (p *Proxy) takeTriggers() []trigger {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.triggers
	p.triggers = nil
	return all
}

// again keeps what is not in a family's table yet.
func (p *Proxy) again(f family, all []trigger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range all {
		if t.ip6 == f.ip6 && len(p.triggers) < mostTriggers {
			p.triggers = append(p.triggers, t)
		}
	}
}

// inForce is told that what was triggered is in a family's table.
func (m *measures) inForce(f family, all []trigger) {
	for _, t := range all {
		if t.ip6 == f.ip6 {
			m.programmed.WithLabelValues(f.name()).Observe(max(time.Since(t.at), 0).Seconds())
		}
	}
}

// Describe makes a Proxy a prometheus.Collector of its measures.
func (p *Proxy) Describe(out chan<- *prometheus.Desc) {
	for _, c := range p.measured.all {
		c.Describe(out)
	}
}

// Collect makes a Proxy a prometheus.Collector of its measures.
func (p *Proxy) Collect(out chan<- prometheus.Metric) {
	for _, c := range p.measured.all {
		c.Collect(out)
	}
}

// metrics are the proxy's own, and those of the process that it is in.
func (p *Proxy) metrics() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(p, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: mostScrapes})
}

// mostScrapes at one time: every user of the machine may ask.
const mostScrapes = 4
