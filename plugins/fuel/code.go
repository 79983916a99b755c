// SPDX-License-Identifier: Apache-2.0

package fuel

import (
	"slices"

	"github.com/wasmplane/wasmplane/plugins/fuel/wasm"
)

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
		return m.typeIndex([]byte{0x60, 1, wasm.TypeI32, 1, wasm.TypeI32})
	}
	return m.typeIndex([]byte{0x60, 3, wasm.TypeI32, wasm.TypeI32, wasm.TypeI32, 0})
}

// get and set write the reading of the counter and the writing of what is on the
// stack to it, where this function keeps it.
func (s *scanner) get(out []byte) []byte {
	if s.held {
		return wasm.AppendU32(append(out, wasm.OpLocalGet), s.counter)
	}
	return wasm.AppendU32(append(out, wasm.OpGlobalGet), s.m.counter())
}

func (s *scanner) set(out []byte) []byte {
	if s.held {
		return wasm.AppendU32(append(out, wasm.OpLocalSet), s.counter)
	}
	return wasm.AppendU32(append(out, wasm.OpGlobalSet), s.m.counter())
}

// save and load move a counter that is held between its local and the global.
func (s *scanner) save(out []byte) []byte {
	return wasm.AppendU32(append(s.get(out), wasm.OpGlobalSet), s.m.counter())
}

func (s *scanner) load(out []byte) []byte {
	return s.set(wasm.AppendU32(append(out, wasm.OpGlobalGet), s.m.counter()))
}

// charge takes weight from the counter, and looks at it in the way of the piece.
func (s *scanner) charge(out []byte, weight int64, check checkKind) []byte {
	if check == loopHeader {
		// if and br, not br_if: the compiler makes one instruction of the comparison.
		out = append(s.get(out), wasm.OpI64Const, 0, wasm.OpI64LtS, wasm.OpIf, wasm.TypeEmpty, wasm.OpBr, 2, wasm.OpEnd)
	}
	out = wasm.AppendS64(append(s.get(out), wasm.OpI64Const), weight)
	out = s.set(append(out, wasm.OpI64Sub))
	if check == checked {
		return s.check(out)
	}
	return out
}

// check calls the host where the counter is below zero.
func (s *scanner) check(out []byte) []byte {
	out = append(s.get(out), wasm.OpI64Const, 0, wasm.OpI64LtS, wasm.OpIf, wasm.TypeEmpty)
	return append(s.callHost(append(out, wasm.OpI32Const, Yield)), wasm.OpEnd)
}

// callHost calls the host with the reason that is on the stack.
func (s *scanner) callHost(out []byte) []byte {
	if s.held {
		out = s.save(out)
	}
	out = wasm.AppendU32(append(out, wasm.OpCall), s.m.imported)
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
	out = wasm.AppendU32(append(out, wasm.OpLocalSet), scratch)
	out = s.get(out)
	out = append(wasm.AppendU32(append(out, wasm.OpLocalGet), scratch), wasm.OpExtendI32U)
	out = append(wasm.AppendS64(append(out, wasm.OpI64Const), int64(shift)), wasm.OpI64ShrU)
	out = s.check(s.set(append(out, wasm.OpI64Sub)))
	return wasm.AppendU32(append(out, wasm.OpLocalGet), scratch)
}

// enterFrame takes a frame from the stack budget and weight from the counter, and
// looks at both at once.
func (s *scanner) enterFrame(out []byte, frame, weight int64) []byte {
	out = wasm.AppendU32(append(out, wasm.OpGlobalGet), s.m.stack())
	out = wasm.AppendS64(append(out, wasm.OpI64Const), frame)
	out = wasm.AppendU32(append(out, wasm.OpI64Sub, wasm.OpGlobalSet), s.m.stack())
	out = s.get(s.charge(out, weight, unchecked))
	out = wasm.AppendU32(append(out, wasm.OpGlobalGet), s.m.stack())
	out = append(out, 0x84 /* i64.or */, wasm.OpI64Const, 0, wasm.OpI64LtS, wasm.OpIf, wasm.TypeEmpty)
	// Which of the two it was: 1 (Overflow) where the stack is below zero, else 0 (Yield).
	out = wasm.AppendU32(append(out, wasm.OpGlobalGet), s.m.stack())
	return append(s.callHost(append(out, wasm.OpI64Const, 0, wasm.OpI64LtS)), wasm.OpEnd)
}

func (m *module) leaveFrame(out []byte, frame int64) []byte {
	out = wasm.AppendU32(append(out, wasm.OpGlobalGet), m.stack())
	out = wasm.AppendS64(append(out, wasm.OpI64Const), frame)
	return wasm.AppendU32(append(out, wasm.OpI64Add, wasm.OpGlobalSet), m.stack())
}

// appendBlockType writes the type of a block that takes nothing and leaves results.
func (m *module) appendBlockType(out []byte, results []byte) []byte {
	switch len(results) {
	case 0:
		return append(out, wasm.TypeEmpty)
	case 1:
		return append(out, results[0])
	}
	t := append(wasm.AppendU32([]byte{0x60, 0}, uint32(len(results))), results...)
	return wasm.AppendS64(out, int64(m.typeIndex(t)))
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
		code = wasm.AppendU32(code, uint32(len(body)))
		m.rebase(len(code))
		code = append(code, body...)
	}
	n := uint32(len(m.bodies))
	for h := range m.helpers {
		if m.helpers[h] {
			body := m.helperBody(h)
			code = append(wasm.AppendU32(code, uint32(len(body))), body...)
			n++
		}
	}
	for _, segment := range m.inits {
		body := m.initBody(segment)
		code = append(wasm.AppendU32(code, uint32(len(body))), body...)
		n++
	}
	count := wasm.AppendU32(nil, n)
	for i := range m.moves {
		m.moves[i].to += len(count)
	}
	m.sections[secCode] = append(count, code...)
	return nil
}

// copyLeaf writes the body of a function that its callers pay for.
func (m *module) copyLeaf(code []byte, i int, body []byte) []byte {
	code = wasm.AppendU32(code, uint32(len(body)))
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

func i32c(v int64) []byte { return wasm.AppendS64([]byte{wasm.OpI32Const}, v) }
func i64c(v int64) []byte { return wasm.AppendS64([]byte{wasm.OpI64Const}, v) }

// growBody: grow as asked; a growth that worked is paid for by the page.
func (m *module) growBody() []byte {
	counter := wasm.AppendU32(nil, m.counter())
	return asm(1, 1, wasm.TypeI32, // local 1: result
		wasm.OpLocalGet, 0, wasm.OpMemoryGrow, 0, wasm.OpLocalTee, 1, i32c(-1), 0x47 /* i32.ne */, wasm.OpIf, wasm.TypeEmpty,
		wasm.OpGlobalGet, counter, wasm.OpLocalGet, 0, wasm.OpExtendI32U, i64c(fuelPerPage), wasm.OpI64Mul, wasm.OpI64Sub,
		wasm.OpGlobalSet, counter,
		(&scanner{m: m}).check(nil),
		wasm.OpEnd,
		wasm.OpLocalGet, 1, wasm.OpEnd)
}

// outOfBounds leaves whether address local + length local is behind the memory's end.
func outOfBounds(address, length int) []byte {
	return asm(wasm.OpLocalGet, address, wasm.OpExtendI32U, wasm.OpLocalGet, length, wasm.OpExtendI32U, wasm.OpI64Add,
		wasm.OpMemorySize, 0, wasm.OpExtendI32U, i64c(16), wasm.OpI64Shl, wasm.OpI64GtU)
}

// fillBody: dst 0, value 1, length 2. The whole length is paid for before the
// first chunk; what is out of bounds is left to the original instruction, which traps before it
// writes anything.
func (m *module) fillBody() []byte {
	fill := asm(wasm.OpLocalGet, 0, wasm.OpLocalGet, 1, wasm.OpLocalGet, 2, wasm.OpPrefixFC, wasm.FCMemoryFill, 0)
	return asm(0,
		m.chunkCharge(),
		outOfBounds(0, 2), wasm.OpIf, wasm.TypeEmpty, fill, wasm.OpReturn, wasm.OpEnd,
		wasm.OpBlock, wasm.TypeEmpty, wasm.OpLoop, wasm.TypeEmpty,
		wasm.OpLocalGet, 2, i32c(chunk), wasm.OpI32LeU, wasm.OpBrIf, 1,
		wasm.OpLocalGet, 0, wasm.OpLocalGet, 1, i32c(chunk), wasm.OpPrefixFC, wasm.FCMemoryFill, 0,
		wasm.OpLocalGet, 0, i32c(chunk), wasm.OpI32Add, wasm.OpLocalSet, 0,
		m.nextChunk(),
		wasm.OpBr, 0, wasm.OpEnd, wasm.OpEnd,
		fill, wasm.OpEnd)
}

// copyBody: dst 0, src 1, length 2. Chunks go forward where dst lies before src
// and backward elsewhere, so that overlapping ranges come out right.
func (m *module) copyBody() []byte {
	whole := asm(wasm.OpLocalGet, 0, wasm.OpLocalGet, 1, wasm.OpLocalGet, 2, wasm.OpPrefixFC, wasm.FCMemoryCopy, 0, 0)
	forward := asm(
		wasm.OpLoop, wasm.TypeEmpty,
		wasm.OpLocalGet, 2, i32c(chunk), wasm.OpI32GtU, wasm.OpIf, wasm.TypeEmpty,
		wasm.OpLocalGet, 0, wasm.OpLocalGet, 1, i32c(chunk), wasm.OpPrefixFC, wasm.FCMemoryCopy, 0, 0,
		wasm.OpLocalGet, 0, i32c(chunk), wasm.OpI32Add, wasm.OpLocalSet, 0,
		wasm.OpLocalGet, 1, i32c(chunk), wasm.OpI32Add, wasm.OpLocalSet, 1,
		m.nextChunk(),
		wasm.OpBr, 1, wasm.OpEnd, wasm.OpEnd,
		whole, wasm.OpReturn)
	backward := asm(
		wasm.OpLoop, wasm.TypeEmpty,
		wasm.OpLocalGet, 2, i32c(chunk), wasm.OpI32GtU, wasm.OpIf, wasm.TypeEmpty,
		m.nextChunk(),
		wasm.OpLocalGet, 0, wasm.OpLocalGet, 2, wasm.OpI32Add, wasm.OpLocalGet, 1, wasm.OpLocalGet, 2, wasm.OpI32Add, i32c(chunk),
		wasm.OpPrefixFC, wasm.FCMemoryCopy, 0, 0,
		wasm.OpBr, 1, wasm.OpEnd, wasm.OpEnd,
		whole)
	return asm(0,
		m.chunkCharge(),
		outOfBounds(0, 2), outOfBounds(1, 2), 0x72 /* i32.or */, wasm.OpIf, wasm.TypeEmpty, whole, wasm.OpReturn, wasm.OpEnd,
		wasm.OpLocalGet, 0, wasm.OpLocalGet, 1, wasm.OpI32LtU, wasm.OpIf, wasm.TypeEmpty, forward, wasm.OpEnd,
		backward, wasm.OpEnd)
}

// initBody: dst 0, src 1, length 2. The last chunk goes first: where it is within
// the memory and the segment, so are all others, and else nothing has been written yet.
func (m *module) initBody(segment uint32) []byte {
	instruction := asm(wasm.OpPrefixFC, wasm.FCMemoryInit, wasm.AppendU32(nil, segment), 0)
	whole := asm(wasm.OpLocalGet, 0, wasm.OpLocalGet, 1, wasm.OpLocalGet, 2, instruction)
	return asm(0,
		m.chunkCharge(),
		outOfBounds(0, 2),
		wasm.OpLocalGet, 1, wasm.OpExtendI32U, wasm.OpLocalGet, 2, wasm.OpExtendI32U, wasm.OpI64Add, i64c(int64(m.data[segment])),
		wasm.OpI64GtU,
		0x72 /* i32.or */, wasm.OpIf, wasm.TypeEmpty, whole, wasm.OpReturn, wasm.OpEnd,
		wasm.OpLoop, wasm.TypeEmpty,
		wasm.OpLocalGet, 2, i32c(chunk), wasm.OpI32GtU, wasm.OpIf, wasm.TypeEmpty,
		m.nextChunk(),
		wasm.OpLocalGet, 0, wasm.OpLocalGet, 2, wasm.OpI32Add, wasm.OpLocalGet, 1, wasm.OpLocalGet, 2, wasm.OpI32Add, i32c(chunk), instruction,
		wasm.OpBr, 1, wasm.OpEnd, wasm.OpEnd,
		whole, wasm.OpEnd)
}

// chunkCharge pays for the first chunk, or for all where it is no more than that.
func (m *module) chunkCharge() []byte {
	counter := wasm.AppendU32(nil, m.counter())
	return asm(
		wasm.OpGlobalGet, counter,
		wasm.OpLocalGet, 2, i32c(chunk), wasm.OpLocalGet, 2, i32c(chunk), wasm.OpI32LtU, 0x1b, /* select */
		wasm.OpExtendI32U, i64c(bytesPerUnit), wasm.OpI64ShrU, i64c(wasm.WeightCall), wasm.OpI64Add,
		wasm.OpI64Sub, wasm.OpGlobalSet, counter, (&scanner{m: m}).check(nil))
}

// nextChunk takes a chunk off the length and pays for what comes next.
func (m *module) nextChunk() []byte {
	return asm(wasm.OpLocalGet, 2, i32c(chunk), wasm.OpI32Sub, wasm.OpLocalSet, 2, m.chunkCharge())
}
