// SPDX-License-Identifier: Apache-2.0

package fuel

import "slices"

// Functions that the rewriter adds where the module needs them.
const (
	helperCopy = iota
	helperFill
	helperGrow
	helperCount
)

// Costs of bulk operations.
const (
	chunk         = 1 << 16 // bytes that one memory.fill or memory.copy moves at once
	shortBulk     = 1 << 10 // bytes up to which a memory.fill or memory.copy of constant length stays as it is, paid for by its block
	bytesPerUnit  = 4       // log2 of the bytes that one unit of fuel moves
	fuelPerPage   = 4096    // of memory.grow: the host may have to have its pages made
	frameBase     = 64      // estimated bytes of a frame without locals
	frameBodyPart = 4       // a frame may spill: one byte for so many of code
)

// counter and stack are the globals behind the module's own, or behind those that it imports.
func (m *module) counter() uint32 {
	if m.opts.Shared {
		return m.importedGlobals
	}
	return m.globals
}

func (m *module) stack() uint32 { return m.counter() + 1 }

// helper returns the index of a helper function, which is then emitted. Helpers
// that are not used have an index too, so that indices don't depend on order.
func (m *module) helper(h int) uint32 {
	m.helpers[helperCopy], m.helpers[helperFill], m.helpers[helperGrow] = true, true, true
	return m.imported + 1 + uint32(len(m.funcTypes)) + uint32(h)
}

// large says whether a data segment is copied in chunks.
func (m *module) large(segment uint32) bool {
	return int(segment) < len(m.data) && m.data[segment] > chunk
}

// initHelper returns the index of the helper that copies from a data segment.
func (m *module) initHelper(segment uint32) uint32 {
	at := slices.Index(m.inits, segment)
	if at < 0 {
		at = len(m.inits)
		m.inits = append(m.inits, segment)
	}
	return m.helper(helperCount) + uint32(at)
}

func (m *module) helperType(h int) uint32 {
	if h == helperGrow {
		return m.typeIndex([]byte{0x60, 1, typeI32, 1, typeI32})
	}
	return m.typeIndex([]byte{0x60, 3, typeI32, typeI32, typeI32, 0})
}

// get and set write the reading of the counter and the writing of what is on the
// stack to it, where this function keeps it.
func (s *scanner) get(out []byte) []byte {
	if s.held {
		return appendU32(append(out, opLocalGet), s.counter)
	}
	return appendU32(append(out, opGlobalGet), s.m.counter())
}

func (s *scanner) set(out []byte) []byte {
	if s.held {
		return appendU32(append(out, opLocalSet), s.counter)
	}
	return appendU32(append(out, opGlobalSet), s.m.counter())
}

// save and load move a counter that is held between its local and the global.
func (s *scanner) save(out []byte) []byte {
	return appendU32(append(s.get(out), opGlobalSet), s.m.counter())
}

func (s *scanner) load(out []byte) []byte {
	return s.set(appendU32(append(out, opGlobalGet), s.m.counter()))
}

// charge takes weight from the counter, and looks at it in the way of the piece.
func (s *scanner) charge(out []byte, weight int64, check checkKind) []byte {
	if check == loopHeader {
		// if and br, not br_if: the compiler makes one instruction of the comparison.
		out = append(s.get(out), opI64Const, 0, opI64LtS, opIf, typeEmpty, opBr, 2, opEnd)
	}
	out = appendS64(append(s.get(out), opI64Const), weight)
	out = s.set(append(out, opI64Sub))
	if check == checked {
		return s.check(out)
	}
	return out
}

// check calls the host where the counter is below zero.
func (s *scanner) check(out []byte) []byte {
	out = append(s.get(out), opI64Const, 0, opI64LtS, opIf, typeEmpty)
	return append(s.callHost(append(out, opI32Const, Yield)), opEnd)
}

// callHost calls the host with the reason that is on the stack.
func (s *scanner) callHost(out []byte) []byte {
	if s.held {
		out = s.save(out)
	}
	out = appendU32(append(out, opCall), s.m.imported)
	if s.held {
		out = s.load(out)
	}
	return out
}

// chargeSized charges the i32 on top of the stack, and leaves it there.
func (s *scanner) chargeSized(out []byte, shift int) []byte {
	scratch := s.counter
	if s.held {
		scratch++
	}
	out = appendU32(append(out, opLocalSet), scratch)
	out = s.get(out)
	out = append(appendU32(append(out, opLocalGet), scratch), opExtendI32U)
	out = append(appendS64(append(out, opI64Const), int64(shift)), opI64ShrU)
	out = s.check(s.set(append(out, opI64Sub)))
	return appendU32(append(out, opLocalGet), scratch)
}

// enterFrame takes a frame from the stack budget and weight from the counter, and
// looks at both at once.
func (s *scanner) enterFrame(out []byte, frame, weight int64) []byte {
	out = appendU32(append(out, opGlobalGet), s.m.stack())
	out = appendS64(append(out, opI64Const), frame)
	out = appendU32(append(out, opI64Sub, opGlobalSet), s.m.stack())
	out = s.get(s.charge(out, weight, unchecked))
	out = appendU32(append(out, opGlobalGet), s.m.stack())
	out = append(out, 0x84 /* i64.or */, opI64Const, 0, opI64LtS, opIf, typeEmpty)
	// Which of the two it was: 1 (Overflow) where the stack is below zero, else 0 (Yield).
	out = appendU32(append(out, opGlobalGet), s.m.stack())
	return append(s.callHost(append(out, opI64Const, 0, opI64LtS)), opEnd)
}

func (m *module) leaveFrame(out []byte, frame int64) []byte {
	out = appendU32(append(out, opGlobalGet), m.stack())
	out = appendS64(append(out, opI64Const), frame)
	return appendU32(append(out, opI64Add, opGlobalSet), m.stack())
}

// appendBlockType writes the type of a block that takes nothing and leaves results.
func (m *module) appendBlockType(out []byte, results []byte) []byte {
	switch len(results) {
	case 0:
		return append(out, typeEmpty)
	case 1:
		return append(out, results[0])
	}
	t := append(appendU32([]byte{0x60, 0}, uint32(len(results))), results...)
	return appendS64(out, int64(m.typeIndex(t)))
}

// rewriteCode edits every body, and adds the helpers.
func (m *module) rewriteCode() error {
	if len(m.bodies) == 0 {
		return nil
	}
	m.tracing = m.hasLines()
	s := &scanner{m: m}
	var code, body []byte
	for i, b := range m.bodies {
		if m.leaves[i] > 0 {
			code = m.copyLeaf(code, i, b)
			continue
		}
		t := m.types[m.funcTypes[i]]
		if err := s.scan(b, t.params, m.loops[i]); err != nil {
			return err
		}
		m.oldBase, m.pending = m.bodyAt[i], len(m.moves)
		body = s.emit(body[:0], m.frames[i], t.results)
		code = appendU32(code, uint32(len(body)))
		m.rebase(len(code))
		code = append(code, body...)
	}
	n := uint32(len(m.bodies))
	for h := range m.helpers {
		if m.helpers[h] {
			body := m.helperBody(h)
			code = append(appendU32(code, uint32(len(body))), body...)
			n++
		}
	}
	for _, segment := range m.inits {
		body := m.initBody(segment)
		code = append(appendU32(code, uint32(len(body))), body...)
		n++
	}
	count := appendU32(nil, n)
	for i := range m.moves {
		m.moves[i].to += len(count)
	}
	m.sections[secCode] = append(count, code...)
	return nil
}

// copyLeaf writes the body of a function that its callers pay for.
func (m *module) copyLeaf(code []byte, i int, body []byte) []byte {
	code = appendU32(code, uint32(len(body)))
	m.oldBase, m.pending = m.bodyAt[i], len(m.moves)
	m.moved(0, 0)
	m.rebase(len(code))
	return append(code, body...)
}

// moved notes where an instruction went, as offsets in the old and the new body.
func (m *module) moved(from, to int) {
	if m.tracing {
		m.moves = append(m.moves, move{from: m.oldBase + from, to: to})
	}
}

// rebase turns the moves of the body just emitted into offsets in the code section.
func (m *module) rebase(newBase int) {
	for i := m.pending; i < len(m.moves); i++ {
		m.moves[i].to += newBase
	}
}

func (m *module) helperBody(h int) []byte {
	switch h {
	case helperCopy:
		return m.copyBody()
	case helperFill:
		return m.fillBody()
	default:
		return m.growBody()
	}
}

// asm joins instructions, for the three bodies below.
func asm(parts ...any) []byte {
	var out []byte
	for _, p := range parts {
		switch v := p.(type) {
		case int:
			out = append(out, byte(v))
		case []byte:
			out = append(out, v...)
		}
	}
	return out
}

func i32c(v int64) []byte { return appendS64([]byte{opI32Const}, v) }
func i64c(v int64) []byte { return appendS64([]byte{opI64Const}, v) }

// growBody: grow as asked; a growth that worked is paid for by the page.
func (m *module) growBody() []byte {
	counter := appendU32(nil, m.counter())
	return asm(1, 1, typeI32, // local 1: result
		opLocalGet, 0, opMemoryGrow, 0, opLocalTee, 1, i32c(-1), 0x47 /* i32.ne */, opIf, typeEmpty,
		opGlobalGet, counter, opLocalGet, 0, opExtendI32U, i64c(fuelPerPage), opI64Mul, opI64Sub, opGlobalSet, counter,
		(&scanner{m: m}).check(nil),
		opEnd,
		opLocalGet, 1, opEnd)
}

// outOfBounds leaves whether address local + length local is behind the memory's end.
func outOfBounds(address, length int) []byte {
	return asm(opLocalGet, address, opExtendI32U, opLocalGet, length, opExtendI32U, opI64Add,
		opMemorySize, 0, opExtendI32U, i64c(16), opI64Shl, opI64GtU)
}

// fillBody: dst 0, value 1, length 2. The whole length is paid for before the
// first chunk; what is out of bounds is left to the original instruction, which traps before it
// writes anything.
func (m *module) fillBody() []byte {
	fill := asm(opLocalGet, 0, opLocalGet, 1, opLocalGet, 2, opPrefixFC, fcMemoryFill, 0)
	return asm(0,
		m.chunkCharge(),
		outOfBounds(0, 2), opIf, typeEmpty, fill, opReturn, opEnd,
		opBlock, typeEmpty, opLoop, typeEmpty,
		opLocalGet, 2, i32c(chunk), opI32LeU, opBrIf, 1,
		opLocalGet, 0, opLocalGet, 1, i32c(chunk), opPrefixFC, fcMemoryFill, 0,
		opLocalGet, 0, i32c(chunk), opI32Add, opLocalSet, 0,
		m.nextChunk(),
		opBr, 0, opEnd, opEnd,
		fill, opEnd)
}

// copyBody: dst 0, src 1, length 2. Chunks go forward where dst lies before src
// and backward elsewhere, so that overlapping ranges come out right.
func (m *module) copyBody() []byte {
	whole := asm(opLocalGet, 0, opLocalGet, 1, opLocalGet, 2, opPrefixFC, fcMemoryCopy, 0, 0)
	forward := asm(
		opLoop, typeEmpty,
		opLocalGet, 2, i32c(chunk), opI32GtU, opIf, typeEmpty,
		opLocalGet, 0, opLocalGet, 1, i32c(chunk), opPrefixFC, fcMemoryCopy, 0, 0,
		opLocalGet, 0, i32c(chunk), opI32Add, opLocalSet, 0,
		opLocalGet, 1, i32c(chunk), opI32Add, opLocalSet, 1,
		m.nextChunk(),
		opBr, 1, opEnd, opEnd,
		whole, opReturn)
	backward := asm(
		opLoop, typeEmpty,
		opLocalGet, 2, i32c(chunk), opI32GtU, opIf, typeEmpty,
		m.nextChunk(),
		opLocalGet, 0, opLocalGet, 2, opI32Add, opLocalGet, 1, opLocalGet, 2, opI32Add, i32c(chunk), opPrefixFC, fcMemoryCopy, 0, 0,
		opBr, 1, opEnd, opEnd,
		whole)
	return asm(0,
		m.chunkCharge(),
		outOfBounds(0, 2), outOfBounds(1, 2), 0x72 /* i32.or */, opIf, typeEmpty, whole, opReturn, opEnd,
		opLocalGet, 0, opLocalGet, 1, opI32LtU, opIf, typeEmpty, forward, opEnd,
		backward, opEnd)
}

// initBody: dst 0, src 1, length 2. The last chunk goes first: where it is within
// the memory and the segment, so are all others, and else nothing has been written yet.
func (m *module) initBody(segment uint32) []byte {
	instruction := asm(opPrefixFC, fcMemoryInit, appendU32(nil, segment), 0)
	whole := asm(opLocalGet, 0, opLocalGet, 1, opLocalGet, 2, instruction)
	return asm(0,
		m.chunkCharge(),
		outOfBounds(0, 2),
		opLocalGet, 1, opExtendI32U, opLocalGet, 2, opExtendI32U, opI64Add, i64c(int64(m.data[segment])), opI64GtU,
		0x72 /* i32.or */, opIf, typeEmpty, whole, opReturn, opEnd,
		opLoop, typeEmpty,
		opLocalGet, 2, i32c(chunk), opI32GtU, opIf, typeEmpty,
		m.nextChunk(),
		opLocalGet, 0, opLocalGet, 2, opI32Add, opLocalGet, 1, opLocalGet, 2, opI32Add, i32c(chunk), instruction,
		opBr, 1, opEnd, opEnd,
		whole, opEnd)
}

// chunkCharge pays for the first chunk, or for all where it is no more than that.
func (m *module) chunkCharge() []byte {
	counter := appendU32(nil, m.counter())
	return asm(
		opGlobalGet, counter,
		opLocalGet, 2, i32c(chunk), opLocalGet, 2, i32c(chunk), opI32LtU, 0x1b, /* select */
		opExtendI32U, i64c(bytesPerUnit), opI64ShrU, i64c(weightCall), opI64Add,
		opI64Sub, opGlobalSet, counter, (&scanner{m: m}).check(nil))
}

// nextChunk takes a chunk off the length and pays for what comes next.
func (m *module) nextChunk() []byte {
	return asm(opLocalGet, 2, i32c(chunk), opI32Sub, opLocalSet, 2, m.chunkCharge())
}
