// SPDX-License-Identifier: Apache-2.0

package fuel

import "fmt"

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
func Inspect(wasm []byte) (*Shape, error) {
	m := &module{}
	if err := m.split(wasm); err != nil {
		return nil, err
	}
	s := &Shape{customs: m.customs}
	r := m.section(secImport)
	for n := r.count("imports", maxImports); n > 0 && r.err == nil; n-- {
		s.Imports = append(s.Imports, Import{r.name(), r.name()})
		skipImport(r)
	}
	if r.err != nil {
		return nil, r.err
	}
	r = m.section(secExport)
	for n := r.count("exports", maxExports); n > 0 && r.err == nil; n-- {
		name := r.name()
		if r.byte() == 0 {
			s.Exports = append(s.Exports, name)
		}
		r.u32()
	}
	return s, r.err
}

func skipImport(r *reader) (kind byte) {
	kind = r.byte()
	switch kind {
	case 0:
		r.u32()
	case 1:
		r.byte()
		r.limits()
	case 2:
		r.limits()
	case 3:
		r.skip(2)
	default:
		r.fail("unknown kind of import")
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
func OwnMemory(wasm []byte) ([]byte, error) {
	m := &module{}
	if err := m.split(wasm); err != nil {
		return nil, err
	}
	r := m.section(secImport)
	var kept, memory []byte
	var count uint32
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		start := r.pos
		r.name()
		r.name()
		at := r.pos
		if skipImport(r) == 2 {
			if memory != nil {
				return nil, fmt.Errorf("%w: a second memory is imported", ErrMalformed)
			}
			memory = append([]byte{1}, r.b[at+1:r.pos]...)
			continue
		}
		kept = append(kept, r.b[start:r.pos]...)
		count++
	}
	if r.err != nil || memory == nil {
		return wasm, r.err
	}
	if len(m.sections[secMemory]) > 0 && m.sections[secMemory][0] != 0 {
		return nil, fmt.Errorf("%w: a memory is imported and one is defined", ErrMalformed)
	}
	m.sections[secImport] = append(appendU32(nil, count), kept...)
	m.sections[secMemory] = memory
	if err := m.exportMemory(); err != nil {
		return nil, err
	}
	return m.assemble(), nil
}

// exportMemory adds the export "memory" where it is missing.
func (m *module) exportMemory() error {
	r := m.section(secExport)
	n := r.u32()
	start := r.pos
	for range n {
		if name := r.name(); name == "memory" || r.err != nil {
			return r.err
		}
		r.byte()
		r.u32()
	}
	if r.err != nil {
		return r.err
	}
	out := append(appendU32(nil, n+1), r.b[start:]...)
	m.sections[secExport] = appendU32(append(appendName(out, "memory"), 2), 0)
	return nil
}
