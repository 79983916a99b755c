// SPDX-License-Identifier: Apache-2.0

// Package wasicmd runs policies of Kubewarden that are commands of WASI,
// unmodified: "policy.wasm validate" with the request on standard input, the answer on
// standard output, and one fresh instance for each evaluation.
//
// Host calls come by the import host.call, or, from JavaScript, by that of javy's plugin.
package wasicmd

import (
	"context"
	"errors"

	"github.com/wasmplane/wasmplane/plugins/foreign/kubewarden"
	"github.com/wasmplane/wasmplane/plugins/host"
)

// Modules are the names under which guests import the host's one function.
var modules = [...]string{"host", "kubewarden:javy/host"}

// ABI is how such modules are run.
func ABI(calls *kubewarden.Calls) *host.ABI {
	a := &host.ABI{
		Name: "kubewarden-wasi", Command: true,
		Check: func(exports map[string]host.FuncType) error {
			if start, ok := exports["_start"]; !ok || !start.Equal(host.NewFuncType(0)) {
				return errors.New("the module exports no function _start: it is no command")
			}
			return nil
		},
	}
	for _, m := range modules {
		a.Imports = append(a.Imports, host.Import{
			Module: m, Name: "call", Params: 8, Result: true, Cost: 100,
			Run: func(in *host.Instance, p []uint32) uint32 { return call(in, calls, p) },
		})
	}
	return a
}

// New has the settings checked.
func New(ctx context.Context, m *host.Module, cfg kubewarden.Config) (*kubewarden.Guest, error) {
	return kubewarden.NewGuest(ctx, m, cfg, kubewarden.Protocol{Ask: run, Settings: "validate-settings"})
}

func run(in *host.Instance, verb string, stdin []byte) ([]byte, error) {
	return in.Command([]string{"policy.wasm", verb}, stdin)
}

// longestName bounds the names of a host call.
const longestName = 256

// call is host.call: binding, namespace, operation and payload, each as address and
// length; 0 is success. The reply, or the error's text, is what standard input holds from then on.
func call(in *host.Instance, calls *kubewarden.Calls, p []uint32) uint32 {
	if max(p[1], p[3], p[5]) > longestName {
		in.SetStdin([]byte("the name of the host call is too long"))
		return 1
	}
	binding, namespace, operation := string(in.Bytes(p[0], p[1])), string(in.Bytes(p[2], p[3])), string(in.Bytes(p[4], p[5]))
	reply, err := in.Ask(func(ctx context.Context, payload []byte) ([]byte, error) {
		return calls.Call(ctx, binding, namespace, operation, payload)
	}, in.Bytes(p[6], p[7]))
	if err != nil {
		in.SetStdin([]byte(err.Error()))
		return 1
	}
	in.SetStdin(reply)
	return 0
}
