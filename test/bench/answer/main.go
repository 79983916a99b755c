// SPDX-License-Identifier: Apache-2.0

// Command answer is the server that BenchmarkWasmHTTP asks: the same program as an ordinary container, and as a WebAssembly
// module of WASI preview 1, which has its socket from the node.
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func serve() error {
	l, err := listen()
	if err != nil {
		return err
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "asked for %s\n", r.URL.Path)
	})}
	return s.Serve(l)
}

// listen takes the socket that a module is given for its port, and makes one elsewhere.
func listen() (net.Listener, error) {
	given, ok := os.LookupEnv("WASMPLANE_LISTEN")
	if !ok {
		var lc net.ListenConfig
		return lc.Listen(context.Background(), "tcp", ":8080")
	}
	_, fd, _ := strings.Cut(given, "=")
	n, err := strconv.Atoi(fd)
	if err != nil {
		return nil, fmt.Errorf("WASMPLANE_LISTEN=%q: expected one socket: %w", given, err)
	}
	// Otherwise all of the program stands still until somebody connects.
	if err := syscall.SetNonblock(n, true); err != nil {
		return nil, fmt.Errorf("make the socket non-blocking: %w", err)
	}
	return net.FileListener(os.NewFile(uintptr(n), "http"))
}
