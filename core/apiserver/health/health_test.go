// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gorilla/mux"
)

func ask(t *testing.T, path string, checks ...Check) (code int, body string) {
	t.Helper()
	p := Probes{
		Checks: checks, Stopping: func(context.Context) error { return nil },
		Observe: func(string, string, error) {}, Log: slog.New(slog.DiscardHandler),
	}
	r := mux.NewRouter()
	for _, probe := range []string{"livez", "readyz"} {
		r.Path("/" + probe).HandlerFunc(p.Handler(probe))
		r.Path("/" + probe + "/{check}").HandlerFunc(p.Handler(probe))
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func failing(name string) Check {
	return Check{Name: name, Check: func(context.Context) error { return errors.New("secret cause") }}
}

// A server whose store is full stays in its balancer: deletes come through that.
func TestAnAdvisoryCheckIsToldAndTakesNobodyOut(t *testing.T) {
	full := failing("store-space")
	full.Advisory = true
	for path, want := range map[string]int{
		"/readyz": http.StatusOK, "/readyz?verbose": http.StatusOK,
		"/readyz/store-space": http.StatusInternalServerError, "/livez": http.StatusOK,
	} {
		code, body := ask(t, path, full)
		if code != want {
			t.Errorf("%s answers %d: %s", path, code, body)
		}
		if strings.Contains(path, "readyz") && path != "/readyz" && !strings.Contains(body, "[-]store-space failed") {
			t.Errorf("%s does not name it: %s", path, body)
		}
	}
}

func TestACheckThatFailsFailsItsProbeAndKeepsItsCause(t *testing.T) {
	dead := failing("etcd")
	code, body := ask(t, "/readyz", dead)
	if code != http.StatusInternalServerError || !strings.Contains(body, "[-]etcd failed: reason withheld") || strings.Contains(body,
		"secret") {
		t.Errorf("%d %s", code, body)
	}
	if code, body := ask(t, "/livez", dead); code != http.StatusOK {
		t.Errorf("livez answers %d: %s", code, body)
	}
	if code, _ := ask(t, "/readyz?exclude=etcd", dead); code != http.StatusOK {
		t.Errorf("with the check excluded: %d", code)
	}
	if code, _ := ask(t, "/readyz/none", dead); code != http.StatusNotFound {
		t.Errorf("a check that there is not: %d", code)
	}
}
