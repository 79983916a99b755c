// SPDX-License-Identifier: Apache-2.0

package fuel

// The opcodes that the rewriter looks at; all others are copied.
const (
	opUnreachable  = 0x00
	opBlock        = 0x02
	opLoop         = 0x03
	opIf           = 0x04
	opElse         = 0x05
	opEnd          = 0x0b
	opBr           = 0x0c
	opBrIf         = 0x0d
	opBrTable      = 0x0e
	opReturn       = 0x0f
	opCall         = 0x10
	opCallIndirect = 0x11
	opLocalGet     = 0x20
	opLocalSet     = 0x21
	opLocalTee     = 0x22
	opGlobalGet    = 0x23
	opGlobalSet    = 0x24
	opMemorySize   = 0x3f
	opMemoryGrow   = 0x40
	opI32Const     = 0x41
	opI64Const     = 0x42
	opRefFunc      = 0xd2
	opPrefixFC     = 0xfc
	opPrefixFD     = 0xfd

	opI32LtS     = 0x48
	opI32LeU     = 0x4d
	opI64LtS     = 0x53
	opI64GtU     = 0x56
	opI32Eq      = 0x46
	opI32LtU     = 0x49
	opI32GtU     = 0x4b
	opI32Eqz     = 0x45
	opI32Add     = 0x6a
	opI32Sub     = 0x6b
	opI64Add     = 0x7c
	opI64Sub     = 0x7d
	opI64Mul     = 0x7e
	opI64Shl     = 0x86
	opI64ShrU    = 0x88
	opExtendI32U = 0xad

	fcMemoryInit = 8
	fcMemoryCopy = 10
	fcMemoryFill = 11
	fcTableInit  = 12
	fcTableCopy  = 14
	fcTableGrow  = 15
	fcTableFill  = 17

	typeI32   = 0x7f
	typeI64   = 0x7e
	typeEmpty = 0x40
)

// Weights of instructions that cost clearly more than an addition.
const (
	weightDivide       = 8
	weightCall         = 4
	weightCallIndirect = 6
	weightGrow         = 128
)

// immediates skips what follows opcode op (for the prefixed ones: sub) and says
// what the instruction weighs. Structure (block, end, nop, ...) weighs nothing.
func (r *reader) immediates(op byte, sub uint32) (weight int64) {
	switch {
	case op == 0x01 || op == opElse || op == opEnd || op == 0x1a: // nop, drop
		return 0
	case op == opUnreachable || op == opReturn || op == 0x1b:
		return 1
	case op == opBlock:
		r.s33()
		return 0
	case op == opLoop || op == opIf:
		r.s33()
		return 1
	case op == opBr || op == opBrIf:
		r.u32()
		return 1
	case op == opBrTable:
		for n := r.u32(); n > 0 && r.err == nil; n-- {
			r.u32()
		}
		r.u32()
		return 2
	case op == opCall:
		r.u32()
		return weightCall
	case op == opCallIndirect:
		r.u32()
		r.u32()
		return weightCallIndirect
	case op == 0x1c: // select t
		for n := r.u32(); n > 0 && r.err == nil; n-- {
			r.byte()
		}
		return 1
	case op >= opLocalGet && op <= 0x26: // locals, globals, table.get, table.set
		r.u32()
		return 1
	case op >= 0x28 && op <= 0x3e:
		r.u32()
		r.leb()
		return 1
	case op == opMemorySize:
		r.byte()
		return 1
	case op == opMemoryGrow: // the engine leaves compiled code for it, also where it fails
		r.byte()
		return weightGrow
	case op == opI32Const || op == opI64Const:
		r.leb()
		return 1
	case op == 0x43:
		r.skip(4)
		return 1
	case op == 0x44:
		r.skip(8)
		return 1
	case op >= 0x45 && op <= 0xc4:
		return numericWeight(op)
	case op == 0xd0 || op == opRefFunc:
		r.u32()
		return 1
	case op == 0xd1:
		return 1
	case op == opPrefixFC:
		return r.immediatesFC(sub)
	case op == opPrefixFD:
		return r.immediatesFD(sub)
	}
	r.fail(unknown(op))
	return 0
}

func numericWeight(op byte) int64 {
	switch op {
	case 0x6d, 0x6e, 0x6f, 0x70, 0x7f, 0x80, 0x81, 0x82, 0x91, 0x95, 0x9f, 0xa3: // div, rem, sqrt
		return weightDivide
	}
	return 1
}

func (r *reader) immediatesFC(sub uint32) int64 {
	switch {
	case sub <= 7:
		return 2
	case sub == fcMemoryInit || sub == fcTableInit || sub == fcTableCopy:
		r.u32()
		r.u32()
	case sub == fcMemoryCopy:
		r.skip(2)
	case sub == fcMemoryFill:
		r.skip(1)
	case sub <= fcTableFill:
		r.u32()
	default:
		r.fail("unknown instruction")
	}
	return 4
}

func (r *reader) immediatesFD(sub uint32) int64 {
	switch {
	case sub <= 11 || sub == 92 || sub == 93:
		r.u32()
		r.leb()
	case sub == 12 || sub == 13:
		r.skip(16)
	case sub >= 21 && sub <= 34:
		r.skip(1)
	case sub >= 84 && sub <= 91:
		r.u32()
		r.leb()
		r.skip(1)
	case sub > 275:
		r.fail("unknown instruction")
	}
	return 2
}
