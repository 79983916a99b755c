// SPDX-License-Identifier: Apache-2.0

package zpages_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/zpages"
)

func get(t *testing.T, h http.Handler, method, accept string) (answer *http.Response, body string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "/", nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), w.Body.String()
}

// TestStatus: in upstream's text, and as an object for those who ask for it.
func TestStatus(t *testing.T) {
	h := zpages.Status("kubelet", []string{"/metrics/slis", "/metrics", "/healthz/{what}", "/apis/x"})
	_, text := get(t, h, http.MethodGet, "")
	for _, line := range []string{
		"(?m)^kubelet statusz$", "(?m)^Warning: This endpoint is not meant to be machine parseable", `(?m)^Up\W+\d+ hr \d\d min \d\d sec$`,
		`(?m)^Go version\W+go1\.`, `(?m)^Binary version\W+1\.\d+`, `(?m)^Paths\W+/healthz /metrics /statusz$`,
	} {
		if !regexp.MustCompile(line).MatchString(text) {
			t.Errorf("no line is like %s:\n%s", line, text)
		}
	}
	answer, body := get(t, h, http.MethodGet, "application/json;v=v1beta1;g=config.k8s.io;as=Statusz")
	var object struct {
		Kind, APIVersion, GoVersion string
		Metadata                    struct{ Name string }
		Paths                       []string
	}
	if err := json.Unmarshal([]byte(body), &object); err != nil || object.Kind != "Statusz" || object.APIVersion != "config.k8s.io/v1beta1" ||
		object.Metadata.Name != "kubelet" || len(object.Paths) != 3 || !strings.HasPrefix(answer.Header.Get("Content-Type"), "application/json") {
		t.Errorf("as JSON: %v\n%s", err, body)
	}
	if answer, _ := get(t, h, http.MethodGet, "application/json"); answer.StatusCode != http.StatusNotAcceptable {
		t.Errorf("JSON of no version: %d", answer.StatusCode)
	}
}

// TestFlags: each with its value, sorted.
func TestFlags(t *testing.T) {
	h := zpages.FlagsPage("kube-scheduler", zpages.Flags{"log-level": "info", "config": "a.yaml"})
	want := regexp.MustCompile(`kube-scheduler flagz\n(?s:.*)\nconfig\W+a\.yaml\nlog-level\W+info\n$`)
	if _, text := get(t, h, http.MethodGet, "text/plain"); !want.MatchString(text) {
		t.Errorf("as text:\n%s", text)
	}
	_, body := get(t, h, http.MethodGet, "application/json;v=v1beta1;g=config.k8s.io;as=Flagz")
	var object struct{ Flags map[string]string }
	if err := json.Unmarshal([]byte(body), &object); err != nil || len(object.Flags) != 2 || object.Flags["config"] != "a.yaml" {
		t.Errorf("as JSON: %v\n%s", err, body)
	}
}

// TestHealth: upstream's names, labels and values, of this server alone, until somebody resets them.
func TestHealth(t *testing.T) {
	h, other := zpages.NewHealth(), zpages.NewHealth()
	h.Checked("ping", "livez", nil)
	h.Checked("ping", "livez", nil)
	h.Checked("etcd", "readyz", errors.New("away"))
	want := []string{
		`kubernetes_healthcheck{name="ping",type="livez"} 1`, `kubernetes_healthcheck{name="etcd",type="readyz"} 0`,
		`kubernetes_healthchecks_total{name="ping",status="success",type="livez"} 2`,
		`kubernetes_healthchecks_total{name="etcd",status="error",type="readyz"} 1`,
	}
	_, text := get(t, h.Handler(), http.MethodGet, "")
	for _, line := range append(want, "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.",
		"process_start_time_seconds ") {
		if !strings.Contains(text, line) {
			t.Errorf("%s is not in:\n%s", line, text)
		}
	}
	families, err := h.Gather()
	if err != nil || len(families) != 2 {
		t.Errorf("of its metrics the page of all others is given %v, %v", families, err)
	}
	if _, text := get(t, other.Handler(), http.MethodGet, ""); strings.Contains(text, "kubernetes_healthcheck") {
		t.Errorf("another server has:\n%s", text)
	}
	get(t, h.Handler(), http.MethodDelete, "")
	if _, text := get(t, h.Handler(), http.MethodGet, ""); strings.Contains(text, want[0]) {
		t.Errorf("reset, it has:\n%s", text)
	}
}
