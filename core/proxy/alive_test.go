// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/proxy/healthports"
)

// TestAChangeThatWaitsForLong makes the proxy unhealthy, until it is written: whether it was being
// written, failed, or came while another was written.
func TestAChangeThatWaitsForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Proxy{pulse: &healthports.Pulse{Now: time.Now, Updated: time.Now()}, sides: []*side{{planner: v4()}}}
		stays := true
		h := p.Health(func() bool { return stays })
		want := func(when string, healthz, livez int) {
			t.Helper()
			for path, code := range map[string]int{"/healthz": healthz, "/livez": livez} {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
				var body struct {
					LastUpdated, CurrentTime time.Time
					NodeEligible             *bool
					Status                   map[corev1.IPFamily]struct{ Healthy bool }
				}
				if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
					t.Fatal(err)
				}
				late := body.CurrentTime.Sub(body.LastUpdated) >= healthports.Late
				if w.Code != code || !body.CurrentTime.Equal(time.Now()) || late != (livez != 200) ||
					body.Status[corev1.IPv4Protocol].Healthy != (livez == 200) || (body.NodeEligible != nil) != (path == "/healthz") {
					t.Errorf("%s: %s answers %d %s, want %d", when, path, w.Code, w.Body, code)
				}
			}
		}
		want("at rest", 200, 200)
		p.pulse.Queued()
		time.Sleep(healthports.Late - time.Second)
		want("a change is not late yet", 200, 200)
		p.pulse.Begun()
		p.pulse.Queued()
		time.Sleep(time.Second)
		want("a write takes too long", 503, 503)
		p.pulse.Ended(false)
		want("it failed", 503, 503)
		p.pulse.Begun()
		p.pulse.Ended(true)
		want("it succeeded", 200, 200)
		p.pulse.Queued()
		p.pulse.Begun()
		p.pulse.Queued() // while the first is being written
		p.pulse.Ended(true)
		time.Sleep(healthports.Late)
		want("the second change waits", 503, 503)
		p.pulse.Begun()
		p.pulse.Ended(true)
		p.pulse.Begun()
		p.pulse.Ended(false) // the table was repaired, and that failed
		time.Sleep(healthports.Late)
		want("a repair waits", 503, 503)
		p.pulse.Begun()
		p.pulse.Ended(true)
		stays = false
		want("the node is to go", 503, 200)
	})
}

// TestTheModeIsToldAsUpstreamTellsIt, beside the health and the metrics, and nothing else is.
func TestTheModeIsToldAsUpstreamTellsIt(t *testing.T) {
	p := &Proxy{pulse: &healthports.Pulse{Now: time.Now, Updated: time.Now()}, measured: newMeasures()}
	for path, want := range map[string]struct {
		code int
		body string
	}{"/proxyMode": {200, "nftables"}, "/healthz": {200, ""}, "/livez": {200, ""}, "/metrics": {200, ""}, "/debug/pprof/": {404, ""}} {
		w := httptest.NewRecorder()
		p.Status().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want.code || want.body != "" && w.Body.String() != want.body {
			t.Errorf("%s answers %d %q, want %v", path, w.Code, w.Body, want)
		}
	}
}

func TestWhichNodesStay(t *testing.T) {
	now := metav1.Now()
	for what, c := range map[string]struct {
		node *corev1.Node
		want bool
	}{
		"none":    {nil, false},
		"a node":  {&corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "other"}}}}, true},
		"deleted": {&corev1.Node{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}, false},
		"marked":  {&corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}}}, false},
	} {
		if got := Stays(c.node); got != c.want {
			t.Errorf("%s: %t", what, got)
		}
	}
}

// TestHealthIsServed until the proxy ends, and nothing is left then.
func TestHealthIsServed(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	p := &Proxy{pulse: &healthports.Pulse{Now: time.Now, Updated: time.Now()}, measured: newMeasures()}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.ServeHealth(ctx, l, nil) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	for path, want := range map[string]int{"/healthz": 200, "/livez": 200, "/": 404} {
		r, err := client.Get(fmt.Sprintf("http://%s%s", l.Addr(), path))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if err := r.Body.Close(); err != nil || r.StatusCode != want {
			t.Errorf("%s answers %d (%v)", path, r.StatusCode, err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	goleak.VerifyNone(t, leaks)
}
