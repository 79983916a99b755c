// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
)

const benchPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"pod-%d","namespace":"bench","labels":{"app":"bench"},"annotations":{"note":"%s"}},
"spec":{"containers":[{"name":"one","image":"registry.example/app:v1","ports":[{"containerPort":80}],"env":[{"name":"A","value":"b"}],
"resources":{"requests":{"cpu":"100m","memory":"64Mi"},"limits":{"memory":"128Mi"}},"volumeMounts":[{"name":"data","mountPath":"/data"}]}],"volumes":[{"name":"data","emptyDir":{}}]}}`

const benchLease = `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"node","namespace":"bench"},
"spec":{"holderIdentity":"node","leaseDurationSeconds":40,"renewTime":"2026-01-01T00:00:00.%06dZ"}}`

// do sends one request straight into the handler.
func do(tb testing.TB, h http.Handler, method, path, contentType, body string, want int) []byte {
	tb.Helper()
	req := httptest.NewRequestWithContext(genericrequest.WithUser(tb.Context(),
		&user.DefaultInfo{Name: "bench", Groups: []string{user.SystemPrivilegedGroup}}),
		method, path, strings.NewReader(body))
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("User-Agent", "bench/1")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	if w.Code != want {
		tb.Fatalf("%s %s answered %d: %s", method, path, w.Code, w.Body)
	}
	data, _ := io.ReadAll(w.Body)
	return data
}

func benchServer(b *testing.B) http.Handler {
	s := apiservertest.Start(b, apiservertest.Options{})
	h := s.LocalHandler()
	do(b, h, "POST", "/api/v1/namespaces", "application/json", `{"metadata":{"name":"bench"}}`, 201)
	return h
}

func BenchmarkCreatePod(b *testing.B) {
	h := benchServer(b)
	pad := strings.Repeat("x", 3000)
	i := 0
	for b.Loop() {
		do(b, h, "POST", "/api/v1/namespaces/bench/pods", "application/json", fmt.Sprintf(benchPod, i, pad), 201)
		i++
	}
}

func BenchmarkCreateConfigMap(b *testing.B) {
	h := benchServer(b)
	i := 0
	for b.Loop() {
		do(b, h, "POST", "/api/v1/namespaces/bench/configmaps", "application/json",
			fmt.Sprintf(`{"metadata":{"name":"cm-%d"},"data":{"a":"b"}}`, i), 201)
		i++
	}
}

func BenchmarkUpdateLease(b *testing.B) {
	h := benchServer(b)
	do(b, h, "POST", "/apis/coordination.k8s.io/v1/namespaces/bench/leases", "application/json", fmt.Sprintf(benchLease, 0), 201)
	const path = "/apis/coordination.k8s.io/v1/namespaces/bench/leases/node"
	lease := coordinationv1.Lease{}
	if err := json.Unmarshal(do(b, h, "GET", path, "", "", 200), &lease); err != nil {
		b.Fatal(err)
	}
	i := 1
	for b.Loop() {
		lease.Spec.RenewTime.Time = lease.Spec.RenewTime.Add(time.Duration(i) * time.Second)
		body, err := json.Marshal(&lease)
		if err != nil {
			b.Fatal(err)
		}
		if err := json.Unmarshal(do(b, h, "PUT", path, "application/json", string(body), 200), &lease); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

func BenchmarkPatchPodStatus(b *testing.B) {
	h := benchServer(b)
	do(b, h, "POST", "/api/v1/namespaces/bench/pods", "application/json", fmt.Sprintf(benchPod, 0, "x"), 201)
	i := 1
	for b.Loop() {
		do(b, h, "PATCH", "/api/v1/namespaces/bench/pods/pod-0/status", "application/strategic-merge-patch+json",
			fmt.Sprintf(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True","message":"%d"}]}}`, i), 200)
		i++
	}
}

func BenchmarkGetPod(b *testing.B) {
	h := benchServer(b)
	do(b, h, "POST", "/api/v1/namespaces/bench/pods", "application/json", fmt.Sprintf(benchPod, 0, strings.Repeat("x", 3000)), 201)
	for b.Loop() {
		do(b, h, "GET", "/api/v1/namespaces/bench/pods/pod-0", "", "", 200)
	}
}

// discard is an answer that nobody keeps.
type discard struct {
	header http.Header
	size   int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(p []byte) (int, error) { d.size += len(p); return len(p), nil }

func BenchmarkList1000Pods(b *testing.B) {
	h := benchServer(b)
	pad := strings.Repeat("x", 3000)
	for i := range 1000 {
		do(b, h, "POST", "/api/v1/namespaces/bench/pods", "application/json", fmt.Sprintf(benchPod, i, pad), 201)
	}
	for _, accept := range []string{
		"application/json", "application/vnd.kubernetes.protobuf",
		"application/json;as=Table;v=v1;g=meta.k8s.io",
	} {
		b.Run(accept, func(b *testing.B) {
			for b.Loop() {
				req := httptest.NewRequestWithContext(genericrequest.WithUser(b.Context(),
					&user.DefaultInfo{Name: "bench", Groups: []string{user.SystemPrivilegedGroup}}),
					"GET", "/api/v1/namespaces/bench/pods", nil)
				req.Header.Set("Accept", accept)
				w := &discard{header: http.Header{}}
				h.ServeHTTP(w, req)
				b.SetBytes(int64(w.size))
			}
		})
	}
}

// watcher counts the events that it is sent.
type watcher struct {
	discard
	events atomic.Int64
}

func (w *watcher) Write(p []byte) (int, error) {
	w.events.Add(int64(bytes.Count(p, []byte(`{"type":"`))))
	return len(p), nil
}

func (w *watcher) Flush() {}

// BenchmarkWatch100 is one update that a hundred watchers see.
func BenchmarkWatch100(b *testing.B) {
	h := benchServer(b)
	do(b, h, "POST", "/api/v1/namespaces/bench/pods", "application/json", fmt.Sprintf(benchPod, 0, strings.Repeat("x", 3000)), 201)
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	watchers := make([]*watcher, 100)
	for i := range watchers {
		w := &watcher{discard: discard{header: http.Header{}}}
		watchers[i] = w
		running.Go(func() {
			h.ServeHTTP(w,
				httptest.NewRequestWithContext(genericrequest.WithUser(ctx,
					&user.DefaultInfo{Name: "bench", Groups: []string{user.SystemPrivilegedGroup}}),
					"GET", "/api/v1/namespaces/bench/pods?watch=1", nil))
		})
	}
	seen := int64(1)
	all := func() {
		for _, w := range watchers {
			for w.events.Load() < seen {
				runtime.Gosched()
			}
		}
	}
	all()
	for b.Loop() {
		do(b, h, "PATCH", "/api/v1/namespaces/bench/pods/pod-0", "application/merge-patch+json",
			fmt.Sprintf(`{"metadata":{"annotations":{"n":"%d"}}}`, seen), 200)
		seen++
		all()
	}
	cancel()
	running.Wait()
}
