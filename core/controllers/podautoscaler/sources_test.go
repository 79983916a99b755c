// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// served is an API that answers by path and query.
func served(t *testing.T, answers map[string]string) *sources {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if q := r.URL.Query().Encode(); q != "" {
			path += "?" + q
		}
		answer, ok := answers[path]
		w.Header().Set("Content-Type", "application/json")
		if !ok || !strings.Contains(r.Header.Get("Accept"), "json") {
			w.WriteHeader(http.StatusNotFound)
			answer = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"nothing at ` + r.URL.Path + `"}`
		}
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(s.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return &sources{discovery: client.Discovery()}
}

func container(name string, target autoscalingv2.MetricSpec) *autoscalingv2.MetricSpec {
	return &autoscalingv2.MetricSpec{
		Type: autoscalingv2.ContainerResourceMetricSourceType,
		ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
			Name: target.Resource.Name, Container: name, Target: target.Resource.Target,
		},
	}
}

func TestSources(t *testing.T) {
	const resources = `{"items":[
		{"metadata":{"name":"a"},"timestamp":"2026-01-02T03:04:05Z","window":"15s","containers":[{"name":"app","usage":{"cpu":"100m"}},{"name":"log","usage":{"cpu":"500000000n"}}]},
		{"metadata":{"name":"half"},"timestamp":"2026-01-02T03:04:05Z","window":"15s","containers":[{"name":"app","usage":{"cpu":"1"}},{"name":"log","usage":{"memory":"1"}}]},
		{"metadata":{"name":"none"},"containers":[]}]}`
	const group = `{"kind":"APIGroup","name":"custom.metrics.k8s.io","preferredVersion":{"version":"v1beta2"}}`
	pods := "/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/pods/*/qps?labelSelector=app%3Dweb"
	all := map[string]string{
		"/apis/metrics.k8s.io/v1beta1/namespaces/ns/pods?labelSelector=app%3Dweb": resources,
		"/apis/custom.metrics.k8s.io": group,
		pods:                          `{"items":[{"describedObject":{"name":"a"},"value":"2500m","windowSeconds":30},{"describedObject":{"name":"b"},"value":"3"}]}`,
		"/api/v1":                     `{"groupVersion":"v1","resources":[{"name":"services","kind":"Service"},{"name":"services/proxy","kind":"ServiceProxyOptions"}]}`,
		"/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/services/web/qps":                          `{"items":[{"value":"7"}]}`,
		"/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/metrics/qps?metricLabelSelector=zone%3Deu": `{"items":[{"value":"9"}]}`,
		"/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/queue?labelSelector=":                    `{"items":[{"value":"1500m"},{"value":"2"}]}`,
		"/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/empty?labelSelector=":                    `{"items":[]}`,
		"/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/page?labelSelector=":                     `<html>`,
	}
	s, selector := served(t, all), labels.SelectorFromSet(labels.Set{"app": "web"})
	usage := cpu(50)
	r := s.read(t.Context(), "ns", &usage, selector)
	if a := r.pods["a"]; r.err != nil || len(r.pods) != 1 || a.value != 600 || a.window != 15*time.Second || a.at.Year() != 2026 {
		t.Errorf("resource: %+v", r)
	}
	r = s.read(t.Context(), "ns", container("app", usage), selector)
	if r.err != nil || len(r.pods) != 2 || r.pods["a"].value != 100 || r.pods["half"].value != 1000 {
		t.Errorf("container: %+v", r)
	}
	qps := perPod(1)
	r = s.read(t.Context(), "ns", &qps, selector)
	if r.err != nil || r.pods["a"].value != 2500 || r.pods["a"].window != 30*time.Second || r.pods["b"].value != 3000 ||
		r.pods["b"].window != usualWindow {
		t.Errorf("pods: %+v", r)
	}
	of := object(autoscalingv2.MetricTarget{})
	of.Object.DescribedObject.APIVersion = "v1"
	if r = s.read(t.Context(), "ns", &of, selector); r.err != nil || r.total != 7000 {
		t.Errorf("object: %+v", r)
	}
	of.Object.DescribedObject = autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Namespace", Name: "somebody-elses"}
	of.Object.Metric.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "eu"}}
	if r = s.read(t.Context(), "ns", &of, selector); r.err != nil || r.total != 9000 {
		t.Errorf("namespace: %+v", r)
	}
	queue := external(nil, nil)
	if r = s.read(t.Context(), "ns", &queue, selector); r.err != nil || r.total != 3500 {
		t.Errorf("external: %+v", r)
	}
	for metric, want := range map[string]string{
		"empty": "no metrics returned from external metrics API", "page": "cannot be read", "missing": "nothing at",
		"../../../secrets": "invalid name",
	} {
		queue.External.Metric.Name = metric
		if r = s.read(t.Context(), "ns", &queue, selector); r.err == nil || !strings.Contains(r.err.Error(), want) {
			t.Errorf("%s: %+v, want %q", metric, r, want)
		}
	}
	none := served(t, nil)
	if r = none.read(t.Context(), "ns", &qps, selector); r.err == nil || !strings.Contains(r.err.Error(),
		"no custom metrics API (custom.metrics.k8s.io) registered") {
		t.Errorf("no custom metrics: %+v", r)
	}
	if r = none.read(t.Context(), "ns", &usage, selector); r.err == nil || !strings.Contains(r.err.Error(),
		"unable to fetch metrics from resource metrics API") {
		t.Errorf("no resource metrics: %+v", r)
	}
}

// A kind is found in the version that is named, and else in those of its group.
func TestResourceOf(t *testing.T) {
	s := served(t, map[string]string{
		"/api":          `{"versions":["v1"]}`,
		"/apis":         `{"groups":[{"name":"apps","versions":[{"groupVersion":"apps/v1","version":"v1"}]}]}`,
		"/apis/apps/v1": `{"groupVersion":"apps/v1","resources":[{"name":"deployments/scale","kind":"Scale"},{"name":"deployments","kind":"Deployment"}]}`,
	})
	for version, want := range map[string]string{"v1": "deployments", "v1beta1": "deployments"} {
		got, err := s.resourceOf(schema.GroupVersionKind{Group: "apps", Version: version, Kind: "Deployment"})
		if err != nil || got.Resource != want || got.Version != "v1" {
			t.Errorf("%s: %v, %v", version, got, err)
		}
	}
	for _, gvk := range []schema.GroupVersionKind{
		{Group: "apps", Version: "v1", Kind: "Depolyment"},
		{Group: "other", Version: "v1", Kind: "Deployment"},
		{Version: "v1", Kind: "Pod"},
		{Group: "apps", Version: "v1", Kind: "Scale"},
	} {
		if got, err := s.resourceOf(gvk); !noSuch(err) {
			t.Errorf("%s: %v, %v", gvk, got, err)
		}
	}
}
