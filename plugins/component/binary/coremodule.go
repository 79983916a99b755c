// SPDX-License-Identifier: Apache-2.0

package binary

import (
	"bytes"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

var coreMagic = []byte("\x00asm\x01\x00\x00\x00")

// coreReader reads what a core module imports and exports.
type coreReader struct {
	types  []*ctype.CoreFunc
	spaces [5][]ctype.CoreExtern // by sort
	module *ctype.Module
	names  map[[2]string]bool // of imports
}

// Module reads what a core module imports and exports. The rest of it is not looked at.
func Module(wasm []byte) (*ctype.Module, error) {
	m, err := readCoreModule(&reader{b: wasm})
	if err != nil {
		return nil, fmt.Errorf("not a valid module: %w", err)
	}
	return m, nil
}

// readCoreModule reads a module's type. The rest of it is for the engine to validate.
func readCoreModule(r *reader) (*ctype.Module, error) {
	if !bytes.Equal(r.bytes(uint32(min(len(r.b), len(coreMagic)))), coreMagic) {
		return nil, fmt.Errorf("expected a version header for a module")
	}
	m := &coreReader{module: &ctype.Module{}, names: map[[2]string]bool{}}
	last := byte(0)
	for !r.done() && r.err == nil {
		id := r.byte()
		c := r.part()
		if id == 0 || r.err != nil {
			continue
		}
		order := sectionOrder(id)
		if order == 0 {
			return nil, fmt.Errorf("malformed section id: %d", id)
		}
		if order <= last {
			return nil, fmt.Errorf("section out of order: %d", id)
		}
		last = order
		if err := m.section(id, c); err != nil {
			return nil, err
		}
	}
	return m.module, r.err
}

// sectionOrder is the place of a section among the others; the count of data segments stands before code.
func sectionOrder(id byte) byte {
	switch {
	case id == 12:
		return 19
	case id == 13: // tags
		return 11
	case id >= 1 && id <= 5:
		return id * 2
	case id >= 6 && id <= 11:
		return id * 2
	}
	return 0
}

func (m *coreReader) section(id byte, r *reader) error {
	if id > 7 {
		return nil
	}
	n := r.count("items of a core module", maxCoreItems)
	for i := uint32(0); i < n && r.err == nil; i++ {
		switch id {
		case 1:
			m.types = append(m.types, readFuncForm(r))
		case 2:
			m.readImport(r)
		case 3:
			f := m.funcType(r)
			m.add(ctype.CoreExtern{Sort: ctype.CoreFuncs, Func: f})
		case 4:
			m.add(readTable(r))
		case 5:
			m.add(readMemory(r))
		case 6:
			m.add(readGlobal(r))
			skipConst(r)
		case 7:
			m.readExport(r)
		}
	}
	if r.err == nil && !r.done() {
		r.fail("section size mismatch: bytes are left")
	}
	return r.err
}

func (m *coreReader) add(e ctype.CoreExtern) { m.spaces[e.Sort] = append(m.spaces[e.Sort], e) }

func (m *coreReader) funcType(r *reader) *ctype.CoreFunc {
	i := r.u32()
	if int64(i) >= int64(len(m.types)) {
		r.fail("unknown type %d: type index out of bounds", i)
		return nil
	}
	return m.types[i]
}

// readFuncForm reads a function type with its leading byte.
func readFuncForm(r *reader) *ctype.CoreFunc {
	if form := r.byte(); form != 0x60 {
		r.invalid(form, "a core function type: other core types are not supported")
		return nil
	}
	return readFuncType(r)
}

func readFuncType(r *reader) *ctype.CoreFunc {
	f := &ctype.CoreFunc{}
	for n := r.count("parameters of a core type", maxArity); n > 0 && r.err == nil; n-- {
		f.Params = append(f.Params, readCoreValue(r))
	}
	for n := r.count("results of a core type", maxArity); n > 0 && r.err == nil; n-- {
		f.Results = append(f.Results, readCoreValue(r))
	}
	return f
}

func readCoreValue(r *reader) ctype.Core {
	c := ctype.Core(r.byte())
	switch c {
	case ctype.I32, ctype.I64, ctype.CoreF32, ctype.CoreF64, ctype.V128, ctype.FuncRef, ctype.ExternRef:
		return c
	}
	if r.err == nil {
		r.invalid(byte(c), "a core value type: reference types other than funcref and externref are not supported")
	}
	return c
}

func (m *coreReader) readImport(r *reader) {
	i := ctype.CoreImport{Module: r.name(), Name: r.name()}
	switch kind := r.byte(); kind {
	case 0:
		i.Type = ctype.CoreExtern{Sort: ctype.CoreFuncs, Func: m.funcType(r)}
	case 1, 2, 3:
		i.Type = readCoreExtern(r, kind)
	case 4:
		r.fail("tags (exceptions) are not supported")
	default:
		r.invalid(kind, "a core import")
	}
	key := [2]string{i.Module, i.Name}
	if m.names[key] {
		r.fail("duplicate import name `%s:%s`", i.Module, i.Name)
	}
	m.names[key] = true
	if r.err != nil {
		return
	}
	m.module.Imports = append(m.module.Imports, i)
	m.add(i.Type)
}

func readCoreExtern(r *reader, kind byte) ctype.CoreExtern {
	switch kind {
	case 1:
		return readTable(r)
	case 2:
		return readMemory(r)
	}
	return readGlobal(r)
}

func (m *coreReader) readExport(r *reader) {
	name := r.name()
	kind, i := r.byte(), r.u32()
	if r.err != nil {
		return
	}
	if kind > 4 {
		r.fail("invalid leading byte (%#x) for a core export", kind)
		return
	}
	e, err := get(m.spaces[kind], i, ctype.CoreSort(kind).String())
	if err != nil {
		r.fail("%w", err)
		return
	}
	m.module.Exports = append(m.module.Exports, ctype.CoreExport{Name: name, Type: e})
}

func readTable(r *reader) ctype.CoreExtern {
	e := ctype.CoreExtern{Sort: ctype.CoreTables, Value: readCoreValue(r)}
	readLimits(r, &e)
	return e
}

func readMemory(r *reader) ctype.CoreExtern {
	e := ctype.CoreExtern{Sort: ctype.CoreMemories}
	readLimits(r, &e)
	if most := uint64(1 << 16); r.err == nil && !e.Wide && (e.Min > most || e.HasMax && e.Max > most) {
		r.fail("memory size must be at most 65536 pages (4GiB)")
	}
	return e
}

func readLimits(r *reader, e *ctype.CoreExtern) {
	flags := r.byte()
	if flags > 7 {
		r.invalid(flags, "limits")
		return
	}
	e.HasMax, e.Shared, e.Wide = flags&1 != 0, flags&2 != 0, flags&4 != 0
	bits := 32
	if e.Wide {
		bits = 64
	}
	e.Min = r.unsigned(bits)
	if e.HasMax {
		e.Max = r.unsigned(bits)
	}
}

func readGlobal(r *reader) ctype.CoreExtern {
	e := ctype.CoreExtern{Sort: ctype.CoreGlobals, Value: readCoreValue(r)}
	switch mutable := r.byte(); {
	case mutable > 1 && r.err == nil:
		r.invalid(mutable, "a global's mutability")
	default:
		e.Mutable = mutable == 1
	}
	return e
}

// skipConst skips a constant expression.
func skipConst(r *reader) {
	for r.err == nil {
		switch op := r.byte(); op {
		case 0x0b:
			return
		case 0x41, 0x42:
			r.signed()
		case 0x43:
			r.bytes(4)
		case 0x44:
			r.bytes(8)
		case 0x23, 0xd2:
			r.u32()
		case 0xd0:
			r.s33()
		case 0xfd:
			r.u32()
			r.bytes(16)
		case 0x6a, 0x6b, 0x6c, 0x7c, 0x7d, 0x7e: // of extended constant expressions
		default:
			if r.err == nil {
				r.invalid(op, "a constant expression")
			}
		}
	}
}

// signed skips a signed number of at most 64 bits.
func (r *reader) signed() {
	for range 10 {
		if r.byte() < 0x80 {
			return
		}
	}
	r.fail("integer too large")
}
