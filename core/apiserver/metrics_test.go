// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/apiserver"
	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/zpages"
)

// promise is what upstream promises of one metric.
type promise struct {
	kind   string
	labels []string
}

// promised reads testdata/upstream-metrics.txt.
func promised(t *testing.T) map[string]promise {
	t.Helper()
	f, err := os.Open("testdata/upstream-metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	out := map[string]promise{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if parts := strings.Fields(lines.Text()); len(parts) == 4 && parts[0] != "#" {
			p := promise{kind: parts[2]}
			if parts[3] != "-" {
				p.labels = strings.Split(parts[3], ",")
			}
			out[parts[0]] = p
		}
	}
	if len(out) < 80 {
		t.Fatalf("only %d metrics are listed", len(out))
	}
	return out
}

// Metrics that have upstream's names have upstream's types and labels too: its
// dashboards and alerts depend on them.
func TestMetricsHaveUpstreamsLabels(t *testing.T) {
	var gather func() ([]*dto.MetricFamily, error)
	s := apiservertest.Start(t, apiservertest.Options{Server: func(c *apiserver.Config) { gather = c.Gatherer.Gather }})
	c := kubernetes.NewForConfigOrDie(s.Config("jane@example.com"))
	if _, err := c.CoreV1().ComponentStatuses().List(t.Context(), metav1.ListOptions{}); err != nil { // deprecated
		t.Fatal(err)
	}
	w, err := c.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	initial, err := c.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: ptr.To(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer initial.Stop()
	if e := <-initial.ResultChan(); e.Type != watch.Bookmark {
		t.Fatalf("a list by a watch began with %+v", e)
	}
	if _, err := c.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/api/v1/pods", nil)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := httpClient(t, s).Do(req); err != nil || r.StatusCode != http.StatusUnauthorized { // who nobody knows is counted too
		t.Errorf("%v, %v", r, err)
	} else {
		_ = r.Body.Close()
	}
	families, err := gather()
	if err != nil {
		t.Fatal(err)
	}
	promised, seen := promised(t), map[string]bool{}
	for _, f := range families {
		seen[f.GetName()] = true
		want, ok := promised[f.GetName()]
		if !ok {
			continue
		}
		if kind := strings.ToLower(f.GetType().String()); kind != want.kind && want.kind != "custom" {
			t.Errorf("%s is a %s, upstream's a %s", f.GetName(), kind, want.kind)
		}
		for _, m := range f.GetMetric() {
			labels := map[string]bool{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
			}
			if got := slices.Sorted(maps.Keys(labels)); !slices.Equal(got, want.labels) {
				t.Errorf("%s has labels %v, upstream's %v", f.GetName(), got, want.labels)
			}
		}
	}
	for _, name := range []string{
		"apiserver_request_total", "apiserver_request_duration_seconds", "apiserver_response_sizes", "apiserver_longrunning_requests",
		"apiserver_current_inflight_requests", "apiserver_requested_deprecated_apis",
		"authenticated_user_requests", "authentication_attempts", "authentication_duration_seconds", "authorization_attempts_total",
		"authorization_duration_seconds", "apiserver_watch_list_duration_seconds",
	} {
		if !seen[name] {
			t.Errorf("%s is not served", name)
		}
	}
}

// docs/METRICS.md says of every metric that upstream promises whether it is served, and if not why.
func TestEveryPromisedMetricIsAccountedFor(t *testing.T) {
	doc, err := os.ReadFile("../../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range promised(t) {
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/METRICS.md does not say anything of %s", name)
		}
	}
}

// Who asks in protobuf is given native buckets beside the classic ones.
func TestHistogramsHaveNativeBuckets(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	c := kubernetes.NewForConfigOrDie(s.Config("jane@example.com"))
	if _, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	body, err := c.Discovery().RESTClient().Get().AbsPath("/metrics").
		SetHeader("Accept", string(expfmt.NewFormat(expfmt.TypeProtoDelim))).DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	decoder := expfmt.NewDecoder(bytes.NewReader(body), expfmt.NewFormat(expfmt.TypeProtoDelim))
	native, classic := map[string]bool{}, map[string]bool{}
	for {
		f := &dto.MetricFamily{}
		err := decoder.Decode(f)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range f.GetMetric() {
			native[f.GetName()] = native[f.GetName()] || len(m.GetHistogram().GetPositiveSpan()) > 0
			classic[f.GetName()] = classic[f.GetName()] || len(m.GetHistogram().GetBucket()) > 0
		}
	}
	for _, name := range []string{
		"apiserver_request_duration_seconds", "apiserver_response_sizes", "authentication_duration_seconds", "authorization_duration_seconds",
	} {
		if !native[name] || !classic[name] {
			t.Errorf("%s has native buckets: %t, classic ones: %t", name, native[name], classic[name])
		}
	}
}

// Whether the server is well can be read often: there is a short page for it.
func TestHealthHasItsOwnPageOfMetrics(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	api := kubernetes.NewForConfigOrDie(s.Config("jane@example.com")).Discovery().RESTClient()
	if _, err := api.Get().AbsPath("/readyz").DoRaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	body, err := api.Get().AbsPath("/metrics/slis").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(body), `kubernetes_healthcheck{name="ping",type="readyz"} 1`) ||
		!strings.Contains(string(body), `kubernetes_healthchecks_total{name="ping",status="success",type="readyz"}`) ||
		strings.Contains(string(body), "apiserver_request") {
		t.Errorf("the page says\n%s", body)
	}
	all, err := api.Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil || strings.Count(string(all), "# TYPE kubernetes_healthcheck gauge\n") != 1 ||
		!strings.Contains(string(all), `kubernetes_healthchecks_total{name="ping",status="success",type="readyz"}`) {
		t.Errorf("the page of all metrics (%v) says\n%s", err, all)
	}
	if err := api.Delete().AbsPath("/metrics/slis").Do(t.Context()).Error(); err != nil {
		t.Error(err)
	}
	body, err = api.Get().AbsPath("/metrics/slis").DoRaw(t.Context())
	if err != nil || strings.Contains(string(body), "kubernetes_healthcheck{") {
		t.Errorf("after it was reset (%v) the page says\n%s", err, body)
	}
}

// What the server is and serves, and with which flags it was started, is said as upstream's says it.
func TestStatuszAndFlagz(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{Server: func(c *apiserver.Config) { c.Flags = zpages.Flags{"listen": "127.0.0.1:1"} }})
	api := kubernetes.NewForConfigOrDie(s.Config("jane@example.com")).Discovery().RESTClient()
	for path, want := range map[string]string{
		"/statusz": "/flagz /healthz /livez /metrics /readyz /statusz /version\n", "/flagz": "127.0.0.1:1\n", "/": `"/statusz"`,
	} {
		body, err := api.Get().AbsPath(path).DoRaw(t.Context())
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s (%v): %q is not in\n%s", path, err, want, body)
		}
	}
}
