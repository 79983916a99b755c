// SPDX-License-Identifier: Apache-2.0

package site

import (
	"bytes"
	"context"
	"encoding/base64"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
)

// A server that has run for most of a year renews the operator's certificate: the kubeconfigs hold the new one, also
// that of a user who has the cluster's context.
func TestKubeconfigsHoldRenewedCertificates(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	var later atomic.Int64
	authority, err := pki.Open(pki.Config{Dir: dir.PKI(), Now: func() time.Time { return time.Now().Add(time.Duration(later.Load())) }})
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.APIServer.Listen = "127.0.0.1:6443"
	merged := filepath.Join(t.TempDir(), "config")
	s := Site{
		Options:   process.Options{Config: c, Dir: dir, Logger: slog.New(slog.DiscardHandler), MergeKubeconfig: merged},
		Authority: authority, Port: 6443,
	}
	if err := s.Publish("real"); err != nil {
		t.Fatal(err)
	}
	held := func(file string, id pki.Identity) bool {
		t.Helper()
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := authority.Client(id)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Contains(data, []byte(base64.StdEncoding.EncodeToString(pair.CertPEM())))
	}
	files := map[string]pki.Identity{dir.Kubeconfig(): pki.Admin(), dir.BreakGlassKubeconfig(): pki.BreakGlass(), merged: pki.Admin()}
	for file, id := range files {
		if !held(file, id) {
			t.Fatalf("%s does not hold the certificate", file)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := run.Go("renewals", func() error { return s.FollowRenewals(ctx) })
	later.Store(int64(300 * 24 * time.Hour))
	if err := authority.Renew(); err != nil {
		t.Fatal(err)
	}
	patience, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	look := run.Backoff{First: 10 * time.Millisecond, Longest: time.Second}
	for file, id := range files {
		for !held(file, id) {
			if !look.Wait(patience) {
				t.Fatalf("%s still holds the certificate that ends", file)
			}
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
