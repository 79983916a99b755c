// SPDX-License-Identifier: Apache-2.0

package wasm

// Opcodes, and types, by the names of the specification: those that somebody looks at.
const (
	OpUnreachable  = 0x00
	OpBlock        = 0x02
	OpLoop         = 0x03
	OpIf           = 0x04
	OpElse         = 0x05
	OpEnd          = 0x0b
	OpBr           = 0x0c
	OpBrIf         = 0x0d
	OpBrTable      = 0x0e
	OpReturn       = 0x0f
	OpCall         = 0x10
	OpCallIndirect = 0x11
	OpLocalGet     = 0x20
	OpLocalSet     = 0x21
	OpLocalTee     = 0x22
	OpGlobalGet    = 0x23
	OpGlobalSet    = 0x24
	OpMemorySize   = 0x3f
	OpMemoryGrow   = 0x40
	OpI32Const     = 0x41
	OpI64Const     = 0x42
	OpRefFunc      = 0xd2
	OpPrefixFC     = 0xfc
	OpPrefixFD     = 0xfd

	opI32LtS     = 0x48
	OpI32LeU     = 0x4d
	OpI64LtS     = 0x53
	OpI64GtU     = 0x56
	opI32Eq      = 0x46
	OpI32LtU     = 0x49
	OpI32GtU     = 0x4b
	opI32Eqz     = 0x45
	OpI32Add     = 0x6a
	OpI32Sub     = 0x6b
	OpI64Add     = 0x7c
	OpI64Sub     = 0x7d
	OpI64Mul     = 0x7e
	OpI64Shl     = 0x86
	OpI64ShrU    = 0x88
	OpExtendI32U = 0xad

	FCMemoryInit = 8
	FCMemoryCopy = 10
	FCMemoryFill = 11
	FCTableInit  = 12
	FCTableCopy  = 14
	FCTableGrow  = 15
	FCTableFill  = 17

	TypeI32   = 0x7f
	TypeI64   = 0x7e
	TypeEmpty = 0x40
)

// Opcode reads an instruction's opcode, and what follows a prefix.
func (r *Reader) Opcode() (op byte, sub uint32) {
	op = r.Byte()
	if op == OpPrefixFC || op == OpPrefixFD {
		sub = r.U32()
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

// Weights of instructions that cost clearly more than an addition.
const (
	weightDivide       = 8
	WeightCall         = 4
	weightCallIndirect = 6
	weightGrow         = 128
)

// Immediates skips what follows opcode op (for the prefixed ones: sub) and says
// what the instruction weighs. Structure (block, end, nop, ...) weighs nothing.
func (r *Reader) Immediates(op byte, sub uint32) (weight int64) {
	switch {
	case op == 0x01 || op == OpElse || op == OpEnd || op == 0x1a: // nop, drop
		return 0
	case op == OpUnreachable || op == OpReturn || op == 0x1b:
		return 1
	case op == OpBlock:
		r.S33()
		return 0
	case op == OpLoop || op == OpIf:
		r.S33()
		return 1
	case op == OpBr || op == OpBrIf:
		r.U32()
		return 1
	case op == OpBrTable:
		for n := r.U32(); n > 0 && r.Err == nil; n-- {
			r.U32()
		}
		r.U32()
		return 2
	case op == OpCall:
		r.U32()
		return WeightCall
	case op == OpCallIndirect:
		r.U32()
		r.U32()
		return weightCallIndirect
	case op == 0x1c: // select t
		for n := r.U32(); n > 0 && r.Err == nil; n-- {
			r.Byte()
		}
		return 1
	case op >= OpLocalGet && op <= 0x26: // locals, globals, table.get, table.set
		r.U32()
		return 1
	case op >= 0x28 && op <= 0x3e:
		r.U32()
		r.leb()
		return 1
	case op == OpMemorySize:
		r.Byte()
		return 1
	case op == OpMemoryGrow: // the engine leaves compiled code for it, also where it fails
		r.Byte()
		return weightGrow
	case op == OpI32Const || op == OpI64Const:
		r.leb()
		return 1
	case op == 0x43:
		r.Skip(4)
		return 1
	case op == 0x44:
		r.Skip(8)
		return 1
	case op >= 0x45 && op <= 0xc4:
		return numericWeight(op)
	case op == 0xd0 || op == OpRefFunc:
		r.U32()
		return 1
	case op == 0xd1:
		return 1
	case op == OpPrefixFC:
		return r.immediatesFC(sub)
	case op == OpPrefixFD:
		return r.immediatesFD(sub)
	}
	r.Fail(unknown(op))
	return 0
}

func numericWeight(op byte) int64 {
	switch op {
	case 0x6d, 0x6e, 0x6f, 0x70, 0x7f, 0x80, 0x81, 0x82, 0x91, 0x95, 0x9f, 0xa3: // div, rem, sqrt
		return weightDivide
	}
	return 1
}

func (r *Reader) immediatesFC(sub uint32) int64 {
	switch {
	case sub <= 7:
		return 2
	case sub == FCMemoryInit || sub == FCTableInit || sub == FCTableCopy:
		r.U32()
		r.U32()
	case sub == FCMemoryCopy:
		r.Skip(2)
	case sub == FCMemoryFill:
		r.Skip(1)
	case sub <= FCTableFill:
		r.U32()
	default:
		r.Fail("unknown instruction")
	}
	return 4
}

func (r *Reader) immediatesFD(sub uint32) int64 {
	switch {
	case sub <= 11 || sub == 92 || sub == 93:
		r.U32()
		r.leb()
	case sub == 12 || sub == 13:
		r.Skip(16)
	case sub >= 21 && sub <= 34:
		r.Skip(1)
	case sub >= 84 && sub <= 91:
		r.U32()
		r.leb()
		r.Skip(1)
	case sub > 275:
		r.Fail("unknown instruction")
	}
	return 2
}
