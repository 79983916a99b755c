// SPDX-License-Identifier: Apache-2.0

// Command driver is the storage driver beside which drivers' own sidecars are run.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/wasmplane/wasmplane/core/kubelet/csi/csitest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := csitest.Serve(ctx, os.Args[1:], os.Stdout); err != nil {
		log.Fatal(err)
	}
}
