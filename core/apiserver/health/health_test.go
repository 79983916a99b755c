// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

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
		r.Path("/" + probe + "/{check:.+}").HandlerFunc(p.Handler(probe))
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
		"/readyz": http.StatusOK, "/readyz?verbose": http.StatusOK, "/livez": http.StatusOK, "/livez?verbose": http.StatusOK,
	} {
		code, body := ask(t, path, full)
		if code != want {
			t.Errorf("%s answers %d: %s", path, code, body)
		}
		if strings.Contains(path, "verbose") && !strings.Contains(body, "[-]store-space failed: reason withheld; ") {
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

// Who may ask for a single check may know why it fails; everybody may ask for all of them.
func TestACheckAloneSaysWhy(t *testing.T) {
	for path, want := range map[string]string{
		"/readyz/etcd": "500 internal server error: secret cause\n", "/livez/etcd": "500 internal server error: secret cause\n",
		"/readyz/ping": "200 ok", "/readyz/shutdown": "200 ok",
		"/livez/shutdown": "404 404 page not found\n", "/readyz/etc": "404 404 page not found\n",
		"/livez": "200 ok",
	} {
		code, body := ask(t, path, failing("etcd"))
		if got := strconv.Itoa(code) + " " + body; got != want {
			t.Errorf("%s: %q, expected %q", path, got, want)
		}
	}
}

func TestExclusionsOfChecksThatThereAreNotAreTold(t *testing.T) {
	code, body := ask(t, "/readyz?verbose&exclude=etcd&exclude=b&exclude=a", failing("etcd"))
	want := "[+]ping ok\n[+]etcd excluded: ok\n[+]shutdown ok\n" +
		`warn: some health checks cannot be excluded: no matches for "a","b"` + "\nreadyz check passed\n"
	if code != http.StatusOK || body != want {
		t.Errorf("%d %q, expected %q", code, body, want)
	}
}

func TestAServerIsReadyOnceItsStartIsDone(t *testing.T) {
	done := make(chan struct{})
	hook := Started("rbac/bootstrap-roles", done)
	for path, want := range map[string]int{
		"/readyz": http.StatusInternalServerError, "/livez": http.StatusOK, "/readyz/poststarthook/rbac/bootstrap-roles": http.StatusInternalServerError,
	} {
		if code, body := ask(t, path, hook); code != want {
			t.Errorf("while it starts %s answers %d: %s", path, code, body)
		}
	}
	close(done)
	code, body := ask(t, "/readyz?verbose", hook)
	if code != http.StatusOK || !strings.Contains(body, "[+]poststarthook/rbac/bootstrap-roles ok\n") {
		t.Errorf("%d %s", code, body)
	}
}

// stuck is a log that takes nothing until it is let go.
type stuck struct{ began, letGo chan struct{} }

func (s stuck) Write(p []byte) (int, error) {
	close(s.began)
	<-s.letGo
	return len(p), nil
}

func TestALogThatTakesNothingFailsItsCheck(t *testing.T) {
	now := time.Unix(1000, 0)
	s := stuck{make(chan struct{}), make(chan struct{})}
	l := WatchLog(slog.NewTextHandler(s, nil), func() time.Time { return now })
	check := l.Check()
	written := make(chan struct{})
	go func() {
		defer close(written)
		slog.New(l.Handler()).With("a", 1).WithGroup("g").Info("held up")
	}()
	<-s.began
	for _, step := range []struct {
		after time.Duration
		well  bool
	}{{time.Minute, true}, {2 * time.Minute, false}} {
		now = now.Add(step.after)
		if err := check.Check(t.Context()); (err == nil) != step.well {
			t.Errorf("after %s more: %v", step.after, err)
		}
	}
	if code, body := ask(t, "/livez", check); code != http.StatusInternalServerError {
		t.Errorf("livez answers %d: %s", code, body)
	}
	close(s.letGo)
	<-written
	if err := check.Check(t.Context()); err != nil {
		t.Error(err)
	}
}
