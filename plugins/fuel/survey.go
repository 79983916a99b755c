// SPDX-License-Identifier: Apache-2.0

package fuel

import "github.com/wasmplane/wasmplane/plugins/fuel/wasm"

// facts are what survey finds out about a function.
type facts struct {
	weight int64 // if it neither calls, loops nor does anything that is charged by size; else -1
	loops  bool
	locals uint64
	calls  uint64 // the host's at loops included
	blocks uint64 // that control flow is divided into, about; each target of a table is one
	values uint64 // that blocks take and leave, and branches carry
	depth  uint64 // of nesting, at the deepest
	table  uint64 // targets of the largest br_table

	loopCount, loopDepth uint64
}

// compileCost estimates what an optimizing compiler has to do for a function: it
// follows every local through every block, every branch through its nesting, every
// value that a branch carries to its target, and every mutable global across every call. A
// unit is about a microsecond or two.
func (f *facts) compileCost(params, mutable int) uint64 {
	live := f.locals + uint64(params) + 1
	return (f.blocks+1)*live + f.values + f.depth*f.depth/64 + f.calls*uint64(mutable)/4 + f.loopDepth*f.loopCount*live/4
}

// surveyor walks a body without planning edits.
type surveyor struct {
	m     *module
	r     wasm.Reader
	visit func(op byte, index uint32) // is shown whom the function calls

	facts
	plain   bool // weight holds
	around  uint64
	nesting []nested
}

// nested is an enclosing block, with the number of values that a branch to it carries.
type nested struct {
	op    byte
	arity uint64
}

// survey finds out about a body of a function of some type.
func (m *module) survey(body []byte, t *funcType, visit func(op byte, index uint32)) (facts, error) {
	s := &surveyor{m: m, r: wasm.Reader{B: body}, visit: visit}
	s.locals = uint64(skipLocals(&s.r))
	s.plain, s.weight = s.locals <= leafLocals, 1
	s.nesting = append(s.nesting, nested{op: wasm.OpBlock, arity: uint64(len(t.results))})
	for s.r.Err == nil && !s.r.Done() {
		s.instruction()
	}
	if !s.plain {
		s.weight = -1
	}
	return s.facts, s.r.Err
}

func (s *surveyor) instruction() {
	op, sub := s.r.Opcode()
	imm := s.r.Pos
	s.weight += s.r.Immediates(op, sub)
	t := wasm.Reader{B: s.r.B[:s.r.Pos], Pos: imm}
	switch op {
	case wasm.OpBlock, wasm.OpLoop, wasm.OpIf:
		s.enter(op, &t)
	case wasm.OpEnd:
		s.leave()
	case wasm.OpBr, wasm.OpBrIf:
		s.blocks++
		s.values += s.arity(t.U32())
	case wasm.OpReturn:
		s.values += s.nesting[0].arity
	case wasm.OpBrTable:
		s.targets(&t)
	case wasm.OpCall, wasm.OpCallIndirect, wasm.OpRefFunc:
		s.call(op, &t)
	case wasm.OpMemoryGrow:
		s.plain = false
	case wasm.OpPrefixFC:
		s.plain = s.plain && sub < wasm.FCMemoryInit
	}
}

// enter counts what a block takes and leaves.
func (s *surveyor) enter(op byte, t *wasm.Reader) {
	params, results := s.m.blockType(t.S33())
	s.blocks++
	s.values += params + results
	n := nested{op: op, arity: results}
	if op == wasm.OpLoop { // a branch to it goes to its beginning
		n.arity = params
		s.calls++
		s.loopCount++
		s.around++
		s.loopDepth = max(s.loopDepth, s.around)
		s.loops, s.plain = true, false
	}
	s.nesting = append(s.nesting, n)
	s.depth = max(s.depth, uint64(len(s.nesting)-1))
}

func (s *surveyor) leave() {
	if n := len(s.nesting); n > 1 {
		if s.nesting[n-1].op == wasm.OpLoop {
			s.around--
		}
		s.nesting = s.nesting[:n-1]
	}
}

// arity is how many values a branch carries.
func (s *surveyor) arity(depth uint32) uint64 {
	if i := len(s.nesting) - 1 - int(depth); i >= 0 {
		return s.nesting[i].arity
	}
	return 0 // no such label; the validator says so
}

func (s *surveyor) targets(t *wasm.Reader) {
	n := uint64(t.U32()) + 1
	s.table = max(s.table, n)
	s.blocks += n
	for range n {
		s.values += s.arity(t.U32())
	}
}

func (s *surveyor) call(op byte, t *wasm.Reader) {
	var index uint32
	switch op {
	case wasm.OpCallIndirect:
		s.values += s.m.arityOf(t.U32())
	default:
		index = t.U32()
		s.values += s.m.arityOfFunction(index)
	}
	s.visit(op, index)
	s.calls++
	s.plain = false
}

// blockType are the numbers of values that a block takes and leaves.
func (m *module) blockType(bt int64) (params, results uint64) {
	switch {
	case bt >= 0 && bt < int64(len(m.types)):
		return uint64(m.types[bt].params), uint64(len(m.types[bt].results))
	case bt == -64: // empty
		return 0, 0
	}
	return 0, 1
}

func (m *module) arityOf(t uint32) uint64 {
	params, results := m.blockType(int64(t))
	return params + results
}

// arityOfFunction is 0 for imports: the host's have few.
func (m *module) arityOfFunction(index uint32) uint64 {
	if d := int64(index) - int64(m.imported); d >= 0 && d < int64(len(m.funcTypes)) {
		return m.arityOf(m.funcTypes[d])
	}
	return 0
}

// skipLocals reads a body's declarations, and says how many locals there are.
func skipLocals(r *wasm.Reader) (n uint32) {
	var sum uint64
	for groups := r.U32(); groups > 0 && r.Err == nil; groups-- {
		sum += uint64(r.U32())
		r.Byte()
	}
	if sum > maxLocals && r.Err == nil {
		r.Err = wasm.TooMany(sum, "locals in one function", maxLocals)
	}
	return uint32(sum)
}
