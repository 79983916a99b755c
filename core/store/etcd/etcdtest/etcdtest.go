// SPDX-License-Identifier: Apache-2.0

// Package etcdtest runs etcd for tests.
package etcdtest

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/wasmplane/wasmplane/core/store/etcd"
)

// Start runs an etcd until the test ends, in a folder of its own where none is given.
func Start(tb testing.TB, cfg etcd.ServerConfig) *etcd.Server {
	tb.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(tb.TempDir(), "etcd")
	}
	s, err := etcd.Start(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// Socket is the URL of a socket with a path that is short enough.
func Socket(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "wp") //nolint:usetesting // the path of a socket has 107 bytes at most
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return (&url.URL{Scheme: "unix", Path: filepath.Join(dir, "s")}).String()
}
