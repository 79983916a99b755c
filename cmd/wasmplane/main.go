// Command wasmplane is a Kubernetes-compatible control plane in one binary. It
// also runs its own containerd, by executing itself, and kubectl.
package main

import (
	"os"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/command"
	"github.com/wasmplane/wasmplane/core/kubelet/containerd"
)

func main() {
	// First of all: as a containerd child this process is something else.
	if containerd.MaybeRun() {
		return
	}
	os.Exit(command.Main(os.Args[1:], os.Stdout, os.Stderr))
}
