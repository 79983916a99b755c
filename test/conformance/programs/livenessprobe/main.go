// SPDX-License-Identifier: Apache-2.0

// Command livenessprobe answers /healthz for a CSI driver, as upstream's
// livenessprobe does and with the flags of it that the suite's manifests use: 200
// where the driver's Probe answers that it is ready, 500 elsewhere.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "livenessprobe:", err)
		os.Exit(1)
	}
}

// run is the whole command.
func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("livenessprobe", flag.ContinueOnError)
	driver := f.String("csi-address", "/run/csi/socket", "the driver's socket")
	port := f.Uint("health-port", 9808, "TCP port of /healthz")
	timeout := f.Duration("probe-timeout", time.Second, "how long the driver may take to answer")
	f.Int("v", 0, "accepted, and not used")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: everything is said by flags", f.Arg(0))
	}
	conn, err := pluginwatch.Connect(*driver)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", fmt.Sprintf(":%d", *port))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: healthz(spec.NewIdentityClient(conn), *timeout), ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func healthz(driver spec.IdentityClient, timeout time.Duration) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		answer, err := driver.Probe(ctx, &spec.ProbeRequest{})
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case answer.GetReady() != nil && !answer.GetReady().GetValue():
			http.Error(w, "the driver is not ready", http.StatusInternalServerError)
		default:
			_, _ = w.Write([]byte("ok"))
		}
	})
	return mux
}
