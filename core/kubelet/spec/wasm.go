// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"slices"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/runtimehandler"
)

const (
	// WasmHandler is the runtime handler under which any image may be a WebAssembly module.
	WasmHandler = runtimehandler.Wasm
	// WasmOnlyHandler is the one under which every container of a pod is a WebAssembly module.
	WasmOnlyHandler = runtimehandler.WasmOnly
	// WasmAnnotation tells the runtime's shim that a container's image is a WebAssembly module;
	// its value is the image's ID.
	WasmAnnotation = "kubelet.wasmplane.dev/wasm"
	// WasmLabel is in the configuration of an image for wasi/wasm, and has that platform, as the node's own containerd shows it.
	WasmLabel = "kubelet.wasmplane.dev/platform"
)

// asModule marks a container whose image is a WebAssembly module: by the image's platform, or,
// with the handler for it, by an entry point that is a file of that kind. An image that is a module and nothing
// else has no entry point; its first argument is a name then.
func asModule(cfg *cri.ContainerConfig, r ContainerRequest) {
	image := r.ImageConfig
	if image == nil {
		return
	}
	bare := len(cfg.Command) == 0 && len(image.Config.Entrypoint) == 0
	whole := slices.Concat(cfg.Command, whenEmpty(cfg.Command, image.Config.Entrypoint), cfg.Args, image.Config.Cmd)
	if image.Architecture == "wasm" || image.Config.Labels[WasmLabel] != "" {
		if bare && len(image.Config.Cmd) == 0 {
			cfg.Command = []string{"module.wasm"}
		}
	} else if (r.Handler != WasmHandler && r.Handler != WasmOnlyHandler) || !isModule(whole) {
		return
	}
	cfg.Annotations[WasmAnnotation] = r.ImageRef
}

func whenEmpty(command, entrypoint []string) []string {
	if len(command) > 0 {
		return nil
	}
	return entrypoint
}

// isModule says whether a command's program is a module, or a function of one.
func isModule(command []string) bool {
	if len(command) == 0 {
		return false
	}
	file, _, _ := strings.Cut(command[0], "#")
	return strings.HasSuffix(file, ".wasm")
}
