// SPDX-License-Identifier: Apache-2.0

package wat

import (
	"encoding/binary"

	"github.com/wasmplane/wasmplane/plugins/leb128"
)

func u32(v uint32) []byte { return binary.AppendUvarint(nil, uint64(v)) }

func s64(v int64) []byte { return leb128.AppendSigned(nil, v) }

func str(s []byte) []byte { return append(u32(uint32(len(s))), s...) }

func vector(items [][]byte) []byte {
	out := u32(uint32(len(items)))
	for _, i := range items {
		out = append(out, i...)
	}
	return out
}

func (a *assembler) encode() []byte {
	out := []byte("\x00asm\x01\x00\x00\x00")
	section := func(id byte, content []byte) {
		out = append(append(append(out, id), u32(uint32(len(content)))...), content...)
	}
	vec := func(id byte, items [][]byte) {
		if len(items) > 0 {
			section(id, vector(items))
		}
	}
	var types, sigs [][]byte
	for _, t := range a.types {
		types = append(types, append(append([]byte{0x60}, str(t.params)...), str(t.results)...))
	}
	for _, f := range a.funcs {
		sigs = append(sigs, u32(f.sig))
	}
	vec(1, types)
	vec(2, a.imports)
	vec(3, sigs)
	vec(4, a.tables)
	vec(5, a.mems)
	vec(6, a.globals)
	vec(7, a.exports)
	if a.start != nil {
		section(8, a.start)
	}
	vec(9, a.elems)
	if a.passive {
		section(12, u32(uint32(len(a.datas))))
	}
	vec(10, a.codes)
	vec(11, a.datas)
	section(0, append(str([]byte("name")), a.nameSection()...))
	return out
}

func (a *assembler) nameSection() []byte {
	var entries [][]byte
	for i, n := range a.named {
		if n != "" {
			entries = append(entries, append(u32(uint32(i)), str([]byte(n[1:]))...))
		}
	}
	content := vector(entries)
	return append([]byte{1}, str(content)...)
}
