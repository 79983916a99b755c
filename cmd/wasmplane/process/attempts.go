// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/plugins/hostfn/backend"
)

// KeepAttempts gives the process a ledger of attempts that were refused, unless it has one, with
// its metrics and events.
func (o *Options) KeepAttempts(metrics prometheus.Registerer, events *backend.Events) error {
	if o.Attempts != nil {
		return nil
	}
	o.Attempts = attempts.New(attempts.Config{Logger: o.Logger})
	if err := metrics.Register(o.Attempts); err != nil {
		return fmt.Errorf("register the metrics of refused attempts: %w", err)
	}
	if events != nil {
		o.Attempts.EventsTo(EventsOfAttempts(events))
	}
	return nil
}

// EventsOfAttempts records events in the name of wasmplane.
func EventsOfAttempts(to *backend.Events) func(about corev1.ObjectReference, kind, reason, message string) {
	return func(about corev1.ObjectReference, kind, reason, message string) {
		to.RecordAs("wasmplane", about, kind, reason, message)
	}
}
