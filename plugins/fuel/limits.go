// SPDX-License-Identifier: Apache-2.0

package fuel

import "fmt"

// Bounds of what a module may declare. An engine allocates for each of these before it
// knows what for, and a few bytes declare many. Modules that compilers make stay far below; those of Go
// have tens of thousands of data segments.
const (
	maxTypes    = 1 << 14 // function types: the engine remembers each that it has ever seen
	maxArity    = 1000    // parameters, and results, of one type
	maxArities  = 1 << 16 // the same of all types together
	maxImports  = 1 << 12
	maxGlobals  = 1 << 14
	maxExports  = 1 << 14
	maxTables   = 16
	maxElements = 1 << 14  // element segments
	maxEntries  = 1 << 20  // functions in all of them together
	maxSegments = 1 << 18  // data segments
	maxLocals   = 50_000   // of one function
	maxTargets  = 1 << 16  // of one br_table
	maxCustoms  = 1 << 10  // custom sections
	maxNames    = 16 << 20 // bytes of the name section
)

// tooMany is the error of a count above its bound.
func tooMany[N uint32 | uint64 | int](n N, what string, most int) error {
	return fmt.Errorf("%d %s: at most %d are allowed", n, what, most)
}

// count reads the length of a vector that is bounded.
func (r *reader) count(what string, most uint32) uint32 {
	n := r.u32()
	if r.err == nil && n > most {
		r.err = tooMany(n, what, int(most))
		r.pos = len(r.b)
		return 0
	}
	return n
}

// opcode reads an instruction's opcode, and what follows a prefix.
func (r *reader) opcode() (op byte, sub uint32) {
	op = r.byte()
	if op == opPrefixFC || op == opPrefixFD {
		sub = r.u32()
	}
	return op, sub
}

// unknown is the reason why an instruction is refused.
func unknown(op byte) string {
	switch {
	case op == 0xfe:
		return "an instruction of threads (build without -pthread or +atomics)"
	case op == 0xfb || op == 0xd3 || op >= 0xd4 && op <= 0xd6 || op == 0x14 || op == 0x15:
		return "an instruction of garbage collection or typed references, which are not supported"
	case op == 0x12 || op == 0x13:
		return "a tail call (build without +tail-call)"
	case op >= 0x06 && op <= 0x0a || op == 0x18 || op == 0x19 || op == 0x1f:
		return "an instruction of exceptions (build without exception handling)"
	}
	return "unknown instruction"
}

// checkMemory refuses memories that the engine does not have.
func checkMemory(flags byte) error {
	switch {
	case flags&4 != 0:
		return fmt.Errorf("%w: it has a memory of 64 bits (memory64): build it for wasm32", ErrMalformed)
	case flags&2 != 0:
		return fmt.Errorf("%w: it has a shared memory (threads): build it without -pthread or +atomics", ErrMalformed)
	case flags > 1:
		return fmt.Errorf("%w: it has a memory of an unknown kind (%d)", ErrMalformed, flags)
	}
	return nil
}
