// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/etcd/etcdclient"
	"github.com/wasmplane/wasmplane/core/store/storetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(writerEnv) != "" {
		writeUntilKilled()
		return
	}
	goleak.VerifyTestMain(m)
}

func start(t *testing.T, cfg etcd.ServerConfig) *etcd.Server {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "etcd")
	}
	s, err := etcd.Start(t.Context(), cfg)
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

// socket is the URL of a socket with a path that is short enough.
func socket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "wp") //nolint:usetesting // the path of a socket has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return (&url.URL{Scheme: "unix", Path: filepath.Join(dir, "s")}).String()
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
	storetest.Run(t, func(t *testing.T) store.Store { return start(t, etcd.ServerConfig{NoFsync: true}).Store() })
}

func TestDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	start(t, etcd.ServerConfig{Dir: dir})
	_, err := etcd.Start(t.Context(), etcd.ServerConfig{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "in use by another instance (process ") {
		t.Fatalf("got %v, want to be told who uses the directory", err)
	}
}
