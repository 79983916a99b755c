// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const (
	subsystem = "resourcepoolstatusrequest_controller"
	label     = "driver_name"
)

// Names, labels and buckets are upstream's; the process serves them.
var (
	processed = counter("requests_processed_total", "Requests for the status of pools that were processed.")
	failures  = counter("request_processing_errors_total", "Errors while processing requests for the status of pools.")
	duration  = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: "request_processing_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help: "How long it took to process a request for the status of pools.", Buckets: metrics.ExponentialBuckets(0.001, 2, 15),
	}, []string{label})
)

func counter(name, help string) *metrics.CounterVec {
	opts := metrics.CounterOpts{Subsystem: subsystem, Name: name, StabilityLevel: metrics.ALPHA, Help: help}
	return metrics.NewCounterVec(&opts, []string{label})
}

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(processed, failures, duration) })

// observe a request that was processed. A driver that publishes nothing has no series of its own: requests may name any.
func observe(driver string, known bool, took time.Duration, err error) {
	if !known {
		driver = ""
	}
	processed.WithLabelValues(driver).Inc()
	duration.WithLabelValues(driver).Observe(took.Seconds())
	if err != nil {
		failures.WithLabelValues(driver).Inc()
	}
}
