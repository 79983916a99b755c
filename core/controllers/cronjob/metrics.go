// SPDX-License-Identifier: Apache-2.0

package cronjob

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// skew has upstream's name and buckets; the process serves it.
var skew = metrics.NewHistogram(&metrics.HistogramOpts{
	Subsystem: "cronjob_controller", Name: "job_creation_skew_duration_seconds", StabilityLevel: metrics.STABLE,
	Help: "How long after its scheduled time a Job was made.", Buckets: metrics.ExponentialBuckets(1, 2, 10),
})

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(skew) })
