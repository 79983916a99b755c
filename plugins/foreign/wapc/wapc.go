// SPDX-License-Identifier: Apache-2.0

// Package wapc runs policies of Kubewarden that speak waPC, unmodified: guests
// that export __guest_call and get their operation and payload by callbacks.
//
// A policy becomes a plugin with one hook in admission. Its settings are checked
// when it is loaded; its changed object becomes a patch; what it asks its host goes
// by the grants of its entry.
package wapc

import (
	"bytes"
	"context"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/foreign/kubewarden"
	"github.com/wasmplane/wasmplane/plugins/host"
)

// ABI is how such modules are run.
func ABI(calls *kubewarden.Calls) *host.ABI {
	return &host.ABI{
		Name:    "kubewarden-wapc",
		Imports: imports(calls),
		Check: func(exports map[string]host.FuncType) error {
			want := host.NewFuncType(2, "i32")
			got, ok := exports["__guest_call"]
			if !ok {
				return fmt.Errorf("the module exports no function __guest_call: it does not speak waPC")
			}
			if !got.Equal(want) {
				return fmt.Errorf("__guest_call is %s: expected %s", got, want)
			}
			return nil
		},
		Start: start,
	}
}

// start is the order that waPC asks for.
func start(in *host.Instance) error {
	in.SetData(&call{})
	for _, name := range []string{"_start", "_initialize", "wapc_init"} {
		if !in.Has(name) {
			continue
		}
		if err := in.Start(name); err != nil {
			return err
		}
	}
	return nil
}

// call is the state of one instance: what is asked, what came back, and the last host call.
type call struct {
	operation, payload  []byte
	response, failure   []byte
	responded, failed   bool
	hostReply, hostFail []byte
}

func state(in *host.Instance) *call {
	c, _ := in.Data().(*call)
	if c == nil { // the module's start function calls: nothing is asked yet
		c = &call{}
		in.SetData(c)
	}
	return c
}

// New checks the policy's protocol and its settings.
func New(ctx context.Context, m *host.Module, cfg kubewarden.Config) (*kubewarden.Guest, error) {
	return kubewarden.NewGuest(ctx, m, cfg, kubewarden.Protocol{Ask: ask, Greet: greet, Settings: "validate_settings"})
}

func greet(in *host.Instance) error {
	protocol, err := ask(in, "protocol_version", nil)
	if err != nil {
		return fmt.Errorf("ask for the protocol: %w", err)
	}
	if v := bytes.Trim(bytes.TrimSpace(protocol), `"`); string(v) != "v1" {
		return fmt.Errorf("the policy speaks protocol %q: only v1 is spoken here", v)
	}
	return nil
}

// ask makes one call of the guest.
func ask(in *host.Instance, operation string, payload []byte) ([]byte, error) {
	if err := in.Input(len(payload)); err != nil {
		return nil, err
	}
	c := state(in)
	*c = call{operation: []byte(operation), payload: payload}
	defer func() { *c = call{} }()
	ok, err := in.Run("__guest_call", uint64(len(operation)), uint64(len(payload)))
	switch {
	case err != nil && c.failed: // guests say why before they trap: AssemblyScript's throw does
		return nil, fmt.Errorf("%w: %s", err, c.failure)
	case err != nil:
		return nil, err
	case uint32(ok) != 1 || c.failed:
		message := string(c.failure)
		if message == "" {
			message = "it failed and gave no reason"
		}
		return nil, &host.GuestError{Plugin: in.Name(), Message: operation + ": " + message}
	case !c.responded:
		return nil, &host.GuestError{Plugin: in.Name(), Message: operation + ": it gave no answer"}
	}
	return c.response, nil
}

// Bounds of what a guest passes besides answers.
const (
	longestName  = 256
	longestError = 4 << 10
)

func imports(calls *kubewarden.Calls) []host.Import {
	f := func(name string, params int, result bool, run func(in *host.Instance, p []uint32) uint32) host.Import {
		return host.Import{Module: "wapc", Name: name, Params: params, Result: result, Cost: 100, Run: run}
	}
	none := func(run func(in *host.Instance, p []uint32)) func(in *host.Instance, p []uint32) uint32 {
		return func(in *host.Instance, p []uint32) uint32 { run(in, p); return 0 }
	}
	return []host.Import{
		f("__guest_request", 2, false, none(func(in *host.Instance, p []uint32) {
			c := state(in)
			in.Put(p[0], c.operation)
			in.Put(p[1], c.payload)
		})),
		f("__guest_response", 2, false, none(func(in *host.Instance, p []uint32) {
			in.Output(p[1])
			c := state(in)
			c.response, c.responded = bytes.Clone(in.Bytes(p[0], p[1])), true
		})),
		f("__guest_error", 2, false, none(func(in *host.Instance, p []uint32) {
			c := state(in)
			c.failure, c.failed = bytes.Clone(in.Bytes(p[0], min(p[1], longestError))), true
		})),
		f("__host_call", 8, true, func(in *host.Instance, p []uint32) uint32 { return hostCall(in, calls, p) }),
		f("__host_response_len", 0, true, func(in *host.Instance, _ []uint32) uint32 { return uint32(len(state(in).hostReply)) }),
		f("__host_response", 1, false, none(func(in *host.Instance, p []uint32) { in.Put(p[0], state(in).hostReply) })),
		f("__host_error_len", 0, true, func(in *host.Instance, _ []uint32) uint32 { return uint32(len(state(in).hostFail)) }),
		f("__host_error", 1, false, none(func(in *host.Instance, p []uint32) { in.Put(p[0], state(in).hostFail) })),
		f("__console_log", 2, false, none(func(in *host.Instance, p []uint32) {
			in.Print(string(in.Bytes(p[0], min(p[1], longestError))))
		})),
	}
}

// hostCall carries out what the guest asks; 1 is success.
func hostCall(in *host.Instance, calls *kubewarden.Calls, p []uint32) uint32 {
	c := state(in)
	c.hostReply, c.hostFail = nil, nil
	if max(p[1], p[3], p[5]) > longestName {
		c.hostFail = []byte("the name of the host call is too long")
		return 0
	}
	binding, namespace, operation := string(in.Bytes(p[0], p[1])), string(in.Bytes(p[2], p[3])), string(in.Bytes(p[4], p[5]))
	reply, err := in.Ask(func(ctx context.Context, payload []byte) ([]byte, error) {
		return calls.Call(ctx, binding, namespace, operation, payload)
	}, in.Bytes(p[6], p[7]))
	if err != nil {
		c.hostFail = []byte(err.Error())
		return 0
	}
	c.hostReply = reply
	return 1
}
