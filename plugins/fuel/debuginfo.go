// SPDX-License-Identifier: Apache-2.0

package fuel

import (
	"sort"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/fuel/linetable"
	"github.com/wasmplane/wasmplane/plugins/fuel/wasm"
)

// hasLines says whether the module brings a line table.
func (m *module) hasLines() bool {
	for _, c := range m.customs {
		if c.name == linetable.Section {
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
		dwarf := map[string][]byte{}
		for _, c := range m.customs {
			if strings.HasPrefix(c.name, linetable.Prefix) {
				dwarf[c.name] = c.data
			}
		}
		for _, s := range linetable.Rewrite(dwarf, m.newAddress, len(m.sections[secCode])+1) {
			kept = append(kept, custom{name: s.Name, data: s.Data})
		}
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

// newAddress maps an offset in the old code section to one in the new.
func (m *module) newAddress(old int) (int, bool) {
	i := sort.Search(len(m.moves), func(i int) bool { return m.moves[i].from > old })
	if i == 0 || old >= len(m.sections[secCode]) {
		return 0, false
	}
	return m.moves[i-1].to + old - m.moves[i-1].from, true
}
