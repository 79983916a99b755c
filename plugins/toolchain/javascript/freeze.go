// SPDX-License-Identifier: Apache-2.0

package javascript

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/wasmplane/wasmplane/plugins/leb128"
)

// Sections of a module.
const (
	sectionCustom = 0
	sectionMemory = 5
	sectionGlobal = 6
	sectionExport = 7
	sectionCount  = 12
	sectionData   = 11
)

const pageSize = 64 << 10

// gap is how many zeros between two bytes of data make two segments of them: a segment costs
// some ten bytes, and time when an instance starts.
const gap = 64

// freeze makes a module whose instances begin with a memory: that of an instance that has been
// initialized. The initialiser and evaluate are exported no more, so that nobody runs them twice. A
// module's only variable besides its memory has to be the stack pointer, which is where it began
// whenever no function runs.
func freeze(module, memory []byte) ([]byte, error) {
	if len(module) < 8 || len(memory)%pageSize != 0 {
		return nil, errors.New("the runtime is no module")
	}
	segments := segmentsOf(memory)
	out := slices.Clone(module[:8])
	for rest := module[8:]; len(rest) > 0; {
		id := rest[0]
		size, n := binary.Uvarint(rest[1:])
		if n <= 0 || uint64(len(rest)-1-n) < size {
			return nil, errors.New("the runtime is no module: a section is cut off")
		}
		body := rest[1+n : 1+n+int(size)]
		rest = rest[1+n+int(size):]
		var err error
		switch id {
		case sectionCustom:
			continue
		case sectionMemory:
			body = binary.AppendUvarint([]byte{1, 0}, uint64(len(memory)/pageSize))
		case sectionGlobal:
			err = oneVariable(body)
		case sectionExport:
			body, err = withoutExports(body, "_initialize", "evaluate")
		case sectionCount:
			body = binary.AppendUvarint(nil, uint64(len(segments)))
		case sectionData:
			body = dataSection(memory, segments)
		}
		if err != nil {
			return nil, err
		}
		out = append(binary.AppendUvarint(append(out, id), uint64(len(body))), body...)
	}
	return out, nil
}

// segmentsOf are the ranges of a memory that are not zero.
func segmentsOf(memory []byte) (out [][2]int) {
	for i := 0; i < len(memory); {
		if i%8 == 0 && i+8 <= len(memory) && binary.LittleEndian.Uint64(memory[i:]) == 0 {
			i += 8
			continue
		}
		if memory[i] == 0 {
			i++
			continue
		}
		if n := len(out); n > 0 && i-out[n-1][1] < gap {
			out[n-1][1] = i + 1
		} else {
			out = append(out, [2]int{i, i + 1})
		}
		i++
	}
	return out
}

func dataSection(memory []byte, segments [][2]int) []byte {
	out := binary.AppendUvarint(nil, uint64(len(segments)))
	for _, s := range segments {
		out = append(out, 0, 0x41) // active, at i32.const
		out = leb128.AppendSigned(out, int64(s[0]))
		out = append(out, 0x0b)
		out = binary.AppendUvarint(out, uint64(s[1]-s[0]))
		out = append(out, memory[s[0]:s[1]]...)
	}
	return out
}

// oneVariable checks that a module has one mutable global at most, and reads only what C
// compilers write of them: i32.const N, end.
func oneVariable(body []byte) error {
	n, at := binary.Uvarint(body)
	variables := 0
	for range n {
		if len(body) < at+3 || body[at] != 0x7f || body[at+2] != 0x41 {
			return errors.New("the runtime has a global that is no i32.const")
		}
		variables += int(body[at+1])
		end := bytes.IndexByte(body[at+3:], 0x0b)
		if end < 0 {
			return errors.New("the runtime has a global without an end")
		}
		at += 3 + end + 1
	}
	if variables > 1 {
		return fmt.Errorf("the runtime has %d variables besides its memory, expected the stack pointer only", variables)
	}
	return nil
}

func withoutExports(body []byte, names ...string) ([]byte, error) {
	n, at := binary.Uvarint(body)
	var kept []byte
	count := uint64(0)
	for range n {
		size, k := binary.Uvarint(body[at:])
		end := at + k + int(size)
		if k <= 0 || end >= len(body) {
			return nil, errors.New("the runtime's exports are cut off")
		}
		name := string(body[at+k : end])
		_, index := binary.Uvarint(body[end+1:])
		next := end + 1 + index
		if !slices.Contains(names, name) {
			kept = append(kept, body[at:next]...)
			count++
		}
		at = next
	}
	return append(binary.AppendUvarint(nil, count), kept...), nil
}
