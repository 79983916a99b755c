// SPDX-License-Identifier: Apache-2.0

package point

import (
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
)

// Metrics count calls by plugin, point and decision.
type Metrics struct {
	calls    *prometheus.CounterVec
	failures *prometheus.CounterVec
	fuel     *prometheus.CounterVec
	duration *prometheus.HistogramVec
	memory   *prometheus.GaugeVec

	remembered *prometheus.CounterVec
	hostCalls  *prometheus.CounterVec
	candidates *prometheus.CounterVec

	plugins sync.Map // name -> *Plugin, for what is looked up when metrics are read
}

var (
	breakerDesc = prometheus.NewDesc("wasmplane_plugin_breaker_open", "1 while a plugin is left alone because it failed many times in a row, by plugin.", []string{"plugin"}, nil)
	openedDesc  = prometheus.NewDesc("wasmplane_plugin_breaker_opened_total",
		"How often the breaker of the version in force has opened, by plugin.", []string{"plugin"}, nil)
	instancesDesc = prometheus.NewDesc("wasmplane_plugin_instances", "Instances that exist of the version in force, by plugin.",
		[]string{"plugin"}, nil)
	readyDesc = prometheus.NewDesc("wasmplane_plugin_ready", "1 where a version of the plugin answers, with its digest.",
		[]string{"plugin", "digest"}, nil)
)

// Describe implements prometheus.Collector for what is looked up.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{breakerDesc, openedDesc, instancesDesc, readyDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.plugins.Range(func(_, p any) bool {
		p.(*Plugin).collect(out)
		return true
	})
}

func (p *Plugin) collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{p.name}, labels...)...)
	}
	v := p.Current()
	if v == nil || v.hooks == nil {
		return // unloaded, or without a part in this process
	}
	if !v.Loaded() {
		gauge(readyDesc, 0, "")
		return
	}
	if v.Module == nil {
		gauge(readyDesc, 1, v.Digest)
		return
	}
	open, opened := v.Module.Breaker()
	var is float64
	if open {
		is = 1
	}
	gauge(breakerDesc, is)
	out <- prometheus.MustNewConstMetric(openedDesc, prometheus.CounterValue, float64(opened), p.name)
	gauge(instancesDesc, float64(v.Module.Instances()))
	gauge(readyDesc, 1, v.Digest)
}

// NewMetrics makes the metrics and registers them; r may be nil.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wasmplane_plugin_calls_total", Help: "Calls of plugins, by plugin, point and decision.",
		}, []string{"plugin", "point", "decision"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wasmplane_plugin_failures_total", Help: "Calls of plugins that failed, by plugin, point and kind of failure.",
		}, []string{"plugin", "point", "kind"}),
		fuel: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wasmplane_plugin_fuel_total", Help: "Fuel that plugins used, by plugin and point.",
		}, []string{"plugin", "point"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "wasmplane_plugin_duration_seconds", Help: "Time that a call of a plugin took, by plugin and point.",
			Buckets: []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 5e-4, 2e-3, 1e-2, 5e-2, 0.25},
		}, []string{"plugin", "point"}),
		memory: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "wasmplane_plugin_memory_bytes", Help: "Linear memory of the instance that answered last, by plugin.",
		}, []string{"plugin"}),
		remembered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wasmplane_plugin_remembered_total", Help: "Answers of pure hooks that were remembered, by plugin and point.",
		}, []string{"plugin", "point"}),
		hostCalls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wasmplane_plugin_host_calls_total", Help: "Calls of host functions, by plugin and point.",
		}, []string{"plugin", "point"}),
		candidates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wasmplane_plugin_candidate_calls_total", Help: "Calls of candidate versions, by plugin, point and how their decision compared: same, differs or failed.",
		}, []string{"plugin", "point", "result"}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.calls, m.failures, m.fuel, m.duration, m.memory, m.remembered, m.hostCalls, m.candidates, m} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register the plugins' metrics: %w", err)
		}
	}
	return m, nil
}

// series are the metrics of one plugin at one point, looked up once: a look-up by
// labels costs as much as a small policy.
type series struct {
	duration prometheus.Observer
	fuel     prometheus.Counter
	memory   prometheus.Gauge
	host     prometheus.Counter
	recalled prometheus.Counter
	calls    sync.Map // decision -> prometheus.Counter
}

func (p *Plugin) seriesAt(pt abi.Point) *series {
	if s, ok := p.series.Load(pt); ok {
		return s.(*series)
	}
	m, point := p.metrics, string(pt)
	s, _ := p.series.LoadOrStore(pt, &series{
		duration: m.duration.WithLabelValues(p.name, point),
		fuel:     m.fuel.WithLabelValues(p.name, point),
		memory:   m.memory.WithLabelValues(p.name),
		host:     m.hostCalls.WithLabelValues(p.name, point),
		recalled: m.remembered.WithLabelValues(p.name, point),
	})
	return s.(*series)
}

func (p *Plugin) observe(c *Call, pt abi.Point, decision string) {
	s := p.seriesAt(pt)
	calls, ok := s.calls.Load(decision)
	if !ok {
		calls, _ = s.calls.LoadOrStore(decision, p.metrics.calls.WithLabelValues(p.name, string(pt), decision))
	}
	calls.(prometheus.Counter).Inc()
	if c.Remembered {
		s.recalled.Inc()
		return
	}
	if c.Usage.HostCalls > 0 {
		s.host.Add(float64(c.Usage.HostCalls))
	}
	s.duration.Observe(c.Usage.Duration.Seconds())
	s.fuel.Add(float64(c.Usage.Fuel))
	s.memory.Set(float64(c.Usage.Memory))
	if c.Err == nil {
		return
	}
	kind := "error"
	var f *host.Fault
	if errors.As(c.Err, &f) {
		kind = string(f.Kind)
	}
	p.metrics.failures.WithLabelValues(p.name, string(pt), kind).Inc()
}

// Forget drops the series of a plugin that is gone.
func (m *Metrics) Forget(plugin string) {
	labels := prometheus.Labels{"plugin": plugin}
	m.calls.DeletePartialMatch(labels)
	m.failures.DeletePartialMatch(labels)
	m.fuel.DeletePartialMatch(labels)
	m.duration.DeletePartialMatch(labels)
	m.memory.DeletePartialMatch(labels)
	m.candidates.DeletePartialMatch(labels)
	m.remembered.DeletePartialMatch(labels)
	m.hostCalls.DeletePartialMatch(labels)
	m.plugins.Delete(plugin)
}
