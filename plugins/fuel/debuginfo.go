// SPDX-License-Identifier: Apache-2.0

package fuel

import (
	"debug/dwarf"
	"encoding/binary"
	"sort"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/fuel/wasm"
)

// hasLines says whether the module brings a line table.
func (m *module) hasLines() bool {
	for _, c := range m.customs {
		if c.name == ".debug_line" {
			return true
		}
	}
	return false
}

// rewriteCustoms keeps the name section, with functions renumbered, replaces
// DWARF by a line table of the rewritten code, and drops the rest: nothing else
// in a module means anything to a host, and all of it would be hashed and kept.
func (m *module) rewriteCustoms() {
	var kept []custom
	for _, c := range m.customs {
		if c.name == "name" {
			kept = append(kept, custom{name: "name", data: m.renameFunctions(c.data)})
		}
	}
	if m.tracing {
		kept = append(kept, m.lineTable()...)
	}
	m.customs = kept
}

// renameFunctions moves the function indices of a name section: subsections of
// functions (1), locals (2) and labels (3). A malformed one is dropped: names are a comfort.
func (m *module) renameFunctions(data []byte) []byte {
	r := &wasm.Reader{B: data}
	var out []byte
	for !r.Done() {
		id := r.Byte()
		content := r.Bytes(r.U32())
		if id == 1 || id == 2 || id == 3 {
			content = m.renameMap(content, id != 1)
		}
		if r.Err != nil || content == nil {
			return nil
		}
		out = wasm.AppendSection(out, id, content)
	}
	return out
}

func (m *module) renameMap(content []byte, indirect bool) []byte {
	r := &wasm.Reader{B: content}
	n := r.U32()
	out := wasm.AppendU32(nil, n)
	for ; n > 0 && r.Err == nil; n-- {
		out = wasm.AppendU32(out, m.renumber(r.U32()))
		at := r.Pos
		if !indirect {
			r.Name()
		} else {
			for inner := r.U32(); inner > 0 && r.Err == nil; inner-- {
				r.U32()
				r.Name()
			}
		}
		out = append(out, r.B[at:r.Pos]...)
	}
	if r.Err != nil {
		return nil
	}
	return out
}

// lineRow is one row of the line table.
type lineRow struct {
	address      int
	file         int
	line, column int
}

// lineTable builds the smallest DWARF that maps rewritten code to source lines:
// one unit over all code, with one sequence of rows.
func (m *module) lineTable() []custom {
	rows, files := m.readRows()
	if len(rows) == 0 {
		return nil
	}
	sort.SliceStable(rows, func(i, j int) bool { return rows[i].address < rows[j].address })
	end := len(m.sections[secCode]) + 1
	abbrev := []byte{1, 0x11, 0, 0x10, 0x06, 0x11, 0x01, 0x12, 0x01, 0, 0, 0}
	info := binary.LittleEndian.AppendUint16(nil, 3)
	info = binary.LittleEndian.AppendUint32(info, 0)
	info = append(info, 4, 1) // address size; the unit's abbreviation
	info = binary.LittleEndian.AppendUint32(info, 0)
	info = binary.LittleEndian.AppendUint32(info, 1) // from 1: readers take 0 for a tombstone
	info = binary.LittleEndian.AppendUint32(info, uint32(end))
	info = append(binary.LittleEndian.AppendUint32(nil, uint32(len(info))), info...)
	return []custom{
		{name: ".debug_abbrev", data: abbrev},
		{name: ".debug_info", data: info},
		{name: ".debug_line", data: lineProgram(rows, files, end)},
		{name: ".debug_str", data: []byte{0}},
	}
}

// readRows reads the author's line table and moves its addresses.
func (m *module) readRows() (rows []lineRow, files []string) {
	defer func() {
		if recover() != nil { // debug/dwarf is known to panic on some malformed input
			rows, files = nil, nil
		}
	}()
	sections := map[string][]byte{}
	for _, c := range m.customs {
		if strings.HasPrefix(c.name, ".debug_") {
			sections[c.name] = c.data
		}
	}
	d, err := dwarf.New(sections[".debug_abbrev"], nil, nil, sections[".debug_info"],
		sections[".debug_line"], nil, sections[".debug_ranges"], sections[".debug_str"])
	if err != nil {
		return nil, nil
	}
	for _, name := range []string{".debug_addr", ".debug_line_str", ".debug_str_offsets", ".debug_rnglists"} {
		if b := sections[name]; b != nil {
			if d.AddSection(name, b) != nil {
				return nil, nil
			}
		}
	}
	fileIndex := map[string]int{}
	units := d.Reader()
	for {
		unit, err := units.Next()
		if err != nil || unit == nil {
			return rows, files
		}
		units.SkipChildren()
		if unit.Tag != dwarf.TagCompileUnit {
			continue
		}
		lines, err := d.LineReader(unit)
		if err != nil || lines == nil {
			continue
		}
		var e dwarf.LineEntry
		for lines.Next(&e) == nil {
			to, ok := m.newAddress(int(e.Address))
			if !ok || e.File == nil || e.EndSequence {
				continue
			}
			i, known := fileIndex[e.File.Name]
			if !known {
				files = append(files, e.File.Name)
				i = len(files)
				fileIndex[e.File.Name] = i
			}
			rows = append(rows, lineRow{address: to, file: i, line: e.Line, column: e.Column})
		}
	}
}

// newAddress maps an offset in the old code section to one in the new.
func (m *module) newAddress(old int) (int, bool) {
	i := sort.Search(len(m.moves), func(i int) bool { return m.moves[i].from > old })
	if i == 0 || old >= len(m.sections[secCode]) {
		return 0, false
	}
	return m.moves[i-1].to + old - m.moves[i-1].from, true
}

// lineProgram encodes rows as a DWARF 2 line number program.
func lineProgram(rows []lineRow, files []string, end int) []byte {
	header := []byte{1, 1, 0xfb, 14, 10, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0}
	for _, f := range files {
		header = append(append(header, f...), 0, 0, 0, 0)
	}
	header = append(header, 0)
	out := binary.LittleEndian.AppendUint16(nil, 2)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(header)))
	out = append(out, header...)
	out = append(out, 0, 5, 2, 0, 0, 0, 0) // set address to 0
	address, line, file, column := 0, 1, 1, 0
	for _, r := range rows {
		out = wasm.AppendU32(append(out, 2), uint32(r.address-address))
		out = wasm.AppendS64(append(out, 3), int64(r.line-line))
		if r.file != file {
			out = wasm.AppendU32(append(out, 4), uint32(r.file))
		}
		if r.column != column {
			out = wasm.AppendU32(append(out, 5), uint32(r.column))
		}
		out = append(out, 1)
		address, line, file, column = r.address, r.line, r.file, r.column
	}
	out = wasm.AppendU32(append(out, 2), uint32(end-address))
	out = append(out, 0, 1, 1) // end of sequence
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(out))), out...)
}
