// SPDX-License-Identifier: Apache-2.0

// Package coremodule reads what a core module of a component imports and exports, with the types that it has in a
// component. What the engine validates later is skipped.
package coremodule

import (
	"bytes"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/component/bytereader"
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
	m, err := Read(&bytereader.Reader{B: wasm})
	if err != nil {
		return nil, fmt.Errorf("not a valid module: %w", err)
	}
	return m, nil
}

// Read reads a module's type. The rest of it is for the engine to validate.
func Read(r *bytereader.Reader) (*ctype.Module, error) {
	if !bytes.Equal(r.Bytes(uint32(min(len(r.B), len(coreMagic)))), coreMagic) {
		return nil, fmt.Errorf("expected a version header for a module")
	}
	m := &coreReader{module: &ctype.Module{}, names: map[[2]string]bool{}}
	last := byte(0)
	for !r.Done() && r.Err == nil {
		id := r.Byte()
		c := r.Part()
		if id == 0 || r.Err != nil {
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
	return m.module, r.Err
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

func (m *coreReader) section(id byte, r *bytereader.Reader) error {
	if id > 7 {
		return nil
	}
	n := r.Count("items of a core module", bytereader.MaxCoreItems)
	for i := uint32(0); i < n && r.Err == nil; i++ {
		switch id {
		case 1:
			m.types = append(m.types, FuncForm(r))
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
	if r.Err == nil && !r.Done() {
		r.Fail("section size mismatch: bytes are left")
	}
	return r.Err
}

func (m *coreReader) add(e ctype.CoreExtern) { m.spaces[e.Sort] = append(m.spaces[e.Sort], e) }

func (m *coreReader) funcType(r *bytereader.Reader) *ctype.CoreFunc {
	i := r.U32()
	if int64(i) >= int64(len(m.types)) {
		r.Fail("unknown type %d: type index out of bounds", i)
		return nil
	}
	return m.types[i]
}

// FuncForm reads a function type with its leading byte.
func FuncForm(r *bytereader.Reader) *ctype.CoreFunc {
	if form := r.Byte(); form != 0x60 {
		r.Invalid(form, "a core function type: other core types are not supported")
		return nil
	}
	return FuncType(r)
}

// FuncType reads a function type behind its leading byte.
func FuncType(r *bytereader.Reader) *ctype.CoreFunc {
	f := &ctype.CoreFunc{}
	for n := r.Count("parameters of a core type", bytereader.MaxArity); n > 0 && r.Err == nil; n-- {
		f.Params = append(f.Params, Value(r))
	}
	for n := r.Count("results of a core type", bytereader.MaxArity); n > 0 && r.Err == nil; n-- {
		f.Results = append(f.Results, Value(r))
	}
	return f
}

// Value reads the type of a value.
func Value(r *bytereader.Reader) ctype.Core {
	c := ctype.Core(r.Byte())
	switch c {
	case ctype.I32, ctype.I64, ctype.CoreF32, ctype.CoreF64, ctype.V128, ctype.FuncRef, ctype.ExternRef:
		return c
	}
	if r.Err == nil {
		r.Invalid(byte(c), "a core value type: reference types other than funcref and externref are not supported")
	}
	return c
}

func (m *coreReader) readImport(r *bytereader.Reader) {
	i := ctype.CoreImport{Module: r.Name(), Name: r.Name()}
	switch kind := r.Byte(); kind {
	case 0:
		i.Type = ctype.CoreExtern{Sort: ctype.CoreFuncs, Func: m.funcType(r)}
	case 1, 2, 3:
		i.Type = Extern(r, kind)
	case 4:
		r.Fail("tags (exceptions) are not supported")
	default:
		r.Invalid(kind, "a core import")
	}
	key := [2]string{i.Module, i.Name}
	if m.names[key] {
		r.Fail("duplicate import name `%s:%s`", i.Module, i.Name)
	}
	m.names[key] = true
	if r.Err != nil {
		return
	}
	m.module.Imports = append(m.module.Imports, i)
	m.add(i.Type)
}

// Extern reads the type of an import or export of a kind.
func Extern(r *bytereader.Reader, kind byte) ctype.CoreExtern {
	switch kind {
	case 1:
		return readTable(r)
	case 2:
		return readMemory(r)
	}
	return readGlobal(r)
}

func (m *coreReader) readExport(r *bytereader.Reader) {
	name := r.Name()
	kind, i := r.Byte(), r.U32()
	if r.Err != nil {
		return
	}
	if kind > 4 {
		r.Fail("invalid leading byte (%#x) for a core export", kind)
		return
	}
	e, err := bytereader.Get(m.spaces[kind], i, ctype.CoreSort(kind).String())
	if err != nil {
		r.Fail("%w", err)
		return
	}
	m.module.Exports = append(m.module.Exports, ctype.CoreExport{Name: name, Type: e})
}

func readTable(r *bytereader.Reader) ctype.CoreExtern {
	e := ctype.CoreExtern{Sort: ctype.CoreTables, Value: Value(r)}
	readLimits(r, &e)
	return e
}

func readMemory(r *bytereader.Reader) ctype.CoreExtern {
	e := ctype.CoreExtern{Sort: ctype.CoreMemories}
	readLimits(r, &e)
	if most := uint64(1 << 16); r.Err == nil && !e.Wide && (e.Min > most || e.HasMax && e.Max > most) {
		r.Fail("memory size must be at most 65536 pages (4GiB)")
	}
	return e
}

func readLimits(r *bytereader.Reader, e *ctype.CoreExtern) {
	flags := r.Byte()
	if flags > 7 {
		r.Invalid(flags, "limits")
		return
	}
	e.HasMax, e.Shared, e.Wide = flags&1 != 0, flags&2 != 0, flags&4 != 0
	bits := 32
	if e.Wide {
		bits = 64
	}
	e.Min = r.Unsigned(bits)
	if e.HasMax {
		e.Max = r.Unsigned(bits)
	}
}

func readGlobal(r *bytereader.Reader) ctype.CoreExtern {
	e := ctype.CoreExtern{Sort: ctype.CoreGlobals, Value: Value(r)}
	switch mutable := r.Byte(); {
	case mutable > 1 && r.Err == nil:
		r.Invalid(mutable, "a global's mutability")
	default:
		e.Mutable = mutable == 1
	}
	return e
}

// skipConst skips a constant expression.
func skipConst(r *bytereader.Reader) {
	for r.Err == nil {
		switch op := r.Byte(); op {
		case 0x0b:
			return
		case 0x41, 0x42:
			r.Signed()
		case 0x43:
			r.Bytes(4)
		case 0x44:
			r.Bytes(8)
		case 0x23, 0xd2:
			r.U32()
		case 0xd0:
			r.S33()
		case 0xfd:
			r.U32()
			r.Bytes(16)
		case 0x6a, 0x6b, 0x6c, 0x7c, 0x7d, 0x7e: // of extended constant expressions
		default:
			if r.Err == nil {
				r.Invalid(op, "a constant expression")
			}
		}
	}
}
