// SPDX-License-Identifier: Apache-2.0

// Package measure counts and times what a scheduler does, in metrics that have upstream's
// names, labels and buckets.
package measure

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Metrics of one scheduler; those of a nil one count nothing at extension points.
type Metrics struct {
	attempts       *prometheus.CounterVec
	latency        *prometheus.HistogramVec
	algorithm      prometheus.Histogram
	points         *prometheus.HistogramVec
	evaluations    *prometheus.CounterVec
	triesPerPod    prometheus.Histogram
	sinceAdded     *prometheus.HistogramVec
	victims        prometheus.Histogram
	preemptions    prometheus.Counter
	permitWait     *prometheus.HistogramVec
	incoming       *prometheus.CounterVec
	reloads        *prometheus.CounterVec
	stale          prometheus.Gauge
	pendingByQueue *prometheus.Desc
	unschedulable  *prometheus.Desc
	cacheSize      *prometheus.Desc
	bindsInFlight  *prometheus.Desc
	sources        Sources
}

// Sources answer what is counted when somebody asks.
type Sources struct {
	// Queue counts the pods that are to be tried, back off, fit nowhere and may not be tried.
	Queue func() (ready, backoff, unschedulable, gated int)
	// Refusers counts the waiting pods that each plugin has refused; a pod may count for several plugins.
	Refusers func() map[Refuser]int
	// Gated counts pods with scheduling gates by profile: no queue has them.
	Gated func() map[string]int
	// Cache counts nodes and the pods on them.
	Cache func() (nodes, pods int)
	// Binding counts bindings in flight.
	Binding func() int
}

// Refuser is a plugin of a profile.
type Refuser struct{ Plugin, Profile string }

// gates is upstream's plugin that keeps pods with scheduling gates back.
const gates = "SchedulingGates"

// New makes the metrics of a scheduler. Several at once, of which one follows the
// other as the leadership moves, may share registered ones: see Register.
func New(sources Sources) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "scheduler", Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Subsystem: "scheduler", Name: name, Help: help, Buckets: buckets}, labels)
	}
	single := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: "scheduler", Name: name, Help: help, Buckets: buckets})
	}
	fromMilli := prometheus.ExponentialBuckets(0.001, 2, 15)
	return &Metrics{
		attempts: counter("schedule_attempts_total", "Tries to schedule pods, by result: scheduled, unschedulable (no node fits) or error (of the scheduler or a plugin).", "result", "profile"),
		latency: histogram("scheduling_attempt_duration_seconds", "How long tries to schedule pods took, with binding.",
			fromMilli, "result", "profile"),
		algorithm: single("scheduling_algorithm_duration_seconds", "How long decisions took, without binding.", fromMilli),
		points: histogram("framework_extension_point_duration_seconds", "How long the plugins of an extension point took together.",
			prometheus.ExponentialBuckets(0.0001, 2, 12), "extension_point", "status", "profile"),
		evaluations: counter("plugin_evaluation_total",
			"Pods that a plugin was asked about, at PreFilter, Filter, PreScore and Score.", "plugin", "extension_point", "profile"),
		triesPerPod: single("pod_scheduling_attempts", "How many tries pods took that found a node.",
			prometheus.ExponentialBuckets(1, 2, 5)),
		sinceAdded: histogram("pod_scheduling_sli_duration_seconds", "How long pods that found a node had waited since they came into the queue, over all tries.", prometheus.ExponentialBuckets(0.01, 2, 20), "attempts"),
		victims:    single("preemption_victims", "How many pods had to go for one.", prometheus.ExponentialBuckets(1, 2, 7)),
		preemptions: prometheus.NewCounter(prometheus.CounterOpts{
			Subsystem: "scheduler", Name: "preemption_attempts_total",
			Help: "Tries to make room for a pod by ending others.",
		}),
		permitWait: histogram("permit_wait_duration_seconds", "How long pods waited for permission to be bound.", fromMilli, "result"),
		incoming:   counter("queue_incoming_pods_total", "Pods that came into a queue, by what brought them there.", "queue", "event"),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wasmplane_scheduler_config_reloads_total",
			Help: "How often the scheduler's configFile has changed, by result: success (it is in force) or failure (the one before stays in force).",
		}, []string{"result"}),
		stale: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wasmplane_scheduler_config_stale",
			Help: "1 while the scheduler's configFile is not the one in force, because it is wrong.",
		}),

		pendingByQueue: prometheus.NewDesc("scheduler_pending_pods", "Pods that wait, by queue: active (to be tried), backoff (refused a moment ago), unschedulable (fit nowhere) and gated (may not be tried).", []string{"queue"}, nil),
		unschedulable:  prometheus.NewDesc("scheduler_unschedulable_pods", "Waiting pods that a plugin has refused. A pod counts for each plugin that refused it, so a sum over plugins says nothing.", []string{"plugin", "profile"}, nil),
		cacheSize:      prometheus.NewDesc("scheduler_cache_size", "Nodes and pods that the scheduler knows.", []string{"type"}, nil),
		bindsInFlight: prometheus.NewDesc("scheduler_goroutines", "Pods that are being bound at the moment.",
			[]string{"operation"}, nil),
		sources: sources,
	}
}

// Register the collectors that count on; those of a scheduler before are taken over.
func (m *Metrics) Register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	defer func() { m.stale.Set(0) }() // a scheduler that begins has read it
	return errors.Join(
		keep(r, &m.reloads), keep(r, &m.stale), keep(r, &m.attempts),
		keep(r, &m.latency), keep(r, &m.algorithm), keep(r, &m.points), keep(r, &m.evaluations),
		keep(r, &m.triesPerPod), keep(r, &m.sinceAdded), keep(r, &m.victims), keep(r, &m.preemptions), keep(r, &m.permitWait),
		keep(r, &m.incoming),
	)
}

// Reloaded counts a change of the configuration.
func (m *Metrics) Reloaded(err error) {
	result, stale := "success", 0.0
	if err != nil {
		result, stale = "failure", 1
	}
	m.reloads.WithLabelValues(result).Inc()
	m.stale.Set(stale)
}

// keep registers a collector, or takes the one that is registered already: a process
// that leads again goes on counting where it ended.
func keep[C prometheus.Collector](r prometheus.Registerer, c *C) error {
	err := r.Register(*c)
	var there prometheus.AlreadyRegisteredError
	if !errors.As(err, &there) {
		return err
	}
	if before, ok := there.ExistingCollector.(C); ok {
		*c = before
		return nil
	}
	return err
}

// Describe implements prometheus.Collector: of what is counted when somebody asks.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	to <- m.pendingByQueue
	to <- m.unschedulable
	to <- m.cacheSize
	to <- m.bindsInFlight
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	tell := func(d *prometheus.Desc, n int, label string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), label)
	}
	ready, backoff, unschedulable, gated := m.sources.Queue()
	tell(m.pendingByQueue, ready, "active")
	tell(m.pendingByQueue, backoff, "backoff")
	tell(m.pendingByQueue, unschedulable, "unschedulable")
	refusers := m.sources.Refusers()
	for profile, n := range m.sources.Gated() {
		gated += n
		refusers[Refuser{gates, profile}] += n
	}
	tell(m.pendingByQueue, gated, "gated")
	for by, n := range refusers {
		to <- prometheus.MustNewConstMetric(m.unschedulable, prometheus.GaugeValue, float64(n), by.Plugin, by.Profile)
	}
	nodes, pods := m.sources.Cache()
	tell(m.cacheSize, nodes, "nodes")
	tell(m.cacheSize, pods, "pods")
	tell(m.bindsInFlight, m.sources.Binding(), "binding")
}

// Moved counts a pod that came into a queue.
func (m *Metrics) Moved(queue, event string) { m.incoming.WithLabelValues(queue, event).Inc() }

// Point measures an extension point; what it returns is called with the outcome.
func (m *Metrics) Point(profile, point string) func(*framework.Status) {
	if m == nil {
		return func(*framework.Status) {}
	}
	begin := time.Now()
	return func(st *framework.Status) {
		m.points.WithLabelValues(point, outcome(st), profile).Observe(time.Since(begin).Seconds())
	}
}

// Decided adds what a decision cost.
func (m *Metrics) Decided(profile string, e *Effort) {
	for _, p := range e.points {
		m.points.WithLabelValues(p.point, outcome(p.status), profile).Observe(p.took.Seconds())
	}
	for a, n := range e.asked {
		m.evaluations.WithLabelValues(a.plugin, a.point, profile).Add(float64(n))
	}
	if e.Preempted {
		m.preemptions.Inc()
	}
}

// Attempt counts a try and how long it took.
func (m *Metrics) Attempt(result, profile string, took time.Duration) {
	m.attempts.WithLabelValues(result, profile).Inc()
	m.latency.WithLabelValues(result, profile).Observe(took.Seconds())
}

// Scheduled counts a pod that has found its node.
func (m *Metrics) Scheduled(attempts int, waited time.Duration) {
	m.triesPerPod.Observe(float64(attempts))
	label := "15+"
	if attempts < 15 {
		label = strconv.Itoa(attempts)
	}
	m.sinceAdded.WithLabelValues(label).Observe(waited.Seconds())
}

// outcome is a status in upstream's words.
func outcome(st *framework.Status) string {
	if st.IsSuccess() {
		return "Success"
	}
	switch st.Code {
	case framework.Unschedulable:
		return "Unschedulable"
	case framework.Unresolvable:
		return "UnschedulableAndUnresolvable"
	case framework.Wait:
		return "Wait"
	case framework.Skip:
		return "Skip"
	case framework.Success, framework.Error:
	}
	return "Error"
}

// Algorithm adds how long a decision took.
func (m *Metrics) Algorithm(took time.Duration) { m.algorithm.Observe(took.Seconds()) }

// Victims adds how many pods have to go for one.
func (m *Metrics) Victims(n int) { m.victims.Observe(float64(n)) }

// PermitWait adds how long a pod waited for permission, and whether it got it.
func (m *Metrics) PermitWait(answer *framework.Status, waited time.Duration) {
	m.permitWait.WithLabelValues(outcome(answer)).Observe(waited.Seconds())
}
