// SPDX-License-Identifier: Apache-2.0

package whyapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/why"
)

// stub is an API of which somebody may read the nodes and nothing else.
func stub(t *testing.T, seen func(*http.Request)) http.Handler {
	t.Helper()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen(r)
		w.Header().Set("Content-Type", "application/json")
		var answer any = &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: 403,
			Reason: metav1.StatusReasonForbidden,
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
	if a.Well || !strings.Contains(a.Cause, "it is cordoned") ||
		!strings.Contains(strings.Join(a.Unknown, " "), "events there are: you may not list them") {
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
		{"kind=node&name=a", nil, 500, "the request has no user"},
	} {
		w := get(t, h, c.who, c.query)
		var s metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil || w.Code != c.code || !strings.Contains(s.Message, c.want) ||
			s.Details.Group != Group {
			t.Errorf("%s: %d %s: %v", c.query, w.Code, w.Body, err)
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, Path, nil)
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

// Two questions at a time are enough: the next is told to come again, but for an operator's. And nobody has two turns,
// under however many names.
func TestQuestionsAreBounded(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	api := stub(t, func(r *http.Request) {
		if r.URL.Path == "/api/v1/nodes" {
			entered <- struct{}{}
			<-leave
		}
	})
	h := NewHandler(Handler{API: api, Logger: slog.New(slog.DiscardHandler)})
	ended := make(chan int, atOnce+reserved)
	begin := func(who user.Info) {
		go func() { ended <- get(t, h, who, "kind=node&name=a").Code }()
		<-entered
	}
	refused := func(who user.Info) {
		t.Helper()
		if w := get(t, h, who, "kind=node&name=a"); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s: %d %v", who.GetName(), w.Code, w.Header())
		}
	}
	begin(&user.DefaultInfo{Name: "system:serviceaccount:shop:one"})
	refused(&user.DefaultInfo{Name: "system:serviceaccount:shop:one"})
	refused(&user.DefaultInfo{Name: "system:serviceaccount:shop:two"})
	begin(&user.DefaultInfo{Name: "ann"})
	refused(&user.DefaultInfo{Name: "bob"})
	begin(&user.DefaultInfo{Name: "admin", Groups: []string{pki.AdminsGroup}})
	refused(&user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}})
	close(leave)
	for range atOnce + reserved {
		if code := <-ended; code != http.StatusOK {
			t.Errorf("%d", code)
		}
	}
}

// After a long turn one rests for as long; others don't.
func TestWhoAsksMuchRests(t *testing.T) {
	now := time.Unix(0, 0)
	limiter := newLimiter()
	limiter.now = func() time.Time { return now }
	ann := &user.DefaultInfo{Name: "ann"}
	end, _, _ := limiter.begin(ann)
	now = now.Add(briefly)
	end()
	if end, _, _ = limiter.begin(ann); end == nil {
		t.Fatal("a brief turn needs no rest")
	}
	now = now.Add(20 * time.Second)
	end()
	end, wait, why := limiter.begin(ann)
	if end != nil || wait != 20*time.Second || !strings.Contains(why, "20s") {
		t.Errorf("%s, %q", wait, why)
	}
	if end, _, _ := limiter.begin(&user.DefaultInfo{Name: "bob"}); end == nil {
		t.Error("another one has to rest too")
	}
	now = now.Add(20 * time.Second)
	if end, _, _ = limiter.begin(ann); end == nil || len(limiter.rests) != 0 {
		t.Errorf("the rest does not end: %v", limiter.rests)
	}
}

// What is in no namespace has its events in "default", where others read.
func TestEventsAreWrittenWhereTheObjectIs(t *testing.T) {
	for _, c := range []struct {
		query string
		wrote bool
	}{{"kind=node&name=a", true}, {"kind=ns&name=a", false}, {"kind=pod&name=a&namespace=shop", true}} {
		asked := make(chan string, 100)
		h := NewHandler(Handler{
			Logger: slog.New(slog.DiscardHandler),
			API:    stuckObjects(t, func(r *http.Request) { asked <- r.Method + " " + r.URL.Path }),
		})
		if w := get(t, h, &user.DefaultInfo{Name: "ann"}, c.query); w.Code != http.StatusOK {
			t.Fatalf("%s: %d %s", c.query, w.Code, w.Body)
		}
		close(asked)
		wrote := false
		for request := range asked {
			wrote = wrote || strings.HasPrefix(request, "POST ")
		}
		if wrote != c.wrote {
			t.Errorf("%s: an event is written: %v", c.query, wrote)
		}
	}
}

// stuckObjects is an API with a cordoned node, a namespace and a pod that finalizers keep, all of the name a.
func stuckObjects(t *testing.T, seen func(*http.Request)) http.Handler {
	t.Helper()
	gone := map[string]any{"name": "a", "deletionTimestamp": "2020-01-01T00:00:00Z", "finalizers": []string{"x/y"}}
	inShop := map[string]any{"name": "a", "namespace": "shop", "deletionTimestamp": "2020-01-01T00:00:00Z", "finalizers": []string{"x/y"}}
	objects := map[string]map[string]any{
		"Node":      {"kind": "Node", "apiVersion": "v1", "metadata": map[string]any{"name": "a"}, "spec": map[string]any{"unschedulable": true}},
		"Namespace": {"kind": "Namespace", "apiVersion": "v1", "metadata": gone},
		"Pod":       {"kind": "Pod", "apiVersion": "v1", "metadata": inShop},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen(r)
		w.Header().Set("Content-Type", "application/json")
		var answer any
		for kind, o := range objects {
			plural := strings.ToLower(kind) + "s"
			switch {
			case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/"+plural):
				answer = map[string]any{"kind": kind + "List", "apiVersion": "v1", "items": []any{o}}
			case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/"+plural+"/a"):
				answer = map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": o["metadata"]}
			}
		}
		if answer == nil {
			w.WriteHeader(http.StatusForbidden)
			answer = &metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: 403,
				Reason: metav1.StatusReasonForbidden,
			}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	})
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

// Who has many large objects has not all of them read into the server's memory at once, nor very many on one page.
func TestWhatOneQuestionReadsIsBounded(t *testing.T) {
	large := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": strings.Repeat("x", 1<<20)}}}
	r := &reader{ctx: t.Context()}
	most := int64(0)
	from := func(_ context.Context, opts metav1.ListOptions) (*corev1.PodList, error) {
		most = max(most, opts.Limit)
		return &corev1.PodList{ListMeta: metav1.ListMeta{Continue: "more"}, Items: slices.Repeat([]corev1.Pod{large}, int(opts.Limit))}, nil
	}
	if got := len(list(r, "pods", from, []*corev1.Pod(nil))); got < mostBytes>>20-32 || got > mostBytes>>20+32 {
		t.Errorf("%d objects of a MiB were read, want about %d", got, mostBytes>>20)
	}
	if most > firstPage {
		t.Errorf("a page had %d of them", most)
	}
	again := 0
	list(r, "jobs", func(context.Context, metav1.ListOptions) (*batchv1.JobList, error) {
		again++
		return &batchv1.JobList{}, nil
	}, []*batchv1.Job(nil))
	if again > 0 || len(r.unread) != 2 || !strings.Contains(r.unread[1], "all jobs: only 0 were read") {
		t.Errorf("it went on %d times, and says %q", again, r.unread)
	}
}
