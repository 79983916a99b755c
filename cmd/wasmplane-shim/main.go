// SPDX-License-Identifier: Apache-2.0

// Command wasmplane-shim is containerd's runc shim (io.containerd.runc.v2), built
// apart from the main binary: a pod's path executes it several times, and every
// execution of a large multi-call binary costs 6 ms more than one of this.
//
// It serves the task API over TTRPC and nothing else, so the registry, which
// dependencies fill at start-up, is emptied first.
//
// A container whose image is a WebAssembly module is runc's as well: its process is
// cmd/wasmplane-wasm, which the shim puts into the container beside the module. Not so in pods that have
// nothing else (runtime handler wasm-only): one shim serves all of a node, and the engine isolates itself.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
)

const runtimeName = "io.containerd.runc.v2"

func main() {
	registry.Reset()
	registry.Register(&plugin.Registration{
		Type:     plugins.TTRPCPlugin,
		ID:       "task",
		Requires: []plugin.Type{plugins.EventPlugin, plugins.InternalPlugin},
		InitFn:   newTaskService,
	})
	shim.RunShim(context.Background(), podManager{manager.NewShimManager(runtimeName)})
}

// newTaskService builds the task API from the two plugins that the shim library
// itself registers: where events go, and how the shim is told to end.
func newTaskService(ic *plugin.InitContext) (any, error) {
	p, err := ic.GetByID(plugins.EventPlugin, "publisher")
	if err != nil {
		return nil, fmt.Errorf("find the event publisher: %w", err)
	}
	publisher, ok := p.(shim.Publisher)
	if !ok {
		return nil, errors.New("the event publisher plugin is of an unknown type")
	}
	s, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
	if err != nil {
		return nil, fmt.Errorf("find the shutdown service: %w", err)
	}
	shutdowner, ok := s.(shutdown.Service)
	if !ok {
		return nil, errors.New("the shutdown service plugin is of an unknown type")
	}
	if dir, err := os.Getwd(); err == nil && filepath.Base(dir) == podsID {
		return newPodTasks(ic.Context, publisher, shutdowner)
	}
	runc, err := task.NewTaskService(ic.Context, publisher, shutdowner)
	if err != nil {
		return nil, err
	}
	return &wasmTasks{TTRPCTaskService: runc, modules: map[string]bool{}}, nil
}
