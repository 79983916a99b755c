package apiserver_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
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
	req := httptest.NewRequestWithContext(genericrequest.WithUser(tb.Context(), &user.DefaultInfo{Name: "bench", Groups: []string{user.SystemPrivilegedGroup}}),
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
		do(b, h, "POST", "/api/v1/namespaces/bench/configmaps", "application/json", fmt.Sprintf(`{"metadata":{"name":"cm-%d"},"data":{"a":"b"}}`, i), 201)
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

func BenchmarkList1000Pods(b *testing.B) {
	h := benchServer(b)
	pad := strings.Repeat("x", 3000)
	for i := range 1000 {
		do(b, h, "POST", "/api/v1/namespaces/bench/pods", "application/json", fmt.Sprintf(benchPod, i, pad), 201)
	}
	for b.Loop() {
		do(b, h, "GET", "/api/v1/namespaces/bench/pods", "", "", 200)
	}
}
