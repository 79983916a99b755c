// SPDX-License-Identifier: Apache-2.0

// Package survey finds out about the bodies of a module's functions, before anything is done with them: what they weigh in fuel, whom
// they call, and how much work they would be for an optimizing compiler.
package survey

import "github.com/wasmplane/wasmplane/plugins/fuel/wasm"

// Facts are what is found out about a function.
type Facts struct {
	Weight int64 // if it neither calls, loops nor does anything that is charged by size; else -1
	Loops  bool
	Locals uint64
	Calls  uint64 // the host's at loops included
	Blocks uint64 // that control flow is divided into, about; each target of a table is one
	Values uint64 // that blocks take and leave, and branches carry
	Depth  uint64 // of nesting, at the deepest
	Table  uint64 // targets of the largest br_table

	loopCount, loopDepth uint64
}

// Signatures are the types of the module.
type Signatures interface {
	// Block says how many values a block of a type takes and leaves.
	Block(blockType int64) (params, results uint64)
	// Function is how many values the function of an index takes and leaves.
	Function(index uint32) uint64
}

// CompileCost estimates what an optimizing compiler has to do for a function: it
// follows every local through every block, every branch through its nesting, every
// value that a branch carries to its target, and every mutable global across every call. A
// unit is about a microsecond or two.
func (f *Facts) CompileCost(params, mutable int) uint64 {
	live := f.Locals + uint64(params) + 1
	return (f.Blocks+1)*live + f.Values + f.Depth*f.Depth/64 + f.Calls*uint64(mutable)/4 + f.loopDepth*f.loopCount*live/4
}

// surveyor walks a body without planning edits.
type surveyor struct {
	of    Signatures
	r     wasm.Reader
	visit func(op byte, index uint32) // is shown whom the function calls

	Facts
	plain   bool // weight holds
	around  uint64
	nesting []nested
}

// nested is an enclosing block, with the number of values that a branch to it carries.
type nested struct {
	op    byte
	arity uint64
}

// Body finds out about the body of a function with so many results, and at most so many locals.
func Body(body []byte, results int, most uint32, of Signatures, visit func(op byte, index uint32)) (Facts, error) {
	s := &surveyor{of: of, r: wasm.Reader{B: body}, visit: visit, plain: true}
	s.Locals, s.Weight = uint64(s.r.Locals(most)), 1
	s.nesting = append(s.nesting, nested{op: wasm.OpBlock, arity: uint64(results)})
	for s.r.Err == nil && !s.r.Done() {
		s.instruction()
	}
	if !s.plain {
		s.Weight = -1
	}
	return s.Facts, s.r.Err
}

func (s *surveyor) instruction() {
	op, sub := s.r.Opcode()
	imm := s.r.Pos
	s.Weight += s.r.Immediates(op, sub)
	t := wasm.Reader{B: s.r.B[:s.r.Pos], Pos: imm}
	switch op {
	case wasm.OpBlock, wasm.OpLoop, wasm.OpIf:
		s.enter(op, &t)
	case wasm.OpEnd:
		s.leave()
	case wasm.OpBr, wasm.OpBrIf:
		s.Blocks++
		s.Values += s.arity(t.U32())
	case wasm.OpReturn:
		s.Values += s.nesting[0].arity
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
	params, results := s.of.Block(t.S33())
	s.Blocks++
	s.Values += params + results
	n := nested{op: op, arity: results}
	if op == wasm.OpLoop { // a branch to it goes to its beginning
		n.arity = params
		s.Calls++
		s.loopCount++
		s.around++
		s.loopDepth = max(s.loopDepth, s.around)
		s.Loops, s.plain = true, false
	}
	s.nesting = append(s.nesting, n)
	s.Depth = max(s.Depth, uint64(len(s.nesting)-1))
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
	s.Table = max(s.Table, n)
	s.Blocks += n
	for range n {
		s.Values += s.arity(t.U32())
	}
}

func (s *surveyor) call(op byte, t *wasm.Reader) {
	var index uint32
	switch op {
	case wasm.OpCallIndirect:
		params, results := s.of.Block(int64(t.U32()))
		s.Values += params + results
	default:
		index = t.U32()
		s.Values += s.of.Function(index)
	}
	s.visit(op, index)
	s.Calls++
	s.plain = false
}
