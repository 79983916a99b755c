// SPDX-License-Identifier: Apache-2.0

package healthz_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/wasmplane/wasmplane/core/kubelet/healthz"
	"github.com/wasmplane/wasmplane/core/run"
)

func TestTheKubeletSaysThatItLives(t *testing.T) {
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := run.Go("health", func() error { return healthz.Serve(ctx, l) })
	for path, want := range map[string]struct {
		status int
		body   string
	}{
		"/healthz": {200, "ok"}, "/healthz/ping": {200, "ok"}, "/healthz?verbose": {200, "[+]ping ok\nhealthz check passed\n"},
		"/metrics": {404, "404 page not found\n"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != want.status || string(body) != want.body {
			t.Errorf("%s: %d %q, %v", path, answer.StatusCode, body, err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if again, err := lc.Listen(t.Context(), "tcp", l.Addr().String()); err != nil {
		t.Errorf("its port is not free: %v", err)
	} else {
		_ = again.Close()
	}
}
