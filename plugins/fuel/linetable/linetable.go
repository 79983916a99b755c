// SPDX-License-Identifier: Apache-2.0

// Package linetable carries the lines of a module's source over to its rewritten code: it reads the DWARF that a compiler
// wrote, moves its addresses, and writes the little of it that an engine names lines by.
package linetable

import (
	"debug/dwarf"
	"encoding/binary"
	"sort"

	"github.com/wasmplane/wasmplane/plugins/fuel/wasm"
)

// Prefix is how the names of custom sections with DWARF begin; Section is the one that has lines.
const (
	Prefix  = ".debug_"
	Section = ".debug_line"
)

// Custom is a custom section of a module.
type Custom struct {
	Name string
	Data []byte
}

// row is one row of the line table.
type row struct {
	address      int
	file         int
	line, column int
}

// Rewrite builds the smallest DWARF that maps rewritten code to source lines: one unit over all code, which ends before end, with one
// sequence of rows. move says where the code at an old address is now. What cannot be read gives nothing: lines are a comfort.
func Rewrite(sections map[string][]byte, move func(old int) (int, bool), end int) []Custom {
	rows, files := read(sections, move)
	if len(rows) == 0 {
		return nil
	}
	sort.SliceStable(rows, func(i, j int) bool { return rows[i].address < rows[j].address })
	abbrev := []byte{1, 0x11, 0, 0x10, 0x06, 0x11, 0x01, 0x12, 0x01, 0, 0, 0}
	info := binary.LittleEndian.AppendUint16(nil, 3)
	info = binary.LittleEndian.AppendUint32(info, 0)
	info = append(info, 4, 1) // address size; the unit's abbreviation
	info = binary.LittleEndian.AppendUint32(info, 0)
	info = binary.LittleEndian.AppendUint32(info, 1) // from 1: readers take 0 for a tombstone
	info = binary.LittleEndian.AppendUint32(info, uint32(end))
	info = append(binary.LittleEndian.AppendUint32(nil, uint32(len(info))), info...)
	return []Custom{
		{Name: ".debug_abbrev", Data: abbrev},
		{Name: ".debug_info", Data: info},
		{Name: ".debug_line", Data: program(rows, files, end)},
		{Name: ".debug_str", Data: []byte{0}},
	}
}

// read reads the author's line table and moves its addresses.
func read(sections map[string][]byte, move func(old int) (int, bool)) (rows []row, files []string) {
	defer func() {
		if recover() != nil { // debug/dwarf is known to panic on some malformed input
			rows, files = nil, nil
		}
	}()
	d, err := dwarf.New(sections[".debug_abbrev"], nil, nil, sections[".debug_info"],
		sections[Section], nil, sections[".debug_ranges"], sections[".debug_str"])
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
			to, ok := move(int(e.Address))
			if !ok || e.File == nil || e.EndSequence {
				continue
			}
			i, known := fileIndex[e.File.Name]
			if !known {
				files = append(files, e.File.Name)
				i = len(files)
				fileIndex[e.File.Name] = i
			}
			rows = append(rows, row{address: to, file: i, line: e.Line, column: e.Column})
		}
	}
}

// program encodes rows as a DWARF 2 line number program.
func program(rows []row, files []string, end int) []byte {
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
