// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(t *testing.T, ctx context.Context, h http.HandlerFunc) *http.Response { //nolint:revive // t first, as everywhere in tests
	t.Helper()
	cfg := InMemory(h, &user.DefaultInfo{Name: "alice"}, "test")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host+"/api?x=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := cfg.Transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func TestTheHandlerSeesWhoAsksAndWhat(t *testing.T) {
	resp := get(t, t.Context(), func(w http.ResponseWriter, r *http.Request) {
		u, _ := genericrequest.UserFrom(r.Context())
		w.Header().Set("X-Kind", "a")
		w.WriteHeader(http.StatusTeapot)
		w.Header().Set("X-Late", "b")
		fmt.Fprint(w, u.GetName(), " ", r.RequestURI)
	})
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.Body.Close() != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusTeapot || string(body) != "alice /api?x=1" || resp.Header.Get("X-Kind") != "a" ||
		resp.Header.Get("X-Late") != "" {
		t.Fatalf("%d %q %v", resp.StatusCode, body, resp.Header)
	}
}

func TestAWatchIsReadWhileItIsWrittenAndEndsWithItsReader(t *testing.T) {
	next, ended := make(chan string), make(chan struct{})
	resp := get(t, t.Context(), func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		w.(http.Flusher).Flush()
		for {
			select {
			case line := <-next:
				fmt.Fprintln(w, line)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	})
	lines := bufio.NewReader(resp.Body)
	for _, want := range []string{"one\n", "two\n"} {
		next <- strings.TrimSpace(want)
		if got, err := lines.ReadString('\n'); err != nil || got != want {
			t.Fatalf("read %q, %v", got, err)
		}
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	<-ended
}

func TestAHandlerThatIsFarAheadWaits(t *testing.T) {
	const total = 8 * maxBuffered
	resp := get(t, t.Context(), func(w http.ResponseWriter, _ *http.Request) {
		chunk := make([]byte, 64<<10)
		for range total / len(chunk) {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	body := resp.Body.(*response)
	capacity := func() int {
		body.mu.Lock()
		defer body.mu.Unlock()
		return body.buf.Cap()
	}
	n, most := int64(0), 0
	for n < total {
		read, err := io.CopyN(io.Discard, resp.Body, 1000)
		if n, most = n+read, max(most, capacity()); err != nil {
			break
		}
	}
	if n != total || most > 4*maxBuffered {
		t.Fatalf("read %d of %d bytes, and the buffer grew to %d", n, total, most)
	}
	// What has been read takes nothing any more: a watch goes on for days.
	if _, err := resp.Body.Read(make([]byte, 1)); !errors.Is(err, io.EOF) || capacity() > keptBuffer {
		t.Errorf("the buffer has %d bytes when all is read (%v)", capacity(), err)
	}
	_ = resp.Body.Close()
}

func TestAnAbortedHandlerIsAnError(t *testing.T) {
	resp := get(t, t.Context(), func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "half")
		panic(http.ErrAbortHandler)
	})
	_, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err == nil {
		t.Fatal("an aborted answer looked complete")
	}
}

func TestTheEndOfTheContextEndsTheRequest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	resp := get(t, ctx, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "x")
		<-r.Context().Done()
	})
	cancel()
	_, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// A handler that asks the server while it answers somebody must not write into
// that request's records.
func TestValuesOfTheCallersRequestStayWithIt(t *testing.T) {
	outer := audit.WithAuditContext(t.Context())
	audit.AddAuditAnnotation(outer, "a/b", "of the caller")
	outer, span := sdktrace.NewTracerProvider().Tracer("test").Start(outer, "outer")
	defer span.End()
	resp := get(t, outer, func(_ http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if audit.AuditContextFrom(ctx) != nil {
			t.Error("the caller's audit record has come along")
		}
		if oteltrace.SpanFromContext(ctx) != span {
			t.Error("the caller's span has not come along")
		}
	})
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
}

func TestNoAnswerIsOfThePast(t *testing.T) {
	var asked []string
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"}}`)
	})
	set, err := New(InMemory(h, &user.DefaultInfo{Name: "alice"}, "test"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []metav1.ListOptions{
		{ResourceVersion: "0", Limit: 500, LabelSelector: "a=b"},
		{ResourceVersion: "12", Limit: 500},
		{ResourceVersion: "0", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
	} {
		if _, err := set.Kube.CoreV1().Pods("").List(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := set.Metadata.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).List(t.Context(),
		metav1.ListOptions{ResourceVersion: "0"}); err != nil {
		t.Fatal(err)
	}
	want := []string{"labelSelector=a%3Db", "limit=500&resourceVersion=12", "resourceVersion=0&resourceVersionMatch=NotOlderThan", ""}
	if !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
}
