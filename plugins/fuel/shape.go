// SPDX-License-Identifier: Apache-2.0

package fuel

import (
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/fuel/wasm"
)

// Shape is what a module shows to the outside, read without compiling it.
type Shape struct {
	Imports []Import
	// Exports are the names of exported functions.
	Exports []string

	customs []custom
}

// Import is one import of a module.
type Import struct{ Module, Name string }

// Inspect reads a module's imports, exports and custom sections. It checks no more than it reads.
func Inspect(source []byte) (*Shape, error) {
	m := &module{}
	if err := m.split(source); err != nil {
		return nil, err
	}
	s := &Shape{customs: m.customs}
	r := m.section(secImport)
	for n := r.Count("imports", maxImports); n > 0 && r.Err == nil; n-- {
		s.Imports = append(s.Imports, Import{r.Name(), r.Name()})
		skipImport(r)
	}
	if r.Err != nil {
		return nil, r.Err
	}
	r = m.section(secExport)
	for n := r.Count("exports", maxExports); n > 0 && r.Err == nil; n-- {
		name := r.Name()
		if r.Byte() == 0 {
			s.Exports = append(s.Exports, name)
		}
		r.U32()
	}
	return s, r.Err
}

func skipImport(r *wasm.Reader) (kind byte) {
	kind = r.Byte()
	switch kind {
	case 0:
		r.U32()
	case 1:
		r.Byte()
		r.Limits()
	case 2:
		r.Limits()
	case 3:
		r.Skip(2)
	default:
		r.Fail("unknown kind of import")
	}
	return kind
}

// Custom is the content of the first custom section of a name; nil where there is none.
func (s *Shape) Custom(name string) []byte {
	for _, c := range s.customs {
		if c.name == name {
			return c.data
		}
	}
	return nil
}

// OwnMemory turns an imported memory into one that the module defines with the
// same bounds, and exports it as "memory". Nothing else changes: a memory has the
// number 0 either way. A module without an imported memory stays as it is.
func OwnMemory(source []byte) ([]byte, error) {
	m := &module{}
	if err := m.split(source); err != nil {
		return nil, err
	}
	r := m.section(secImport)
	var kept, memory []byte
	var count uint32
	for n := r.U32(); n > 0 && r.Err == nil; n-- {
		start := r.Pos
		r.Name()
		r.Name()
		at := r.Pos
		if skipImport(r) == 2 {
			if memory != nil {
				return nil, fmt.Errorf("%w: a second memory is imported", wasm.ErrMalformed)
			}
			memory = append([]byte{1}, r.B[at+1:r.Pos]...)
			continue
		}
		kept = append(kept, r.B[start:r.Pos]...)
		count++
	}
	if r.Err != nil || memory == nil {
		return source, r.Err
	}
	if len(m.sections[secMemory]) > 0 && m.sections[secMemory][0] != 0 {
		return nil, fmt.Errorf("%w: a memory is imported and one is defined", wasm.ErrMalformed)
	}
	m.sections[secImport] = append(wasm.AppendU32(nil, count), kept...)
	m.sections[secMemory] = memory
	if err := m.exportMemory(); err != nil {
		return nil, err
	}
	return m.assemble(), nil
}

// exportMemory adds the export "memory" where it is missing.
func (m *module) exportMemory() error {
	r := m.section(secExport)
	n := r.U32()
	start := r.Pos
	for range n {
		if name := r.Name(); name == "memory" || r.Err != nil {
			return r.Err
		}
		r.Byte()
		r.U32()
	}
	if r.Err != nil {
		return r.Err
	}
	out := append(wasm.AppendU32(nil, n+1), r.B[start:]...)
	m.sections[secExport] = wasm.AppendU32(append(wasm.AppendName(out, "memory"), 2), 0)
	return nil
}
