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
	pendingByQueue *prometheus.Desc
	cacheSize      *prometheus.Desc
	bindsInFlight  *prometheus.Desc
	sources        Sources
}

// Sources answer what is counted when somebody asks.
type Sources struct {
	// Queue counts the pods that are to be tried, back off, fit nowhere and may not be tried.
	Queue func() (ready, backoff, unschedulable, gated int)
	// Gated counts pods with scheduling gates, which no queue has.
	Gated func() int
	// Cache counts nodes and the pods on them.
	Cache func() (nodes, pods int)
	// Binding counts bindings in flight.
	Binding func() int
}

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
		attempts: counter("schedule_attempts_total", "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, while 'error' means an internal scheduler problem.", "result", "profile"),
		latency: histogram("scheduling_attempt_duration_seconds", "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
			fromMilli, "result", "profile"),
		algorithm: single("scheduling_algorithm_duration_seconds", "Scheduling algorithm latency in seconds", fromMilli),
		points: histogram("framework_extension_point_duration_seconds", "Latency for running all plugins of a specific extension point.",
			prometheus.ExponentialBuckets(0.0001, 2, 12), "extension_point", "status", "profile"),
		evaluations: counter("plugin_evaluation_total", "Number of attempts to schedule pods by each plugin and the extension point (available only in PreFilter, Filter, PreScore, and Score).", "plugin", "extension_point", "profile"),
		triesPerPod: single("pod_scheduling_attempts", "Number of attempts to successfully schedule a pod.",
			prometheus.ExponentialBuckets(1, 2, 5)),
		sinceAdded: histogram("pod_scheduling_sli_duration_seconds", "E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might involve multiple scheduling attempts.", prometheus.ExponentialBuckets(0.01, 2, 20), "attempts"),
		victims:    single("preemption_victims", "Number of selected preemption victims", prometheus.ExponentialBuckets(1, 2, 7)),
		preemptions: prometheus.NewCounter(prometheus.CounterOpts{
			Subsystem: "scheduler", Name: "preemption_attempts_total",
			Help: "Total preemption attempts in the cluster till now",
		}),
		permitWait: histogram("permit_wait_duration_seconds", "Duration of waiting on permit.", fromMilli, "result"),
		incoming:   counter("queue_incoming_pods_total", "Number of pods added to scheduling queues by event and queue type.", "queue", "event"),

		pendingByQueue: prometheus.NewDesc("scheduler_pending_pods", "Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means number of pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the scheduler attempted to schedule and failed; 'gated' is the number of unschedulable pods that the scheduler never attempted to schedule because they are gated.", []string{"queue"}, nil),
		cacheSize:      prometheus.NewDesc("scheduler_cache_size", "Number of nodes and pods in the scheduler cache.", []string{"type"}, nil),
		bindsInFlight: prometheus.NewDesc("scheduler_goroutines", "Number of running goroutines split by the work they do such as binding.",
			[]string{"operation"}, nil),
		sources: sources,
	}
}

// Register the collectors that count on; those of a scheduler before are taken over.
func (m *Metrics) Register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	return errors.Join(
		keep(r, &m.attempts), keep(r, &m.latency), keep(r, &m.algorithm), keep(r, &m.points), keep(r, &m.evaluations),
		keep(r, &m.triesPerPod), keep(r, &m.sinceAdded), keep(r, &m.victims), keep(r, &m.preemptions), keep(r, &m.permitWait),
		keep(r, &m.incoming),
	)
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
	tell(m.pendingByQueue, gated+m.sources.Gated(), "gated")
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
