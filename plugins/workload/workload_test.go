// SPDX-License-Identifier: Apache-2.0

package workload_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
	"github.com/wasmplane/wasmplane/plugins/workload"
)

// program is a command that imports what it names and runs a body.
func program(t *testing.T, imports, body string) []byte {
	t.Helper()
	wasm, err := wat.Assemble(`(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  ` + imports + `
  (memory (export "memory") 1)
  (data (i32.const 100) "hello\n")
  (data (i32.const 0) "\64\00\00\00\06\00\00\00")
  (func (export "_start") ` + body + `)
  (func (export "_initialize"))
  (func (export "answer") (call $exit (i32.const 42)))
  (func (export "wants") (param i32)))`)
	if err != nil {
		t.Fatal(err)
	}
	return wasm
}

// container is a root directory with a module in it.
func container(t *testing.T, module []byte) string {
	t.Helper()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "main.wasm"), module, 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

func execute(t *testing.T, c workload.Config, args ...string) (code int, out string, err error) {
	t.Helper()
	var b bytes.Buffer
	code, err = workload.Run(t.Context(), c, args, nil, workload.Stdio{In: strings.NewReader(""), Out: &b, Err: &b})
	return code, b.String(), err
}

// TestTheProcessEndsAsTheModuleDoes: exit codes, traps, and what cannot be run, each with a reason.
func TestTheProcessEndsAsTheModuleDoes(t *testing.T) {
	hello := `(drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 50)))`
	for _, c := range []struct {
		name    string
		module  []byte
		command string
		code    int
		out     string
		problem string
	}{
		{"returns", program(t, "", hello), "/main.wasm", 0, "hello\n", ""},
		{"exits", program(t, "", hello+`(call $exit (i32.const 7))`), "main.wasm", 7, "hello\n", ""},
		{"traps", program(t, "", "unreachable"), "main.wasm", workload.ExitTrap, "", "unreachable"},
		{"a reactor's function", program(t, "", ""), "main.wasm#answer", 42, "", ""},
		{"a function that is not there", program(t, "", ""), "main.wasm#question", workload.ExitCannotRun, "", `does not export "question"`},
		{"a function with parameters", program(t, "", ""), "main.wasm#wants", workload.ExitCannotRun, "", "has parameters"},
		{"imports what nobody gives", program(t, `(import "host" "everything" (func))`, ""), "main.wasm", workload.ExitCannotRun, "", "host"},
		{"no module", []byte("#!/bin/sh"), "main.wasm", workload.ExitCannotRun, "", "is no WebAssembly module"},
		{"cut off", program(t, "", "")[:60], "main.wasm", workload.ExitCannotRun, "", "compile the module"},
		{"not there", nil, "other.wasm", workload.ExitCannotRun, "", `open the module "other.wasm"`},
		{"outside", nil, "../../../../../../etc/passwd", workload.ExitCannotRun, "", "open the module"},
		{"a directory", nil, "/", workload.ExitCannotRun, "", "not a regular file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, err := execute(t, workload.Config{Root: container(t, c.module)}, c.command)
			if code != c.code || out != c.out {
				t.Errorf("it ended with %d and printed %q, want %d and %q", code, out, c.code, c.out)
			}
			if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Errorf("the error is %v, want %q", err, c.problem)
			}
		})
	}
	if _, _, err := execute(t, workload.Config{}); err == nil || !strings.Contains(err.Error(), "no command") {
		t.Errorf("without a command: %v", err)
	}
}

// TestMemoryIsBounded: the module's memory doesn't grow past the container's limit, and one that begins beyond it
// is not run.
func TestMemoryIsBounded(t *testing.T) {
	grow := program(t, "", `(if (i32.eq (memory.grow (i32.const 100)) (i32.const -1)) (then (call $exit (i32.const 3))))`)
	for limit, want := range map[int64]int{0: 0, 100 << 16: 3, 101 << 16: 0} {
		if code, _, err := execute(t, workload.Config{Root: container(t, grow), Memory: limit}, "main.wasm"); code != want || err != nil {
			t.Errorf("with %d bytes it ended with %d (%v), want %d", limit, code, err, want)
		}
	}
	large, err := wat.Assemble(`(module (memory (export "memory") 200) (func (export "_start")))`)
	if err != nil {
		t.Fatal(err)
	}
	code, _, err := execute(t, workload.Config{Root: container(t, large), Memory: 100 << 16}, "main.wasm")
	if code != workload.ExitCannotRun || err == nil {
		t.Errorf("a module that begins with 200 pages ended with %d (%v)", code, err)
	}
}
