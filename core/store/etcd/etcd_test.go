// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdtest"
	"github.com/wasmplane/wasmplane/core/store/storetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(writerEnv) != "" {
		writeUntilKilled()
		return
	}
	goleak.VerifyTestMain(m)
}

func dial(t *testing.T, cfg etcdclient.Config) *etcdclient.Store {
	t.Helper()
	s, err := etcdclient.Dial(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestEmbeddedStoreKeepsTheContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return etcdtest.Start(t, etcd.ServerConfig{NoFsync: true}).Store() })
}

func TestDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	etcdtest.Start(t, etcd.ServerConfig{Dir: dir})
	_, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "in use by another instance (process ") {
		t.Fatalf("got %v, want to be told who uses the directory", err)
	}
}
