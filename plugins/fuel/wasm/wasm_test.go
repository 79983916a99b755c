// SPDX-License-Identifier: Apache-2.0

package wasm_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/fuel/wasm"
)

func TestIntegersAreReadAsTheyWereWritten(t *testing.T) {
	for _, v := range []uint32{0, 1, 127, 128, 1 << 14, math.MaxUint32} {
		r := wasm.Reader{B: wasm.AppendU32(nil, v)}
		if got := r.U32(); got != v || r.Err != nil || !r.Done() {
			t.Errorf("%d is read as %d, %v", v, got, r.Err)
		}
	}
	for _, v := range []int64{0, -1, 63, 64, -64, -65, math.MaxInt32, math.MinInt32, math.MaxUint32} {
		r := wasm.Reader{B: wasm.AppendS64(nil, v)}
		if got := r.S33(); got != v || r.Err != nil || !r.Done() {
			t.Errorf("%d is read as %d, %v", v, got, r.Err)
		}
	}
	for _, data := range []string{"", "\x80", "\x80\x80\x80\x80\x80\x00", "\xff\xff\xff\xff\x1f"} {
		r := wasm.Reader{B: []byte(data)}
		if r.U32(); !errors.Is(r.Err, wasm.ErrMalformed) {
			t.Errorf("%x: %v", data, r.Err)
		}
	}
}

func TestTheFirstFailureSticks(t *testing.T) {
	r := wasm.Reader{B: wasm.AppendU32(nil, 1000)} // of a text that does not follow
	_ = r.Name()
	first := r.Err
	if first == nil || !r.Done() {
		t.Fatalf("%v", first)
	}
	r.Byte()
	r.Fail("something else")
	if !errors.Is(r.Err, first) {
		t.Errorf("%v came after %v", r.Err, first)
	}
}

func TestCountsAreBounded(t *testing.T) {
	r := wasm.Reader{B: wasm.AppendU32(nil, 11)}
	if n := r.Count("things", 10); n != 0 || r.Err == nil || !strings.Contains(r.Err.Error(), "11 things: at most 10") {
		t.Errorf("%d, %v", n, r.Err)
	}
}

// Each instruction is followed by its immediates, and these by nothing.
func TestImmediatesAreSkipped(t *testing.T) {
	for name, c := range map[string]struct {
		code   []byte
		weight int64
	}{
		"nop":              {[]byte{0x01}, 0},
		"block":            {[]byte{wasm.OpBlock, wasm.TypeEmpty}, 0},
		"br_table":         {[]byte{wasm.OpBrTable, 2, 0, 1, 0x80, 0x01}, 2},
		"call":             {[]byte{wasm.OpCall, 0x80, 0x01}, wasm.WeightCall},
		"i32.load":         {[]byte{0x28, 2, 0x80, 0x80, 0x01}, 1},
		"i64.const":        {wasm.AppendS64([]byte{wasm.OpI64Const}, math.MinInt64), 1},
		"f64.const":        {[]byte{0x44, 0, 0, 0, 0, 0, 0, 0, 0}, 1},
		"i32.div_u":        {[]byte{0x6e}, 8},
		"memory.copy":      {[]byte{wasm.OpPrefixFC, wasm.FCMemoryCopy, 0, 0}, 4},
		"table.fill":       {[]byte{wasm.OpPrefixFC, wasm.FCTableFill, 0}, 4},
		"v128.const":       {append([]byte{wasm.OpPrefixFD, 12}, make([]byte, 16)...), 2},
		"v128.load8_lane":  {[]byte{wasm.OpPrefixFD, 84, 0, 0, 3}, 2},
		"i64.add":          {[]byte{wasm.OpI64Add}, 1},
		"ref.func":         {[]byte{wasm.OpRefFunc, 5}, 1},
		"select with type": {[]byte{0x1c, 1, wasm.TypeI32}, 1},
	} {
		r := wasm.Reader{B: c.code}
		weight := r.Immediates(r.Opcode())
		if r.Err != nil || !r.Done() || weight != c.weight {
			t.Errorf("%s: weight %d, %d bytes of %d, %v", name, weight, r.Pos, len(c.code), r.Err)
		}
	}
}

func TestARefusalNamesTheFeature(t *testing.T) {
	for op, want := range map[byte]string{
		0xfe: "threads", 0x12: "tail call", 0x06: "exceptions", 0xfb: "garbage collection",
		0xff: "unknown instruction",
	} {
		r := wasm.Reader{B: []byte{op, 0}}
		r.Immediates(r.Opcode())
		if r.Err == nil || !strings.Contains(r.Err.Error(), want) {
			t.Errorf("%#x: %v, want %q", op, r.Err, want)
		}
	}
}

// Whatever the bytes are, reading ends, and within them.
func FuzzReader(f *testing.F) {
	f.Add([]byte{wasm.OpBrTable, 0xff, 0xff, 0xff, 0xff, 0x0f, 0})
	f.Fuzz(func(t *testing.T, code []byte) {
		r := wasm.Reader{B: code}
		for !r.Done() {
			before := r.Pos
			if r.Immediates(r.Opcode()); r.Err == nil && r.Pos <= before || r.Pos > len(code) {
				t.Fatalf("from %d to %d of %d", before, r.Pos, len(code))
			}
		}
	})
}
