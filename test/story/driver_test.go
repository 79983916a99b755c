// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/wasmplane/wasmplane/core/kubelet/csi/csitest"
	"github.com/wasmplane/wasmplane/core/kubelet/deviceplugin/devicetest"
)

// serveDriver is a CSI driver: driver KUBELET NODE VOLUMES.
func serveDriver() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := csitest.Serve(ctx, os.Args[1:], os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// serveGadgets is a device plugin: gadgets KUBELET FILE.
func serveGadgets() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := devicetest.Serve(ctx, os.Args[1:], os.Stdout); err != nil {
		log.Fatal(err)
	}
}
