// Package wasicmd runs policies of Kubewarden that are commands of WASI,
// unmodified: "policy.wasm validate" with the request on standard input, the answer on
// standard output, and one fresh instance for each evaluation.
//
// Host calls come by the import host.call, or, from JavaScript, by that of javy's plugin.
package wasicmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/foreign/kubewarden"
	"github.com/wasmplane/wasmplane/plugins/host"
)

// Config is what a policy runs with.
type Config struct {
	// Settings as JSON.
	Settings []byte
	// Points at which the hooks stand, by their number.
	Points map[int32]abi.Point
}

// Guest is a loaded policy.
type Guest struct {
	cfg    Config
	module *host.Module
}

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
		a.Imports = append(a.Imports, host.Import{Module: m, Name: "call", Params: 8, Result: true, Cost: 100,
			Run: func(in *host.Instance, p []uint32) uint32 { return call(in, calls, p) }})
	}
	return a
}

// New has the settings checked.
func New(ctx context.Context, m *host.Module, cfg Config) (*Guest, error) {
	g := &Guest{cfg: cfg, module: m}
	return g, m.With(ctx, func(in *host.Instance) error {
		_, err := in.StartAccount(ctx, func() error {
			answer, err := run(in, "validate-settings", cfg.Settings)
			if err != nil {
				return fmt.Errorf("have the settings checked: %w", err)
			}
			return kubewarden.CheckSettings(answer)
		})
		return err
	})
}

// Call implements point.Guest: input is the admission request.
func (g *Guest) Call(ctx context.Context, op int32, input []byte) (out []byte, u host.Usage, err error) {
	var answer []byte
	err = g.module.With(ctx, func(in *host.Instance) error {
		var err error
		u, err = in.Account(ctx, func() error {
			answer, err = run(in, "validate", kubewarden.ValidationRequest(input, g.cfg.Settings))
			return err
		})
		return err
	})
	if err != nil {
		return nil, u, err
	}
	out, err = kubewarden.Reply(g.module.Name(), answer, input, g.cfg.Points[op])
	return out, u, err
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
