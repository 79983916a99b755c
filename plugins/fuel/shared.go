// SPDX-License-Identifier: Apache-2.0

package fuel

import "github.com/wasmplane/wasmplane/plugins/fuel/wasm"

// Names of the module that holds counter and stack budget of modules with Options.Shared.
const (
	ImportMeter   = "wasmplane:meter"
	ImportCounter = "counter"
	ImportStack   = "stack"
)

// Meter is that module: an instance of it is what the metered modules of one component share.
func Meter(stackBytes int64) []byte {
	m := &module{}
	out := append([]byte{2, wasm.TypeI64, 1, wasm.OpI64Const, 0, wasm.OpEnd, wasm.TypeI64, 1},
		wasm.AppendS64([]byte{wasm.OpI64Const}, stackBytes)...)
	m.sections[secGlobal] = append(out, wasm.OpEnd)
	exports := append(wasm.AppendName([]byte{2}, ImportCounter), 3, 0)
	m.sections[secMemory] = []byte{1, 1, 0, 0} // empty: who looks at an instance's memory finds one
	m.sections[secExport] = append(wasm.AppendName(exports, ImportStack), 3, 1)
	return m.assemble()
}

// importMeter adds the imports of a module that shares its meter with others.
func importMeter(imports []byte) []byte {
	for _, name := range []string{ImportCounter, ImportStack} {
		imports = append(wasm.AppendName(wasm.AppendName(imports, ImportMeter), name), 3, wasm.TypeI64, 1)
	}
	return imports
}

// renumberGlobal gives a global's new index: shared counters come before the module's own.
func (m *module) renumberGlobal(i uint32) uint32 {
	if m.opts.Shared && i >= m.importedGlobals {
		return i + 2
	}
	return i
}

// global renumbers the global of a global.get or global.set.
func (s *scanner) global(op byte, at, imm int) {
	t := wasm.Reader{B: s.r.B, Pos: imm}
	if i := t.U32(); s.m.renumberGlobal(i) != i {
		s.replace(at, wasm.AppendU32([]byte{op}, s.m.renumberGlobal(i)))
	}
}
