// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// evictions has upstream's name; the process serves it.
var evictions = metrics.NewCounterVec(&metrics.CounterOpts{
	Subsystem: "node_collector", Name: "evictions_total", StabilityLevel: metrics.STABLE,
	Help: "Nodes whose pods began to be evicted since this process started.",
}, []string{"zone"})

var register = sync.OnceFunc(func() { legacyregistry.MustRegister(evictions) })
