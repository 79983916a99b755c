// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Names, labels and buckets are upstream's; the process serves them.
var (
	reconciliations = counter("reconciliations_total",
		"Reconciliations of autoscalers, by what they did to the replicas.", "action", "error")
	reconciliationTook = histogram("reconciliation_duration_seconds", "How long reconciliations of autoscalers took.", "action", "error")
	computations       = counter("metric_computation_total",
		"Metrics that were looked at, by what they asked for.", "action", "error", "metric_type")
	computationTook = histogram("metric_computation_duration_seconds",
		"How long it took to look at a metric.", "action", "error", "metric_type")
)

const subsystem = "horizontal_pod_autoscaler_controller"

func counter(name, help string, labels ...string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: subsystem, Name: name, StabilityLevel: metrics.BETA, Help: help}, labels)
}

func histogram(name, help string, labels ...string) *metrics.HistogramVec {
	return metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: name, StabilityLevel: metrics.BETA, Help: help, Buckets: metrics.ExponentialBuckets(0.001, 2, 15),
	}, labels)
}

var register = sync.OnceFunc(func() {
	legacyregistry.MustRegister(reconciliations, reconciliationTook, computations, computationTook)
})

// What is told of an error: nothing, that what is written is wrong, or anything else.
const (
	noError       = "none"
	specError     = "spec"
	internalError = "internal"
)

// reconciled counts a plan that was carried out.
func reconciled(p *plan, took time.Duration) {
	failure := noError
	switch {
	case p.invalid:
		failure = specError
	case p.failed:
		failure = internalError
	}
	action := "none"
	if p.rescale && !p.failed {
		action = direction(p.replicas, p.target.wanted)
	}
	reconciliations.WithLabelValues(action, failure).Inc()
	reconciliationTook.WithLabelValues(action, failure).Observe(took.Seconds())
}

// computed counts what each metric asked for. Almost all of the time is that of asking for the metric.
func computed(p *plan, e evidence) {
	for i, o := range p.opinions {
		action, failure := direction(o.replicas, p.target.there), noError
		if o.failed != nil {
			action, failure = "none", internalError
		}
		kind := string(p.hpa.Spec.Metrics[i].Type)
		computations.WithLabelValues(action, failure, kind).Inc()
		computationTook.WithLabelValues(action, failure, kind).Observe(e.readings[i].took.Seconds())
	}
}

func direction(to, from int32) string {
	switch {
	case to > from:
		return "scale_up"
	case to < from:
		return "scale_down"
	}
	return "none"
}
