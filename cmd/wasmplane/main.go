// SPDX-License-Identifier: Apache-2.0

// Command wasmplane is a Kubernetes-compatible control plane in one binary. It
// also compiles plugins, renders charts and runs its own containerd, by executing itself, and kubectl.
package main

import (
	"os"
	"time"

	"k8s.io/client-go/transport"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/command"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/kubectltexts"
	"github.com/wasmplane/wasmplane/core/chart/render"
	"github.com/wasmplane/wasmplane/core/kubelet/containerd"
	"github.com/wasmplane/wasmplane/plugins/host/compiler"
)

func main() {
	// First of all: as a compiler of plugins, a renderer of charts or a containerd child this process is something else.
	compiler.MaybeRun()
	render.MaybeRun()
	if containerd.MaybeRun() {
		return
	}
	// A certificate that another authority has signed is to be in use everywhere before the one
	// before is dropped (core/join/succession): clients look for it as often as this.
	transport.CertCallbackRefreshDuration = 10 * time.Second
	os.Exit(command.Main(kubectltexts.Args(os.Args), os.Stdout, os.Stderr))
}
