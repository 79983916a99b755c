// SPDX-License-Identifier: Apache-2.0

package secureserving_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/secureserving"
	"github.com/wasmplane/wasmplane/core/zpages"
)

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

var monitored = []string{"/metrics", "/metrics/slis", "/statusz", "/flagz"}

// The monitor may read metrics, jane may not, and others are not known.
func config(t *testing.T) secureserving.Config {
	metrics := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "things_total", Help: "Things."})
	metrics.MustRegister(counter)
	return secureserving.Config{
		Component: "test", Upstream: "kube-test", Flags: zpages.Flags{"config": "a.yaml"},
		Listener: listen(t, "127.0.0.1:0"), TLS: &tls.Config{MinVersion: tls.VersionTLS12},
		Authenticator: authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
			switch name := r.Header.Get("Authorization"); name {
			case "":
				return nil, false, nil
			case "Bearer bad":
				return nil, false, errors.New("nobody's token")
			default:
				return &authenticator.Response{User: &user.DefaultInfo{Name: strings.TrimPrefix(name, "Bearer ")}}, true, nil
			}
		}),
		Authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if a.GetUser().GetName() == "monitor" && a.GetVerb() == "get" && slices.Contains(monitored, a.GetPath()) && !a.IsResourceRequest() {
				return authorizer.DecisionAllow, "", nil
			}
			if a.GetUser().GetName() == "profiler" && a.GetVerb() == "get" && strings.HasPrefix(a.GetPath(), "/debug/pprof/") {
				return authorizer.DecisionAllow, "", nil
			}
			if a.GetUser().GetName() == "unlucky" {
				return authorizer.DecisionAllow, "", errors.New("the API is away")
			}
			return authorizer.DecisionNoOpinion, "no rule", nil
		}),
		Gatherer: metrics, Logger: slog.New(slog.DiscardHandler),
	}
}

// One connection of HTTP/2 has many streams: net/http ends it for this header.
func TestStrangersKeepNoConnection(t *testing.T) {
	s, err := secureserving.New(config(t))
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]string{"": "close", "bad": "close", "jane": ""} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		r.ProtoMajor = 2
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if got := w.Header().Get("Connection"); got != want {
			t.Errorf("%q: Connection is %q, want %q", token, got, want)
		}
	}
}

func TestMetricsAreForWhoMay(t *testing.T) {
	s, err := secureserving.New(config(t))
	if err != nil {
		t.Fatal(err)
	}
	h := s.Handler()
	for _, c := range []struct {
		method, path, token string
		code                int
	}{
		{"GET", "/metrics", "", 401},
		{"GET", "/metrics", "bad", 401},
		{"GET", "/metrics", "jane", 403},
		{"GET", "/metrics", "unlucky", 403},
		{"GET", "/metrics", "monitor", 200},
		{"DELETE", "/metrics", "monitor", 403},
		{"GET", "/statusz", "", 401},
		{"GET", "/statusz", "jane", 403},
		{"GET", "/statusz", "monitor", 200},
		{"GET", "/flagz", "jane", 403},
		{"GET", "/flagz", "monitor", 200},
		{"GET", "/metrics/slis", "jane", 403},
		{"GET", "/metrics/slis", "monitor", 200},
		{"DELETE", "/metrics/slis", "monitor", 403},
		{"GET", "/debug/pprof/", "", 401},
		{"GET", "/debug/pprof/", "monitor", 403},
		{"GET", "/debug/pprof/heap", "", 401},
		{"GET", "/debug/pprof/heap", "profiler", 200},
		{"POST", "/debug/pprof/symbol", "profiler", 403},
		{"GET", "/metrics/../healthz", "", 307},
		{"GET", "/healthz", "", 200},
		{"GET", "/livez", "", 200},
		{"GET", "/readyz", "", 200},
		{"POST", "/readyz", "", 401},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, nil)
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.code && !(c.code == 307 && w.Code == 301) {
			t.Errorf("%s %s as %q: %d, expected %d", c.method, c.path, c.token, w.Code, c.code)
		}
		if c.code == 200 && c.path == "/metrics" && !strings.Contains(w.Body.String(), "things_total 0") {
			t.Errorf("metrics: %s", w.Body)
		}
	}
}

// TestPagesOfUpstream: what the component is, with which flags it was started, and how its checks went.
func TestPagesOfUpstream(t *testing.T) {
	cfg := config(t)
	cfg.Ready = []secureserving.Check{{Name: "informers", Do: func(*http.Request) error { return errors.New("not yet") }}}
	s, err := secureserving.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h := s.Handler()
	get := func(path string) string {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer monitor")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Body.String()
	}
	get("/readyz")
	for path, want := range map[string][]string{
		"/statusz": {"\nkube-test statusz\n", "/debug /flagz /healthz /livez /metrics /readyz /statusz\n"},
		"/flagz":   {"\nkube-test flagz\n", "a.yaml\n"},
		"/metrics/slis": {
			`kubernetes_healthcheck{name="ping",type="readyz"} 1`,
			`kubernetes_healthchecks_total{name="informers",status="error",type="readyz"} 1`, "process_start_time_seconds",
		},
	} {
		for _, w := range want {
			if got := get(path); !strings.Contains(got, w) {
				t.Errorf("%s: %q is not in\n%s", path, w, got)
			}
		}
	}
}

func TestHealthIsToldAsUpstreamTellsIt(t *testing.T) {
	cfg := config(t)
	cfg.Ready = []secureserving.Check{{Name: "informers", Do: func(*http.Request) error { return errors.New("not yet: secret detail") }}}
	s, err := secureserving.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path, body string
		code       int
	}{
		{"/healthz", "ok", 200},
		{"/livez?verbose", "[+]ping ok\nlivez check passed\n", 200},
		{"/livez/ping", "ok", 200},
		{"/readyz", "[+]ping ok\n[-]informers failed: reason withheld\nreadyz check failed\n", 500},
		{"/readyz/informers", "[-]informers failed: reason withheld\nreadyz check failed\n", 500},
		{"/readyz?exclude=informers&verbose", "[+]ping ok\n[+]informers excluded: ok\nreadyz check passed\n", 200},
	} {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.path, nil))
		if w.Code != c.code || w.Body.String() != c.body {
			t.Errorf("%s: %d %q", c.path, w.Code, w.Body)
		}
	}
}

// TestWhatElseIsServed is for who may read metrics, as these.
func TestWhatElseIsServed(t *testing.T) {
	also := map[string]http.HandlerFunc{"/mode": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("nftables")) }}
	for _, c := range []struct {
		method, path string
		code         int
	}{{"GET", "/mode", 200}, {"GET", "/other", 404}, {"POST", "/mode", 404}} {
		s, err := secureserving.New(secureserving.Config{
			Component: "c", Listener: listen(t, "127.0.0.1:0"), Gatherer: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
			Also: also,
		})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		if w.Code != c.code {
			t.Errorf("%s %s: %d, want %d", c.method, c.path, w.Code, c.code)
		}
	}
}

func TestWithoutTLSOnlyLoopbackIsServed(t *testing.T) {
	cfg := config(t)
	cfg.TLS, cfg.Authenticator, cfg.Authorizer, cfg.Listener = nil, nil, nil, listen(t, "0.0.0.0:0")
	if _, err := secureserving.New(cfg); err == nil || !strings.Contains(err.Error(), "no loopback address") {
		t.Errorf("error %v", err)
	}
	cfg.Listener = listen(t, "127.0.0.1:0")
	s, err := secureserving.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/debug/pprof/heap", nil))
	if w.Code != http.StatusNotFound {
		t.Errorf("a profile for nobody in particular: %d", w.Code)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+cfg.Listener.Addr().String()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if _ = r.Body.Close(); err != nil || !strings.Contains(string(body), "things_total") {
		t.Errorf("%s, %v", body, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
