// SPDX-License-Identifier: Apache-2.0

package link

import (
	"encoding/binary"
	"fmt"

	"github.com/tetratelabs/wazero/api"

	"github.com/wasmplane/wasmplane/plugins/component/ctype"
	"github.com/wasmplane/wasmplane/plugins/leb128"
)

// The engine copies a module's active data segments into memory whenever it makes an instance: 11 MB of CPython's heap for a
// guest in Python. So they are taken out of the module, and written here instead, or not at all where the host has mapped an
// image of memories that hold them (Config.Filled). A segment that is left empty behaves as one that has been
// written, which the specification drops.

// maxSegments bounds what is remembered of a program's data; the engine looks after the rest as before.
const maxSegments = 1 << 17

// segment is an active data segment.
type segment struct {
	offset  []byte // a constant expression that constant has accepted
	content []byte
}

// data is what a core module writes into its memory when it is instantiated.
type data struct {
	active  []segment
	section []byte // takes the place of the module's own; empty = none does
	own     bool   // it is left to the engine, as it cannot be read here
	start   bool   // the module has a start function, before which its data has to be there
}

// early says whether the data may be written after the engine has made the instance, as none of its code has run then.
func (d *data) early() bool { return !d.own && !d.start }

// readData finds the data segments of a module whose type is known. What is not understood is left to the engine,
// with its errors.
func readData(wasm []byte, t *ctype.Module, most int) *data {
	d := &data{}
	var section, count []byte
	memory := false
	for _, i := range t.Imports {
		memory = memory || i.Type.Sort == ctype.CoreMemories
	}
	for w := (walker{b: wasm, at: 8}); w.at < len(wasm); {
		id := wasm[w.at]
		w.at++
		size := w.number()
		from := w.at
		if w.skip(size); w.failed {
			d.own = true
			return d
		}
		switch content := wasm[from:w.at]; id {
		case 5:
			memory = memory || len(content) > 0 && content[0] != 0
		case 8:
			d.start = true
		case 11:
			section = content
		case 12:
			count = content
		}
	}
	if len(section) == 0 || d.start {
		d.own = len(section) > 0
		return d
	}
	d.own = !memory || !d.read(section, count, offsets(t), most)
	return d
}

// offsets says, for each global that a module imports, whether it may be part of a segment's offset.
func offsets(t *ctype.Module) []bool {
	var out []bool
	for _, i := range t.Imports {
		if i.Type.Sort == ctype.CoreGlobals {
			out = append(out, i.Type.Value == ctype.I32 && !i.Type.Mutable)
		}
	}
	return out
}

// read takes the section apart; count is the section of its count, which a module without instructions for segments may lack.
func (d *data) read(section, count []byte, globals []bool, most int) bool {
	w := walker{b: section}
	n := w.number()
	if w.failed || n > uint64(most) {
		return false
	}
	rest := binary.AppendUvarint(nil, n)
	for range n {
		flags := w.number()
		if flags > 2 || flags == 2 && w.number() != 0 {
			return false
		}
		from := w.at
		if flags != 1 && !w.constant(globals) {
			return false
		}
		offset := section[min(from, w.at):w.at]
		size := w.number()
		from = w.at
		if w.skip(size); w.failed {
			return false
		}
		content := section[from:w.at]
		if flags == 1 {
			rest = append(binary.AppendUvarint(append(rest, 1), size), content...)
			continue
		}
		d.active = append(d.active, segment{offset, content})
		rest = append(rest, 1, 0)
	}
	if c := (walker{b: count}); count != nil && (c.number() != n || c.failed || c.at != len(count)) || w.at != len(section) {
		return false
	}
	if count != nil {
		d.section = rest
	}
	return true
}

// constant skips an expression that value32 can work out: numbers, immutable globals that are imported, and what adds them.
func (w *walker) constant(globals []bool) bool {
	for depth := 0; !w.failed && w.at < len(w.b); {
		op := w.b[w.at]
		w.at++
		switch op {
		case opI32Const:
			if w.signed(); w.failed {
				return false
			}
			depth++
		case opGlobalGet:
			if i := w.number(); w.failed || i >= uint64(len(globals)) || !globals[i] {
				return false
			}
			depth++
		case opAdd, opSub, opMul:
			if depth--; depth < 1 {
				return false
			}
		case opEnd:
			return depth == 1
		default:
			return false
		}
	}
	return false
}

const (
	opEnd       = 0x0b
	opGlobalGet = 0x23
	opI32Const  = 0x41
	opAdd       = 0x6a
	opSub       = 0x6b
	opMul       = 0x6c
)

// value32 works out a constant expression; global answers the value of an imported one.
func value32(expr []byte, global func(i uint64) uint32) uint32 {
	var stack []uint32
	w := walker{b: expr}
	for w.at < len(expr) {
		op := expr[w.at]
		w.at++
		n := len(stack)
		switch op {
		case opI32Const:
			stack = append(stack, w.signed())
		case opGlobalGet:
			stack = append(stack, global(w.number()))
		case opAdd:
			stack = append(stack[:n-2], stack[n-2]+stack[n-1])
		case opSub:
			stack = append(stack[:n-2], stack[n-2]-stack[n-1])
		case opMul:
			stack = append(stack[:n-2], stack[n-2]*stack[n-1])
		}
	}
	return stack[0]
}

// signed reads a number of 32 bits with a sign.
func (w *walker) signed() uint32 {
	v, n, err := leb128.Signed(w.b[w.at:], 32)
	if err != nil {
		w.failed = true
	}
	w.at += n
	return uint32(v)
}

// write puts the data of a core instance into its memory.
func (in *Instance) write(of int, mod api.Module) error {
	s := &in.linked.program.sites[of]
	global := func(i uint64) uint32 {
		from := s.globals[i]
		return uint32(in.mods[from.site].ExportedGlobal(from.name).Get())
	}
	for i, d := range s.data.active {
		at := value32(d.offset, global)
		if !mod.Memory().Write(at, d.content) {
			return fmt.Errorf("data[%d]: out of bounds memory access: %d bytes at %#x, in a memory of %d bytes", i, len(d.content), at,
				mod.Memory().Size())
		}
	}
	return nil
}

// untouched is how many core instances are made before code of the guest runs, or the engine writes data itself.
func (p *Program) untouched() int {
	for i := range p.sites {
		if !p.sites[i].data.early() {
			return i
		}
	}
	return len(p.sites)
}

// Data is how many bytes the core modules write into memory before code of the guest runs.
func (p *Program) Data() (bytes int64) {
	for _, s := range p.sites[:p.untouched()] {
		for _, d := range s.data.active {
			bytes += int64(len(d.content))
		}
	}
	return bytes
}
