// SPDX-License-Identifier: Apache-2.0

package whyapi

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/why"
)

// stub is an API of which somebody may read the nodes and nothing else.
func stub(t *testing.T, seen func(*http.Request)) http.Handler {
	t.Helper()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen(r)
		w.Header().Set("Content-Type", "application/json")
		var answer any = &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: 403, Reason: metav1.StatusReasonForbidden,
		}
		switch {
		case r.Method == http.MethodGet && r.URL.Path == "/api/v1/nodes":
			answer = map[string]any{"kind": "NodeList", "apiVersion": "v1", "items": []any{map[string]any{
				"metadata": map[string]any{"name": "a"}, "spec": map[string]any{"unschedulable": true},
				"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
			}}}
		case r.URL.Path == "/version":
			answer = version.Info{}
		default:
			w.WriteHeader(http.StatusForbidden)
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	})
}

func get(t *testing.T, h http.Handler, who user.Info, query string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, Path+"?"+query, nil)
	if who != nil {
		r = r.WithContext(genericrequest.WithUser(r.Context(), who))
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// Everything is read as whoever asks, and what he may not read is left out.
func TestTheServerReadsAsTheAsker(t *testing.T) {
	ann := &user.DefaultInfo{Name: "ann", Groups: []string{"shop"}}
	asked := make(chan *http.Request, 100)
	h := NewHandler(Handler{API: stub(t, func(r *http.Request) { asked <- r }), Logger: slog.New(slog.DiscardHandler)})
	w := get(t, h, ann, "kind=no&name=a")
	var a why.Answer
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	if a.Well || !strings.Contains(a.Cause, "it is cordoned") || !strings.Contains(strings.Join(a.Unknown, " "), "events there are: you may not list them") {
		t.Errorf("%+v", a)
	}
	close(asked)
	writes := 0
	for r := range asked {
		if who, _ := genericrequest.UserFrom(r.Context()); who.GetName() != "ann" {
			t.Errorf("%s %s as %v", r.Method, r.URL, who)
		}
		if r.Method != http.MethodGet {
			writes++
		}
	}
	if writes != 0 {
		t.Errorf("%d writes in the name of somebody who may not even read the object", writes)
	}
}

func TestOddQuestionsAreRefused(t *testing.T) {
	h := NewHandler(Handler{API: stub(t, func(*http.Request) {}), Logger: slog.New(slog.DiscardHandler)})
	who := &user.DefaultInfo{Name: "ann"}
	for _, c := range []struct {
		query string
		who   user.Info
		code  int
		want  string
	}{
		{"", who, 400, "name the object"},
		{"kind=pod", who, 400, "name the object"},
		{"kind=pod&name=x&namespace=" + url.QueryEscape("../kube-system"), who, 400, "namespace"},
		{"kind=" + url.QueryEscape("pods/log") + "&name=x", who, 400, "kind"},
		{"kind=pod&name=" + strings.Repeat("x", 254), who, 400, "253 characters"},
		{"kind=node&name=none", who, 404, "there is no node none"},
		{"kind=node&name=a", nil, 500, "nobody is known to ask"},
	} {
		w := get(t, h, c.who, c.query)
		var s metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil || w.Code != c.code || !strings.Contains(s.Message, c.want) || s.Details.Group != Group {
			t.Errorf("%s: %d %s: %v", c.query, w.Code, w.Body, err)
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, Path, nil)
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

// Two questions at a time are enough: the next is told to come again.
func TestQuestionsAreBounded(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	api := stub(t, func(r *http.Request) {
		if r.URL.Path == "/api/v1/nodes" {
			entered <- struct{}{}
			<-leave
		}
	})
	h := NewHandler(Handler{API: api, Logger: slog.New(slog.DiscardHandler)})
	who := &user.DefaultInfo{Name: "ann"}
	ended := make(chan int, atOnce)
	for range atOnce {
		go func() { ended <- get(t, h, who, "kind=node&name=a").Code }()
		<-entered
	}
	if w := get(t, h, who, "kind=node&name=a"); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	close(leave)
	for range atOnce {
		if code := <-ended; code != http.StatusOK {
			t.Errorf("%d", code)
		}
	}
}

// A server that does not know the question is told from one whose answer is no.
func TestServersThatDoNotAnswerWhy(t *testing.T) {
	for name, c := range map[string]struct {
		answer  http.HandlerFunc
		offered bool
		want    string
	}{
		"another server": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "404 page not found", http.StatusNotFound) }, false, ""},
		"forbidden": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`))
		}, false, ""},
		"no such object": {func(w http.ResponseWriter, _ *http.Request) {
			fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, errors.New("there is no pod shop/x"))
		}, true, "there is no pod shop/x"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(c.answer)
			defer srv.Close()
			set, err := client.New(&rest.Config{Host: srv.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}})
			if err != nil {
				t.Fatal(err)
			}
			_, err = Ask(t.Context(), set, Question{Word: "pod", Namespace: "shop", Name: "x"})
			if errors.Is(err, ErrNotOffered) == c.offered || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}
