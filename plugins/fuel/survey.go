// SPDX-License-Identifier: Apache-2.0

package fuel

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
	r     reader
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
	s := &surveyor{m: m, r: reader{b: body}, visit: visit}
	s.locals = uint64(skipLocals(&s.r))
	s.plain, s.weight = s.locals <= leafLocals, 1
	s.nesting = append(s.nesting, nested{op: opBlock, arity: uint64(len(t.results))})
	for s.r.err == nil && !s.r.done() {
		s.instruction()
	}
	if !s.plain {
		s.weight = -1
	}
	return s.facts, s.r.err
}

func (s *surveyor) instruction() {
	op, sub := s.r.opcode()
	imm := s.r.pos
	s.weight += s.r.immediates(op, sub)
	t := reader{b: s.r.b[:s.r.pos], pos: imm}
	switch op {
	case opBlock, opLoop, opIf:
		s.enter(op, &t)
	case opEnd:
		s.leave()
	case opBr, opBrIf:
		s.blocks++
		s.values += s.arity(t.u32())
	case opReturn:
		s.values += s.nesting[0].arity
	case opBrTable:
		s.targets(&t)
	case opCall, opCallIndirect, opRefFunc:
		s.call(op, &t)
	case opMemoryGrow:
		s.plain = false
	case opPrefixFC:
		s.plain = s.plain && sub < fcMemoryInit
	}
}

// enter counts what a block takes and leaves.
func (s *surveyor) enter(op byte, t *reader) {
	params, results := s.m.blockType(t.s33())
	s.blocks++
	s.values += params + results
	n := nested{op: op, arity: results}
	if op == opLoop { // a branch to it goes to its beginning
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
		if s.nesting[n-1].op == opLoop {
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

func (s *surveyor) targets(t *reader) {
	n := uint64(t.u32()) + 1
	s.table = max(s.table, n)
	s.blocks += n
	for range n {
		s.values += s.arity(t.u32())
	}
}

func (s *surveyor) call(op byte, t *reader) {
	var index uint32
	switch op {
	case opCallIndirect:
		s.values += s.m.arityOf(t.u32())
	default:
		index = t.u32()
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
func skipLocals(r *reader) (n uint32) {
	var sum uint64
	for groups := r.u32(); groups > 0 && r.err == nil; groups-- {
		sum += uint64(r.u32())
		r.byte()
	}
	if sum > maxLocals && r.err == nil {
		r.err = tooMany(sum, "locals in one function", maxLocals)
	}
	return uint32(sum)
}
