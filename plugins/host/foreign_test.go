// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
)

// echoABI is an ABI like those of other projects: an import that takes a pointer,
// one that calls the guest back, one that asks the host.
func echoABI() *host.ABI {
	return &host.ABI{
		Name: "echo",
		Imports: []host.Import{
			{Module: "env", Name: "say", Params: 2, Run: func(in *host.Instance, p []uint32) uint32 {
				in.SetData(string(in.Bytes(p[0], p[1])))
				return 0
			}},
			{Module: "env", Name: "again", Params: 1, Result: true, Run: func(in *host.Instance, p []uint32) uint32 {
				out, err := in.Run("back", uint64(p[0]))
				if err != nil {
					in.Abort(err)
				}
				return uint32(out)
			}},
			{Module: "env", Name: "flood", Result: true, Run: func(_ *host.Instance, _ []uint32) uint32 {
				return 1
			}},
		},
		ImportedMemory: true,
		Start: func(in *host.Instance) error {
			if in.Has("_start") {
				return in.Start("_start")
			}
			return nil
		},
		Check: func(exports map[string]host.FuncType) error {
			if !exports["run"].Equal(host.NewFuncType(0, "i32")) {
				return fmt.Errorf("run is %s", exports["run"])
			}
			return nil
		},
	}
}

func runEcho(t *testing.T, source string, limits host.Limits) (value uint64, said any, usage host.Usage, err error) {
	t.Helper()
	m := load(t, newHost(t, false), assemble(t, source), host.Options{ABI: echoABI(), Limits: limits})
	err = m.With(t.Context(), func(in *host.Instance) error {
		var err error
		usage, err = in.Account(t.Context(), func() error {
			value, err = in.Run("run")
			return err
		})
		said = in.Data()
		return err
	})
	return value, said, usage, err
}

func TestForeignModule(t *testing.T) {
	value, said, usage, err := runEcho(t, `(module
		(import "env" "memory" (memory 1))
		(import "env" "say" (func $say (param i32 i32)))
		(import "env" "again" (func $again (param i32) (result i32)))
		(data (i32.const 64) "hello")
		(func (export "back") (param i32) (result i32) (i32.add (local.get 0) (i32.const 1)))
		(func (export "run") (result i32)
			(call $say (i32.wrap_i64 (i64.const 0x7700000040)) (i32.const 5))
			(call $again (i32.const 41))))`, host.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if value != 42 || said != "hello" || usage.Fuel == 0 {
		t.Errorf("run = %d, said %v, usage %+v", value, said, usage)
	}
}

// TestTheFirstCallHasTheStartUpsBudget: a module that does once what it needs gets to its second
// call, which has the budget of calls; and the error names the limit that would have to be raised.
func TestTheFirstCallHasTheStartUpsBudget(t *testing.T) {
	const source = `(module (memory (export "memory") 1) (global $spin (mut i32) (i32.const %d))
		(func (export "run") (result i32) (local $i i32)
			(local.set $i (global.get $spin)) (global.set $spin (i32.const %d))
			(loop $l (br_if $l (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))
			(i32.const 0)))`
	for name, c := range map[string]struct {
		first, second int
		want          [2]string
	}{
		"a large first call":     {500_000, 1, [2]string{}},
		"a larger first call":    {50_000_000, 1, [2]string{"used up its fuel of 11000000 units (limits.startFuel)"}},
		"a large second call":    {500_000, 500_000, [2]string{"", "used up its fuel of 1000000 units (limits.fuel)"}},
		"nothing out of the way": {1, 1, [2]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			m := load(t, newHost(t, false), assemble(t, fmt.Sprintf(source, c.first, c.second)), host.Options{
				Name: "x", ABI: echoABI(), Limits: host.Limits{Instances: 1, Fuel: 1_000_000, StartFuel: 10_000_000, Deadline: time.Minute},
			})
			for i, want := range c.want {
				err := m.With(t.Context(), func(in *host.Instance) error {
					_, err := in.Account(t.Context(), func() error { _, err := in.Run("run"); return err })
					return err
				})
				if want != "" {
					wantFault(t, err, host.Fuel, want)
					break
				}
				if err != nil {
					t.Fatalf("call %d: %v", i+1, err)
				}
			}
		})
	}
}

func TestForeignModuleRefused(t *testing.T) {
	for name, c := range map[string]struct{ source, want string }{
		"unknown import": {`(module (import "env" "other" (func)) (memory (export "memory") 1) (func (export "run") (result i32) (i32.const 0)))`, "env.other, which modules of ABI echo are not given"},
		"wrong import":   {`(module (import "env" "say" (func (param i32))) (memory (export "memory") 1) (func (export "run") (result i32) (i32.const 0)))`, "env.say with other parameters"},
		"our host call":  {`(module (import "wasmplane" "call" (func (param i32 i32 i32 i32 i32 i32) (result i64))) (memory (export "memory") 1) (func (export "run") (result i32) (i32.const 0)))`, "wasmplane.call"},
		"wrong export":   {`(module (memory (export "memory") 1) (func (export "run") (param i32)))`, "run is (i32)"},
		"no memory":      {`(module (func (export "run") (result i32) (i32.const 0)))`, `no memory named "memory"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newHost(t, true).Compile(t.Context(), assemble(t, c.source), host.Options{Name: "x", ABI: echoABI()})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestHostileForeignModule(t *testing.T) {
	const head = `(module (import "env" "memory" (memory 1))
		(import "env" "say" (func $say (param i32 i32)))
		(import "env" "again" (func $again (param i32) (result i32)))
		(import "env" "flood" (func $flood (result i32)))
		(import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))`
	for name, c := range map[string]struct {
		source string
		want   host.Kind
	}{
		"pointer outside":           {`(func (export "run") (result i32) (call $say (i32.const 65535) (i32.const 2)) (i32.const 0))`, host.BadPointer},
		"pointer that wraps around": {`(func (export "run") (result i32) (call $say (i32.const -4) (i32.const 8)) (i32.const 0))`, host.BadPointer},
		"endless loop":              {`(func (export "run") (result i32) (loop $l (br $l)) (i32.const 0))`, host.Fuel},
		"host call flood":           {`(func (export "run") (result i32) (loop $l (br_if $l (call $flood))) (i32.const 0))`, host.Fuel},
		"re-entry":                  {`(func (export "back") (param i32) (result i32) (call $again (i32.const 1))) (func (export "run") (result i32) (call $again (i32.const 1)))`, host.Refused},
		"nested endless loop":       {`(func (export "back") (param i32) (result i32) (loop $l (br $l)) (i32.const 0)) (func (export "run") (result i32) (call $again (i32.const 1)))`, host.Fuel},
		"nested trap":               {`(func (export "back") (param i32) (result i32) (unreachable)) (func (export "run") (result i32) (call $again (i32.const 1)))`, host.Trap},
		"no such export":            {`(func (export "run") (result i32) (call $again (i32.const 1)))`, host.Refused},
		"exit":                      {`(func (export "run") (result i32) (call $exit (i32.const 3)) (i32.const 0))`, host.Exit},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, _, err := runEcho(t, head+c.source+")", host.Limits{StartFuel: 1_000_000, Fuel: 1_000_000, Deadline: time.Minute})
			var f *host.Fault
			if !errors.As(err, &f) || f.Kind != c.want {
				t.Errorf("error %v, want %s", err, c.want)
			}
		})
	}
}

// A main function that ends in exit(0) leaves a module that is still of use.
func TestStartThatExits(t *testing.T) {
	const source = `(module (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
		(memory (export "memory") 1)
		(global $ready (mut i32) (i32.const 0))
		(func (export "_start") (global.set $ready (i32.const 7)) (call $exit (i32.const %d)) (unreachable))
		(func (export "run") (result i32) (global.get $ready)))`
	if value, _, _, err := runEcho(t, fmt.Sprintf(source, 0), host.Limits{}); err != nil || value != 7 {
		t.Errorf("run = %d, %v", value, err)
	}
	if _, _, _, err := runEcho(t, fmt.Sprintf(source, 1), host.Limits{}); err == nil || !strings.Contains(err.Error(), "exited with code 1") {
		t.Errorf("error %v", err)
	}
}

// reader is a command that prints its second argument, its input and, to standard
// error, a line; then it exits with what its first byte of input is as a digit.
const reader = `(module
	(import "wasi_snapshot_preview1" "args_sizes_get" (func $sizes (param i32 i32) (result i32)))
	(import "wasi_snapshot_preview1" "args_get" (func $args (param i32 i32) (result i32)))
	(import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
	(import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
	(import "wasi_unstable" "proc_exit" (func $exit (param i32)))
	(memory (export "memory") 1)
	(global $runs (mut i32) (i32.const 0))
	(func $print (param $at i32) (param $n i32)
		(i32.store (i32.const 0) (local.get $at)) (i32.store (i32.const 4) (local.get $n))
		(drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))))
	(func (export "_start")
		(if (global.get $runs) (then (unreachable)))
		(global.set $runs (i32.const 1))
		(drop (call $sizes (i32.const 16) (i32.const 20)))
		(drop (call $args (i32.const 32) (i32.const 128)))
		(call $print (i32.load (i32.const 36)) (i32.const 3))
		(i32.store (i32.const 0) (i32.const 1024)) (i32.store (i32.const 4) (i32.const 4))
		(loop $more
			(drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 12)))
			(if (i32.load (i32.const 12)) (then
				(call $print (i32.const 1024) (i32.load (i32.const 12)))
				(i32.store (i32.const 0) (i32.const 1024)) (i32.store (i32.const 4) (i32.const 4))
				(br $more))))
		(call $exit (i32.sub (i32.load8_u (i32.const 1024)) (i32.const 48)))))`

func TestCommand(t *testing.T) {
	m := load(t, newHost(t, false), assemble(t, reader),
		host.Options{ABI: &host.ABI{Name: "command", Command: true}, Limits: host.Limits{Output: 64}})
	run := func(input string) (out []byte, err error) {
		err = m.With(t.Context(), func(in *host.Instance) error {
			_, err := in.Account(t.Context(), func() error {
				out, err = in.Command([]string{"p", "abc"}, []byte(input))
				return err
			})
			return err
		})
		return out, err
	}
	for range 3 { // each time in a fresh instance: the second run of one would trap
		if out, err := run("00001"); err == nil || string(out) != "abc00001" {
			t.Errorf("%q, %v", out, err)
		}
		if out, err := run("0000"); err != nil || string(out) != "abc0000" {
			t.Errorf("%q, %v", out, err)
		}
	}
	_, err := run(strings.Repeat("x", 65))
	var f *host.Fault
	if !errors.As(err, &f) || f.Kind != host.OutputSize {
		t.Errorf("error %v", err)
	}
	_, err = run("2")
	if !errors.As(err, &f) || f.Kind != host.Exit || f.ExitCode != 2 {
		t.Errorf("error %v", err)
	}
}
