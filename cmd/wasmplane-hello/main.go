// SPDX-License-Identifier: Apache-2.0

// Command wasmplane-hello is the sample that `make run` deploys: a web server that
// says which pod answered. It stands in for nginx where no registry is at hand.
//
// It serves on port 80, or on $PORT: any path gives the pod's name, its addresses
// and the path; /healthz gives "ok", and 503 once the pod was told to end, so that
// a Service stops sending before the listener closes.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	readTimeout = 10 * time.Second
	// drain is how long requests that run may take when the pod ends; well within
	// the 30 s that a pod is given.
	drain = 5 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if len(os.Args) == 3 && os.Args[1] == "get" {
		if err := get(ctx, os.Stdout, os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "wasmplane-hello:", err)
			os.Exit(1)
		}
		return
	}
	port := os.Getenv("PORT")
	if port == "" {
		port = "80"
	}
	if err := serve(ctx, net.JoinHostPort("", port)); err != nil {
		fmt.Fprintln(os.Stderr, "wasmplane-hello:", err)
		os.Exit(1)
	}
}

// serve answers until ctx ends, then finishes what it began.
func serve(ctx context.Context, address string) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	var ending atomic.Bool
	s := &http.Server{Handler: handler(&ending), ReadHeaderTimeout: readTimeout}
	done := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		ending.Store(true)
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
		defer cancel()
		done <- s.Shutdown(limit)
	})
	fmt.Printf("wasmplane-hello: %s serves on %s\n", podName(), l.Addr())
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-done
}

func handler(ending *atomic.Bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if ending.Load() {
			http.Error(w, "ending", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "Hello from wasmplane\npod:  %s\nip:   %s\npath: %s\n", podName(), strings.Join(addresses(), " "), r.URL.Path)
		fmt.Printf("%s %s %s\n", r.RemoteAddr, r.Method, r.URL.Path)
	})
	return mux
}

// podName is the pod's: the kubelet makes it the host's name.
func podName() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// addresses are the pod's own, without loopback and link-local ones.
func addresses() []string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return []string{"unknown"}
	}
	var out []string
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			out = append(out, n.IP.String())
		}
	}
	return out
}
