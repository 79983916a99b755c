// SPDX-License-Identifier: Apache-2.0

// Package healthz tells programs of the node's own machine, at the port that upstream's kubelet
// has for it, whether the kubelet lives. It says nothing of its runtime or its pods: that these
// are not well is no reason to start the kubelet anew. Who asks is not asked who they are.
package healthz

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"

	"github.com/wasmplane/wasmplane/core/run"
)

// most connections at once: more wait.
const most = 32

// Handler of all requests.
func Handler() http.Handler {
	answer := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		text := "ok"
		if _, verbose := r.URL.Query()["verbose"]; verbose {
			text = "[+]ping ok\nhealthz check passed\n"
		}
		_, _ = io.WriteString(w, text) // who went away needs no answer
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", answer)
	mux.HandleFunc("GET /healthz/ping", answer)
	return mux
}

// Serve at l until ctx ends.
func Serve(ctx context.Context, l net.Listener) error {
	s := &http.Server{
		Handler: Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10,
	}
	done := run.Go("kubelet: health", func() error { return s.Serve(netutil.LimitListener(l, most)) })
	select {
	case <-ctx.Done():
		_ = s.Close()
		<-done
		return nil
	case err := <-done:
		return errors.Join(err, l.Close())
	}
}
