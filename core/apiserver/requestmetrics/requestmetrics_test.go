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
	m.Observe(one, http.StatusOK, time.Second, 10, false)
	m.Observe(one, http.StatusNotFound, time.Second, 10, false)
	m.Observe(one, http.StatusForbidden, time.Second, 10, false)
	m.Observe(one, http.StatusUnauthorized, time.Second, 10, false)
	all := *one
	all.Verb, all.Name = "list", ""
	m.Observe(&all, http.StatusNotFound, time.Second, 10, false)
	m.Observe(&genericrequest.RequestInfo{Verb: "get", Path: "/made/up"}, http.StatusNotFound, time.Second, 10, false)
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
