// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// A module answers within its budgets. One that asks for more is cut off, and the error
// says which budget it was.
func ExampleHost() {
	ctx := context.Background()
	h, err := host.New(ctx, host.Config{InProcess: true}) // a server compiles in a child process
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Close()
	// Operation 1 answers the input, every other one never ends.
	wasm, err := wat.Assemble(`(module
		(memory (export "memory") 2)
		(func (export "describe") (result i64) (i64.const 0))
		(func (export "alloc") (param i32) (result i32) (i32.const 65536))
		(func (export "call") (param $op i32) (param $at i32) (param $n i32) (result i64)
			(if (i32.ne (local.get $op) (i32.const 1)) (then (loop $l (br $l))))
			(i64.or (i64.shl (i64.extend_i32_u (local.get $at)) (i64.const 32)) (i64.extend_i32_u (local.get $n)))))`)
	if err != nil {
		fmt.Println(err)
		return
	}
	m, err := h.Compile(ctx, wasm, host.Options{Name: "echo", Limits: host.Limits{Fuel: 1_000_000, Deadline: time.Minute}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	out, _, err := m.Call(ctx, 1, []byte("hello"))
	fmt.Println(string(out), err)
	_, _, err = m.Call(ctx, 2, nil)
	var fault *host.Fault
	fmt.Println(errors.As(err, &fault) && fault.Kind == host.Fuel)
	// Output:
	// hello <nil>
	// true
}
