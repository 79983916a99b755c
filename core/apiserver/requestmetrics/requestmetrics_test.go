// SPDX-License-Identifier: Apache-2.0

package requestmetrics_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/wasmplane/wasmplane/core/apiserver/requestmetrics"
)

// Series of what clients made up would never be forgotten.
func TestLabelsComeFromWhatExists(t *testing.T) {
	var reads, writes atomic.Int64
	registry := prometheus.NewPedanticRegistry()
	m, err := requestmetrics.New(registry, &reads, &writes)
	if err != nil {
		t.Fatal(err)
	}
	one := &genericrequest.RequestInfo{
		IsResourceRequest: true, Verb: "get", APIGroup: "g", APIVersion: "v1", Resource: "things", Namespace: "a", Name: "x",
	}
	m.Observe(t.Context(), one, http.StatusOK, time.Second, 10, false)
	m.Observe(t.Context(), one, http.StatusNotFound, time.Second, 10, false)
	m.Observe(t.Context(), one, http.StatusForbidden, time.Second, 10, false)
	m.Observe(t.Context(), one, http.StatusUnauthorized, time.Second, 10, false)
	all := *one
	all.Verb, all.Name = "list", ""
	m.Observe(t.Context(), &all, http.StatusNotFound, time.Second, 10, false)
	m.Observe(t.Context(), &genericrequest.RequestInfo{Verb: "get", Path: "/made/up"}, http.StatusNotFound, time.Second, 10, false)
	// Authorization goes by the group before anybody has looked whether it exists.
	want := map[string]float64{"g": 2, "": 4}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "apiserver_request_total" {
			continue
		}
		for _, series := range f.GetMetric() {
			for _, l := range series.GetLabel() {
				if l.GetName() == "group" {
					got[l.GetValue()] += series.GetCounter().GetValue()
				}
			}
		}
	}
	if len(got) != len(want) || got["g"] != want["g"] || got[""] != want[""] {
		t.Errorf("requests by group %v, want %v", got, want)
	}
	watch := *one
	watch.Verb, watch.Name = "watch", ""
	m.Watches(&watch).Inc()
	if n := testutil.ToFloat64(m.Watches(&watch)); n != 1 {
		t.Errorf("%v watches are open", n)
	}
}

// The promise to clients is about the server itself: not about webhooks, which are somebody else's, nor about a queue.
func TestWhatOthersTakeIsNotPromised(t *testing.T) {
	var reads, writes atomic.Int64
	registry := prometheus.NewPedanticRegistry()
	m, err := requestmetrics.New(registry, &reads, &writes)
	if err != nil {
		t.Fatal(err)
	}
	ctx := genericrequest.WithLatencyTrackers(t.Context())
	trackers, _ := genericrequest.LatencyTrackersFrom(ctx)
	trackers.MutatingWebhookTracker.TrackDuration(2 * time.Second)
	trackers.ValidatingWebhookTracker.TrackDuration(3 * time.Second)
	genericrequest.TrackAPFQueueWaitLatency(ctx, 4*time.Second)
	info := &genericrequest.RequestInfo{IsResourceRequest: true, Verb: "create", APIVersion: "v1", Resource: "things", Namespace: "a"}
	m.Observe(ctx, info, http.StatusCreated, 10*time.Second, 0, false)
	m.Observe(ctx, info, http.StatusCreated, time.Hour, 0, true) // an open connection is not an answer
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "apiserver_request_sli_duration_seconds" {
			continue
		}
		if h := f.GetMetric()[0].GetHistogram(); h.GetSampleCount() != 1 || h.GetSampleSum() != 1 {
			t.Errorf("%d answers of %v s, want one of 1 s", h.GetSampleCount(), h.GetSampleSum())
		}
		return
	}
	t.Error("there is no apiserver_request_sli_duration_seconds")
}
