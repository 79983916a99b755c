// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corerun "github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/workload"
)

// TestHTTPServer: the component of http-server, built by its own script, answers requests in the engine of pods.
func TestHTTPServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // of TCP
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	serving := make(chan struct{})
	c := workload.Config{
		Root:   t.TempDir(),
		Listen: []workload.Port{{Name: "http", Port: port}}, Serving: func() { close(serving) },
	}
	if err := os.WriteFile(filepath.Join(c.Root, "server.wasm"), plugintest.Module(t, "http-server"), 0o600); err != nil {
		t.Fatal(err)
	}
	done := corerun.Go("the server", func() error {
		_, err := workload.Run(ctx, c, []string{"server.wasm"}, []string{"GREETING=good morning"},
			workload.Stdio{In: strings.NewReader(""), Out: os.Stderr, Err: os.Stderr})
		return err
	})
	select {
	case <-serving:
	case err := <-done:
		t.Fatal("it ended: ", err)
	}
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/a?b=c":   {http.StatusOK, "good morning from /a?b=c\n"},
		"/missing": {http.StatusNotFound, "good morning from /missing\n"},
	} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.Addr().String()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.Body.Close() != nil || answer.StatusCode != want.code || string(text) != want.text ||
			answer.Header.Get("Content-Type") != "text/plain" {
			t.Errorf("%s: %d %s, %q, %v", path, answer.StatusCode, answer.Header, text, err)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
