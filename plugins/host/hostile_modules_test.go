// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
)

// uleb writes a number as sections do.
func uleb(v uint64) []byte { return binary.AppendUvarint(nil, v) }

// section writes a section whose length is what it says, or what it lies.
func section(id byte, length uint64, content ...byte) []byte {
	return append(append([]byte{id}, uleb(length)...), content...)
}

func module(sections ...[]byte) []byte {
	return append([]byte("\x00asm\x01\x00\x00\x00"), bytes.Join(sections, nil)...)
}

// TestHostileModulesAreRefused: binaries that would keep the reader, the validator
// or the compiler busy, or have them take memory, end in an error at once. The ones
// that would be expensive to compile are in TestCompileBombsAreRefused.
func TestHostileModulesAreRefused(t *testing.T) {
	h := newHost(t, false)
	idle := `(func $run (param i32 i32) (result i64) (i64.const 0))`
	valid := assemble(t, guest(idle))
	types := section(1, 4, 1, 0x60, 0, 0)
	for _, c := range []struct {
		name string
		wasm []byte
	}{
		{"nothing at all", nil},
		{"a text", []byte("#!/bin/sh\nexit 0\n")},
		{"four letters", []byte("\x00asm")},
		{"another version", []byte("\x00asm\x02\x00\x00\x00")},
		{"a component", []byte("\x00asm\x0d\x00\x01\x00")},
		{"a section that is longer than the file", module(section(1, 1<<31, 1, 0x60))},
		{"a length of ten bytes", module([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})},
		{"a length that never ends", module(append([]byte{1}, bytes.Repeat([]byte{0x80}, 100)...))},
		{"four billion types", module(section(1, 5, 0xff, 0xff, 0xff, 0xff, 0x0f))},
		{"four billion functions", module(types, section(3, 5, 0xff, 0xff, 0xff, 0xff, 0x0f))},
		{"four billion imports", module(section(2, 5, 0xff, 0xff, 0xff, 0xff, 0x0f))},
		{"four billion globals", module(section(6, 5, 0xff, 0xff, 0xff, 0xff, 0x0f))},
		{"four billion exports", module(section(7, 5, 0xff, 0xff, 0xff, 0xff, 0x0f))},
		{"four billion elements", module(section(9, 5, 0xff, 0xff, 0xff, 0xff, 0x0f))},
		{"four billion data segments", module(section(11, 5, 0xff, 0xff, 0xff, 0xff, 0x0f))},
		{"a data count without data", module(section(12, 5, 0xff, 0xff, 0xff, 0xff, 0x0f))},
		{"a table of four billion", module(section(4, 8, 1, 0x70, 0, 0xff, 0xff, 0xff, 0xff, 0x0f))},
		{"a memory of four billion pages", module(section(5, 7, 1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f))},
		{"a shared memory", module(section(5, 4, 1, 3, 1, 1))},
		{"a memory of 64 bits", module(section(5, 3, 1, 4, 1))},
		{"two memories", module(section(5, 5, 2, 0, 1, 0, 1))},
		{"a section twice", module(types, types)},
		{"sections out of order", module(section(3, 2, 1, 0), types)},
		{"a section that nobody knows", module(section(14, 1, 0))},
		{"a name that is no UTF-8", module(section(2, 8, 1, 1, 0xff, 1, 'x', 0, 0, 0))},
		{"a function without a body", module(types, section(3, 2, 1, 0))},
		{"a body without a function", module(types, section(10, 4, 1, 2, 0, 0x0b))},
		{"a body that is longer than its section", module(types, section(3, 2, 1, 0), section(10, 4, 1, 0x7f, 0, 0x0b))},
		{"a body without an end", module(types, section(3, 2, 1, 0), section(10, 5, 1, 3, 0, 1, 1))},
		{"four billion locals", module(types, section(3, 2, 1, 0), section(10, 11, 1, 9, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x7f, 0x0b, 0x0b))},
		{"locals that add up to too many", module(types, section(3, 2, 1, 0), section(10, 17, 1, 15, 2, 0xff, 0xff, 0xff, 0xff, 0x07, 0x7f, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x7f, 0x0b, 0x0b, 0x0b))},
		{"an instruction of threads", module(types, section(3, 2, 1, 0), section(10, 8, 1, 6, 0, 0xfe, 0x03, 0x00, 0x0b, 0x0b))},
		{"an instruction of garbage collection", module(types, section(3, 2, 1, 0), section(10, 7, 1, 5, 0, 0xfb, 0x00, 0x00, 0x0b))},
		{"a tail call", module(types, section(3, 2, 1, 0), section(10, 6, 1, 4, 0, 0x12, 0, 0x0b))},
		{"a type that is a function of nobody", module(types, section(3, 2, 1, 9), section(10, 4, 1, 2, 0, 0x0b))},
		{"a start function that does not exist", module(types, section(8, 1, 5))},
		{"a global that holds itself", module(section(6, 6, 1, 0x7f, 0, 0x23, 0, 0x0b))},
		{"a value of the wrong type", assemble(t, guest(`(func $run (param i32 i32) (result i64) (local.get 0))`))},
		{"a call that lacks a value", assemble(t, guest(`(func $run (param i32 i32) (result i64) (call $run (i32.const 1)))`))},
		{"an import that no plugin is given", assemble(t, importing(`(import "wasi_snapshot_preview1" "fd_nothing" (func (param i32) (result i32)))`, idle))},
		{"an import of another's memory", module(section(2, 8, 1, 1, 'e', 1, 'm', 2, 0, 1))},
		{"an import of a global", module(section(2, 8, 1, 1, 'e', 1, 'g', 3, 0x7f, 0))},
		{"an import of a table", module(section(2, 9, 1, 1, 'e', 1, 't', 1, 0x70, 0, 1))},
		{"another thing of the host's name", assemble(t, guest(idle+`(func $yield) (export "wasmplane:fuel" (func $yield))`))},
		{"exports by the thousand of one name", assemble(t, guest(idle+strings.Repeat(`(export "call" (func $run))`, 3)))},
		{"half of a good module", valid[:len(valid)/2]},
		{"a good module and rubbish", append(bytes.Clone(valid), "rubbish"...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := processorTime(t)
			m, err := h.Compile(t.Context(), c.wasm, host.Options{Name: "hostile"})
			if err == nil {
				_ = m.Close()
				t.Fatal("it was taken")
			}
			if took := processorTime(t) - before; took > 10*time.Second {
				t.Errorf("the refusal took %s of processor time", took)
			}
		})
	}
}

// TestATruncatedModuleIsNeverTaken, wherever a download broke off.
func TestATruncatedModuleIsNeverTaken(t *testing.T) {
	h := newHost(t, false)
	valid := assemble(t, guest(`(func $run (param i32 i32) (result i64) (i64.const 0))`))
	names := bytes.LastIndex(valid, []byte("name")) // what is behind the code may be left out
	for n := range names - 3 {
		if m, err := h.Compile(t.Context(), valid[:n], host.Options{Name: "hostile"}); err == nil {
			_ = m.Close()
			t.Errorf("%d of %d bytes were taken", n, len(valid))
		}
	}
}

// TestCustomSectionsThatLieDoNoHarm: names and line tables are for messages; a
// module whose names make no sense runs, and says less where it fails.
func TestCustomSectionsThatLieDoNoHarm(t *testing.T) {
	h := newHost(t, false)
	fails := assemble(t, guest(`(func $run (param i32 i32) (result i64) unreachable)`))
	custom := func(name string, content ...byte) []byte {
		return section(0, uint64(1+len(name)+len(content)), append(append(uleb(uint64(len(name))), name...), content...)...)
	}
	for _, lie := range [][]byte{
		custom("name", 1, 0xff, 0xff, 0xff, 0xff, 0x0f),
		custom("name", 1, 5, 1, 0xff, 0xff, 0xff, 0xff, 0x0f),
		custom("name", bytes.Repeat([]byte{0xff}, 1000)...),
		custom(".debug_line", bytes.Repeat([]byte{0x7f}, 1000)...),
		append(custom(".debug_info", 0xff, 0xff, 0xff, 0x7f, 4, 0), custom(".debug_abbrev", 1, 0x11, 1)...),
		append(custom(".debug_line", 0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), custom(".debug_str", 0)...),
		custom("sourceMappingURL", []byte("file:///etc/passwd")...),
	} {
		stripped := fails[:bytes.LastIndex(fails, []byte("\x04name"))-2]
		m, err := h.Compile(t.Context(), append(bytes.Clone(stripped), lie...), host.Options{Name: "hostile"})
		if err != nil {
			continue // refused is fine too
		}
		_, _, err = m.Call(t.Context(), 1, nil)
		wantFault(t, err, host.Trap, "unreachable")
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
