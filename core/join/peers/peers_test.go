// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/join/handover"
)

// answering is a server of that name whose clock is off, and which is ready or not.
func answering(t *testing.T, name string, off time.Duration, ready int) (address string) {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Date", time.Now().Add(off).UTC().Format(http.TimeFormat))
		if req.URL.Path == "/readyz" {
			http.Error(w, "etcd failed", ready)
			return
		}
		_ = json.NewEncoder(w).Encode(handover.Offer{Server: handover.Server{Name: name, Version: "v1.2.3"}})
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func TestEachServerAnswersForItself(t *testing.T) {
	well := answering(t, "a", 0, http.StatusOK)
	late := answering(t, "b", -90*time.Second, http.StatusOK)
	ill := answering(t, "c", time.Hour, http.StatusInternalServerError)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	all := Ask(t.Context(), &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, well, late, ill, gone)
	for i, want := range []struct {
		called  string
		ahead   time.Duration
		trouble string
	}{
		{"a", 0, ""},
		{"b", -90 * time.Second, ""},
		{ill, time.Hour, "500 Internal Server Error: etcd failed"},
		{gone, 0, "refused"},
	} {
		p := all[i]
		if p.Called() != want.called || (p.Ahead-want.ahead).Abs() > 2*time.Second {
			t.Errorf("server %d is called %s, and is %s ahead; want %+v", i, p.Called(), p.Ahead, want)
		}
		if want.trouble == "" && p.Err != nil || want.trouble != "" && (p.Err == nil || !strings.Contains(p.Err.Error(), want.trouble)) {
			t.Errorf("server %d: %v; want %q", i, p.Err, want.trouble)
		}
	}
	if own := Own(t.Context(), &rest.Config{Host: "https://" + well, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}); own.Err != nil ||
		own.Server.Version != "v1.2.3" {
		t.Errorf("the own server: %+v", own)
	}
}

func TestWhereTheServersAre(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "kubernetes"},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}, {Addresses: []string{"192.0.2.2"}}},
		Ports:      []discoveryv1.EndpointPort{{Port: ptr.To[int32](6443)}},
	}
	got, err := Addresses(t.Context(), fake.NewClientset(slice))
	if err != nil || !slices.Equal(got, []string{"192.0.2.1:6443", "192.0.2.2:6443"}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := Addresses(t.Context(), fake.NewClientset()); err == nil {
		t.Error("a Service that says nothing says something")
	}
}
