// SPDX-License-Identifier: Apache-2.0

package measured

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/storetest"
)

func resource(key string) (schema.GroupResource, bool) {
	name, _, ok := strings.Cut(strings.TrimPrefix(key, "/registry/"), "/")
	return schema.ParseGroupResource(name), ok
}

func open(t *testing.T) *Store {
	t.Helper()
	server, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: filepath.Join(t.TempDir(), "etcd"), NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := New(server.Store(), resource, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheContractHolds(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return open(t) })
}

func TestRequestsAreCounted(t *testing.T) {
	s := open(t)
	const key = "/registry/deployments.apps/ns/d"
	rev, err := s.Put(t.Context(), key, []byte("v"), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), key, []byte("v"), 0, 0); err == nil {
		t.Fatal("created twice")
	}
	if _, err := s.Put(t.Context(), key, []byte("w"), rev, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "/registry/deployments.apps/ns/none"); err == nil {
		t.Fatal("found")
	}
	for operation, want := range map[string]float64{"create": 2, "update": 1, "get": 1} {
		if got := testutil.ToFloat64(s.requests.WithLabelValues(operation, "apps", "deployments")); got != want {
			t.Errorf("%s: %v requests", operation, got)
		}
		if got := testutil.ToFloat64(s.failures.WithLabelValues(operation, "apps", "deployments")); got != 0 {
			t.Errorf("%s: %v failures", operation, got)
		}
	}
}
