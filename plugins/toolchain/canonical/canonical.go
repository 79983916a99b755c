// SPDX-License-Identifier: Apache-2.0

// Package canonical makes adapters by which a module of the plugin ABI (sdk/spec) becomes a component of the world "plugin"
// (sdk/wit), whatever it was written in: between what such a module exports and the functions of the world stands
// one adapter, between its import wasmplane.call and the world's host function another one. A module for WASI 0.1 gets that of
// package adapt too.
//
// The world "plugin" has no node table: what the module exports for one is not exported by the component.
package canonical

import (
	_ "embed"

	"github.com/wasmplane/wasmplane/plugins/component/adapt"
	"github.com/wasmplane/wasmplane/plugins/component/coremodule"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
	"github.com/wasmplane/wasmplane/plugins/component/encode"
)

//go:embed exports.wat
var exports string

//go:embed host.wat
var host string

const (
	hostModule = "wasmplane" // that modules import the host's function from
	hostImport = `(import "wasmplane:plugin/host@1.0.0" "call" (func $host (param i32 i32 i32 i32 i32)))` + "\n"
	hostPages  = 1024 // of memory, for a host function's input and reply
)

// Adapters returns those that a module needs for a component. A module whose bindings were made for a world of its own, or
// by an SDK for components, gets that for WASI alone, and only if it imports WASI 0.1.
func Adapters(module []byte) ([]encode.Adapter, error) {
	core, err := coremodule.Module(module)
	if err != nil {
		return nil, err
	}
	memory, err := adapt.Memory()
	if err != nil {
		return nil, err
	}
	out := []encode.Adapter{memory}
	wasi, is, err := adapt.Preview1(module)
	if err != nil {
		return nil, err
	}
	if is {
		out = append(out, wasi)
	}
	for _, i := range core.Imports {
		if i.Module == hostModule {
			a, err := adapt.WithOwnMemory(hostModule, hostImport, host, hostPages)
			if err != nil {
				return nil, err
			}
			out = append(out, a)
			break
		}
	}
	if ofPluginABI(core) {
		a, err := adapt.Assemble("", exports)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	if len(out) == 1 { // nothing reads the module's memory
		return nil, nil
	}
	return out, nil
}

// ofPluginABI says whether a module exports the functions of sdk/spec.
func ofPluginABI(m *ctype.Module) bool {
	call := m.Export("call")
	return m.Export("alloc") != nil && call != nil && call.Sort == ctype.CoreFuncs && len(call.Func.Results) == 1 &&
		call.Func.Results[0] == ctype.I64
}
