// SPDX-License-Identifier: Apache-2.0

// Package requestmetrics measures the requests of the API server. Names, labels and
// buckets are upstream's, so that its dashboards and alerts work.
//
// Labels come from what exists and never from what a client made up: each value of
// a label is a series that is never forgotten. Callers say what exists.
package requestmetrics

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
)

// Metrics of one server. Make them with New.
type Metrics struct {
	requests  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	promised  *prometheus.HistogramVec
	sizes     *prometheus.HistogramVec
	rejected  *prometheus.CounterVec
	long      *prometheus.GaugeVec
	events    *prometheus.CounterVec
	initial   *prometheus.HistogramVec
	stalled   prometheus.Counter
	chain
}

// New makes the metrics and registers them with r; nil = they are not exported. reads
// and writes are the requests in flight.
func New(r prometheus.Registerer, reads, writes *atomic.Int64) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_total",
			Help: "Requests that were answered, by verb, dry run, resource, scope, component and status code.",
		}, []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component", "code"}),
		durations: prometheus.NewHistogramVec(native(prometheus.HistogramOpts{
			Name:    "apiserver_request_duration_seconds",
			Help:    "How long answers took, by verb, dry run, resource, scope and component.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}), []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"}),
		promised: prometheus.NewHistogramVec(native(prometheus.HistogramOpts{
			Name:    "apiserver_request_sli_duration_seconds",
			Help:    "How long answers took, without the time that webhooks took and that was waited for a seat.",
			Buckets: []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}), []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}),
		sizes: prometheus.NewHistogramVec(native(prometheus.HistogramOpts{
			Name:    "apiserver_response_sizes",
			Help:    "Sizes of answers, by verb, resource, scope and component.",
			Buckets: prometheus.ExponentialBuckets(1000, 10, 7),
		}), []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_dropped_requests_total",
			Help: "Number of requests dropped with 'Try again later' response.",
		}, []string{"request_kind"}),
		long: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_longrunning_requests",
			Help: "Watches, logs and connections that are open, by verb, resource, scope and component.",
		}, []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_watch_events_total",
			Help: "Events that were sent to watching clients.",
		}, []string{"group", "version", "resource"}),
		initial: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_watch_list_duration_seconds",
			Help: "How long the first events of lists by watch took, by resource and scope.",
			Buckets: []float64{
				0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300,
			},
		}, []string{"group", "version", "resource", "scope"}),
		stalled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wasmplane_apiserver_stalled_answers_total",
			Help: "Answers and watches that were cut off because their clients did not take them.",
		}),
		chain: newChain(),
	}
	if r == nil {
		return m, nil
	}
	inflight := func(kind string, n *atomic.Int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "apiserver_current_inflight_requests",
			Help:        "Number of currently used inflight request limit of this apiserver per request kind.",
			ConstLabels: prometheus.Labels{"request_kind": kind},
		}, func() float64 { return float64(n.Load()) })
	}
	own := []prometheus.Collector{
		m.requests, m.durations, m.promised, m.sizes, m.rejected, m.long, m.events, m.initial, m.stalled, inflight("readOnly", reads),
		inflight("mutating", writes),
	}
	for _, c := range append(own, m.collectors()...) {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register the apiserver's metrics: %w", err)
		}
	}
	return m, nil
}

// native gives a histogram native buckets too, as upstream's have: who asks for the figures in protobuf gets both kinds,
// who asks for text the classic ones.
func native(o prometheus.HistogramOpts) prometheus.HistogramOpts {
	o.NativeHistogramBucketFactor, o.NativeHistogramMaxBucketNumber = 1.1, 160
	return o
}

// scopeOf is upstream's label: what part of the cluster a request is about.
func scopeOf(info *genericrequest.RequestInfo) string {
	switch {
	case info.Name != "":
		return "resource"
	case info.Namespace != "":
		return "namespace"
	case info.IsResourceRequest:
		return "cluster"
	}
	return ""
}

func verbOf(info *genericrequest.RequestInfo) string {
	switch info.Verb {
	case "get":
		return http.MethodGet
	case "list":
		return "LIST"
	case "watch":
		return "WATCH"
	case "create":
		return http.MethodPost
	case "update":
		return http.MethodPut
	case "patch":
		if info.IsResourceRequest {
			return http.MethodPatch
		}
	case "delete":
		return http.MethodDelete
	case "deletecollection":
		return "DELETECOLLECTION"
	}
	return "other"
}

// others are the time that a request waited for webhooks and for a seat, as far as somebody measured it.
func others(ctx context.Context) time.Duration {
	t, ok := genericrequest.LatencyTrackersFrom(ctx)
	if !ok {
		return 0
	}
	return t.MutatingWebhookTracker.GetLatency() + t.ValidatingWebhookTracker.GetLatency() + t.APFQueueWaitTracker.GetLatency()
}

// Observe counts a request; an unknown path has empty labels.
func (m *Metrics) Observe(ctx context.Context, info *genericrequest.RequestInfo, code int, took time.Duration, size int, long bool) {
	verb, scope := verbOf(info), scopeOf(info)
	group, version, resource, sub := info.APIGroup, info.APIVersion, info.Resource, info.Subresource
	if code == http.StatusNotFound && info.Name == "" || !info.IsResourceRequest {
		group, version, resource, sub = "", "", "", ""
	}
	if code == http.StatusForbidden || code == http.StatusUnauthorized {
		group, version, resource, sub = "", "", "", "" // not looked up yet
	}
	m.requests.WithLabelValues(verb, "", group, version, resource, sub, scope, "apiserver", strconv.Itoa(code)).Inc()
	m.cutOff(info, code)
	if long {
		return
	}
	m.durations.WithLabelValues(verb, "", group, version, resource, sub, scope, "apiserver").Observe(took.Seconds())
	m.promised.WithLabelValues(verb, group, version, resource, sub, scope, "apiserver").Observe(max(took-others(ctx), 0).Seconds())
	if info.Verb == "get" || info.Verb == "list" {
		m.sizes.WithLabelValues(verb, group, version, resource, sub, scope, "apiserver").Observe(float64(size))
	}
}

// Dropped counts a request that got no seat.
func (m *Metrics) Dropped(reads bool) {
	kind := "mutating"
	if reads {
		kind = "readOnly"
	}
	m.rejected.WithLabelValues(kind).Inc()
}

// Watches is the number of watches like this one that are open.
func (m *Metrics) Watches(info *genericrequest.RequestInfo) prometheus.Gauge {
	return m.long.WithLabelValues("WATCH", info.APIGroup, info.APIVersion, info.Resource, "", scopeOf(info), "apiserver")
}

// Events is the number of events that watches of a resource have sent.
func (m *Metrics) Events(info *genericrequest.RequestInfo) prometheus.Counter {
	return m.events.WithLabelValues(info.APIGroup, info.APIVersion, info.Resource)
}

// Initial takes how long it took until a watch had sent the objects that there were when it began.
func (m *Metrics) Initial(info *genericrequest.RequestInfo, took time.Duration) {
	m.initial.WithLabelValues(info.APIGroup, info.APIVersion, info.Resource, scopeOf(info)).Observe(took.Seconds())
}

// Stalled counts an answer that was cut off because its client did not take it.
func (m *Metrics) Stalled() { m.stalled.Inc() }
