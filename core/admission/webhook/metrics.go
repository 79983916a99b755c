// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/wasmplane/wasmplane/core/admission"
)

// metrics carry upstream's names.
type metrics struct {
	duration   *prometheus.HistogramVec
	requests   *prometheus.CounterVec
	rejections *prometheus.CounterVec
	failOpen   *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_admission_webhook_admission_duration_seconds",
			Help:    "Time that an admission webhook took, by name, operation, type (admit or validating) and whether it rejected.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10, 25},
		}, []string{"name", "type", "operation", "rejected"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_admission_webhook_request_total",
			Help: "Calls of admission webhooks, by name, type, operation, code and whether they rejected. Codes above 600 count as 600.",
		}, []string{"name", "type", "operation", "code", "rejected"}),
		rejections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_admission_webhook_rejection_count",
			Help: "Rejections by admission webhooks, by name, type, operation, error type (calling_webhook_error, apiserver_internal_error or no_error) and code.",
		}, []string{"name", "type", "operation", "error_type", "rejection_code"}),
		failOpen: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_admission_webhook_fail_open_count",
			Help: "Calls of admission webhooks that failed and let the request through, by name and type.",
		}, []string{"name", "type"}),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.duration, m.requests, m.rejections, m.failOpen}
}

// observe records one call. step is admit or validating.
func (m *metrics) observe(ctx context.Context, h *hook, step string, op admission.Operation, took time.Duration, err error) {
	if t, ok := genericrequest.LatencyTrackersFrom(ctx); ok { // what webhooks take is not the server's doing
		if step == "admit" {
			t.MutatingWebhookTracker.TrackDuration(took)
		} else {
			t.ValidatingWebhookTracker.TrackDuration(took)
		}
	}
	code, rejected, kind := 200, false, ""
	var call *callError
	var refused *rejection
	switch {
	case err == nil:
	case errors.As(err, &call):
		code, rejected, kind = codeOf(call.status), !h.ignore, "calling_webhook_error"
		if errors.Is(call.reason, context.Canceled) {
			kind = "" // the client has gone: nobody's failure
		}
	case errors.As(err, &refused):
		code, rejected, kind = codeOf(refused.status), true, "no_error"
	default:
		code, rejected, kind = 0, true, "apiserver_internal_error"
	}
	m.duration.WithLabelValues(h.name, step, string(op), strconv.FormatBool(rejected)).Observe(took.Seconds())
	m.requests.WithLabelValues(h.name, step, string(op), strconv.Itoa(code), strconv.FormatBool(rejected)).Inc()
	if rejected && kind != "" {
		m.rejections.WithLabelValues(h.name, step, string(op), kind, strconv.Itoa(code)).Inc()
	}
}

func codeOf(s *apierrors.StatusError) int {
	if s == nil {
		return 0
	}
	return min(int(s.ErrStatus.Code), 600)
}
