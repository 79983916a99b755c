// SPDX-License-Identifier: Apache-2.0

package fuel

import "github.com/wasmplane/wasmplane/plugins/fuel/wasm"

// Bounds of the charging scheme. They trade exactness of the count and of the
// safe points for speed; all of them are part of what "one unit of fuel" means,
// so that changing one changes counts (Version).
const (
	absorbPiece = 12   // a branch up to this weight may be paid for ahead,
	absorbTotal = 48   // up to this much for each charge
	checkEvery  = 4096 // longest unchecked weight on any path inside a function
	checkExit   = 256  // longest unchecked weight that a function returns with
	leafWeight  = 64   // a function up to this weight that calls nothing is paid for by its caller
	leafLocals  = 16   // locals that such a function may declare
)

// editKind says what is put into the copied code.
type editKind uint8

const (
	editCharge  editKind = iota // take the weight of a piece
	editCheck                   // look at the counter
	editReturn                  // return becomes a branch where the frame must be given back
	editReplace                 // other bytes
	editInsert                  // more bytes
	editSized                   // charge by the size on top of the stack
	editSave                    // put the counter back into its global
	editLoad                    // take it from there
)

type edit struct {
	kind  editKind
	at    int    // offset in the body's bytes
	skip  int    // bytes of the original that are left out
	arg   int    // editCharge: the piece; editReturn: depth of the label; editSized: shift
	bytes []byte // editReplace
}

// piece is a stretch of code that runs as a whole: a basic block, or a part of one.
type piece struct {
	weight   int64
	absorbed int64
	into     int // the piece that pays for this one; itself where it pays alone
	dominant int // the piece that is always run before; -1 = none may pay ahead
	check    checkKind
}

// checkKind says how a piece looks at the counter.
type checkKind uint8

const (
	unchecked  checkKind = iota
	checked              // calls the host behind its charge
	loopHeader           // goes back to the loop around the loop before its charge
)

// label is an enclosing block, loop or if.
type label struct {
	op        byte
	wrapped   bool  // a loop around it was added
	dominant  int   // piece that was running when the block was entered
	entry     int64 // unchecked weight at entry
	unchecked int64 // largest unchecked weight that arrives at its end by branches; -1 = none
}

const dead = int64(-1) // unchecked weight of code that cannot be reached

// scanner decodes one function body and plans its edits.
type scanner struct {
	m        *module
	r        wasm.Reader
	edits    []edit
	pieces   []piece
	labels   []label
	cur      int   // current piece
	run      int64 // unchecked weight on the heaviest path to here, or dead
	sized    bool  // needs a scratch local
	length   int64 // what the instruction before, an i32.const, has put on the stack; else -1
	bodyFrom int   // where the expression starts in r.b

	// held: the counter is kept in a local, at index counter. A function with
	// loops does so: the global's way through memory would take longer than a
	// short loop's own work. The global is up to date wherever others see it:
	// at calls and when the function is left.
	held    bool
	counter uint32
}

func (s *scanner) reset(body []byte) {
	s.r = wasm.Reader{B: body}
	s.edits, s.pieces, s.labels = s.edits[:0], s.pieces[:0], s.labels[:0]
	s.sized, s.length = false, -1
}

// root follows the chain of payers.
func (s *scanner) root(p int) int {
	for s.pieces[p].into != p {
		p = s.pieces[p].into
	}
	return p
}

// open starts a piece at offset at.
func (s *scanner) open(at int, weight int64, dominant int, check checkKind) {
	s.cur = len(s.pieces)
	s.pieces = append(s.pieces, piece{weight: weight, into: s.cur, dominant: dominant, check: check})
	s.edits = append(s.edits, edit{kind: editCharge, at: at, arg: s.cur})
	if check != unchecked && s.run != dead {
		s.run = weight
	}
}

// close ends the current piece, and lets its dominator pay where it is small.
func (s *scanner) close() {
	p := &s.pieces[s.cur]
	if p.check != unchecked || p.dominant < 0 || p.weight > absorbPiece {
		return
	}
	root := &s.pieces[s.root(p.dominant)]
	if root.absorbed+p.weight > absorbTotal {
		return
	}
	root.absorbed += p.weight
	root.weight += p.weight
	p.into = s.root(p.dominant)
}

// next closes the current piece and opens one that dominant may pay for.
func (s *scanner) next(at, dominant int) {
	s.close()
	s.open(at, 0, dominant, unchecked)
}

// arrive notes that label depth is branched to from here.
func (s *scanner) arrive(depth uint32) {
	i := len(s.labels) - 1 - int(depth)
	if i < 0 {
		s.r.Fail("branch to no label")
		return
	}
	if l := &s.labels[i]; l.op != wasm.OpLoop && s.run > l.unchecked {
		l.unchecked = s.run
	}
}

// leaves says whether label depth is the function's own.
func (s *scanner) leaves(depth uint32) bool { return int(depth) == len(s.labels)-1 }

// checkBefore puts a check before offset at where too much ran without one.
func (s *scanner) checkBefore(at int, limit int64) {
	if s.run > limit {
		s.edits = append(s.edits, edit{kind: editCheck, at: at})
		s.run = 0
	}
}

// scan plans the edits of one body, of a function with so many parameters.
func (s *scanner) scan(body []byte, params int, held bool) error {
	s.reset(body)
	r := &s.r
	locals := r.Locals(maxLocals)
	s.bodyFrom = r.Pos
	s.held, s.counter = held, uint32(params)+locals
	s.run = 0
	s.labels = append(s.labels, label{op: wasm.OpBlock, unchecked: dead})
	s.open(r.Pos, 1+int64(locals/4), -1, checked)
	for r.Err == nil && len(s.labels) > 0 {
		s.instruction()
	}
	if r.Err == nil && !r.Done() {
		r.Fail("bytes behind the end of a function")
	}
	return r.Err
}

// instruction plans the edits of one instruction.
func (s *scanner) instruction() {
	r := &s.r
	at := r.Pos
	op, sub := r.Opcode()
	imm := r.Pos
	weight := r.Immediates(op, sub)
	if r.Err != nil {
		return
	}
	if s.run > checkEvery {
		s.close()
		s.open(at, 0, -1, checked)
	}
	short := s.isShort(op, sub)
	if short { // compilers copy their structs so
		weight += s.length >> bytesPerUnit
	}
	calls := s.calls(op, sub, imm, short)
	if leaf := s.leaf(op, imm); leaf > 0 {
		weight += leaf
		calls = false
	}
	if op != wasm.OpLoop {
		s.pieces[s.cur].weight += weight
	}
	if s.run != dead {
		s.run += weight
	}
	if calls && s.held { // whoever is called sees the global
		s.edits = append(s.edits, edit{kind: editSave, at: at})
	}
	if !short {
		s.edit(op, sub, at, imm, weight)
	}
	if calls && s.held {
		s.edits = append(s.edits, edit{kind: editLoad, at: r.Pos})
	}
	if s.length = -1; op == wasm.OpI32Const {
		t := wasm.Reader{B: r.B, Pos: imm}
		s.length = int64(uint32(t.S33()))
	}
}

// isShort says that a bulk operation moves so little that it stays as it is.
func (s *scanner) isShort(op byte, sub uint32) bool {
	return op == wasm.OpPrefixFC && (sub == wasm.FCMemoryCopy || sub == wasm.FCMemoryFill) && s.length >= 0 && s.length <= shortBulk
}

// calls says that the instruction is a call, or becomes one.
func (s *scanner) calls(op byte, sub uint32, imm int, short bool) bool {
	switch op {
	case wasm.OpCall, wasm.OpCallIndirect, wasm.OpMemoryGrow:
		return true
	case wasm.OpPrefixFC:
		return !short && (sub == wasm.FCMemoryCopy || sub == wasm.FCMemoryFill || sub == wasm.FCMemoryInit && s.m.large(segment(s.r.B, imm)))
	}
	return false
}

// edit plans what an instruction asks for besides its weight.
func (s *scanner) edit(op byte, sub uint32, at, imm int, weight int64) {
	switch op {
	case wasm.OpBlock, wasm.OpLoop, wasm.OpIf, wasm.OpElse, wasm.OpEnd:
		s.structure(op, at, imm, weight)
	case wasm.OpBr, wasm.OpBrIf, wasm.OpBrTable, wasm.OpReturn, wasm.OpUnreachable:
		s.jump(op, at, imm)
	case wasm.OpCall, wasm.OpRefFunc:
		s.function(op, at, imm)
	case wasm.OpGlobalGet, wasm.OpGlobalSet:
		s.global(op, at, imm)
	case wasm.OpMemoryGrow:
		s.replace(at, wasm.AppendU32([]byte{wasm.OpCall}, s.m.helper(helperGrow)))
	case wasm.OpPrefixFC:
		s.bulk(sub, at, imm)
	}
}

// structure follows the nesting of blocks.
func (s *scanner) structure(op byte, at, imm int, weight int64) {
	switch op {
	case wasm.OpBlock:
		s.labels = append(s.labels, label{op: op, dominant: s.cur, entry: s.run, unchecked: dead})
	case wasm.OpLoop:
		s.loop(at, imm, weight)
	case wasm.OpIf:
		s.labels = append(s.labels, label{op: op, dominant: s.cur, entry: s.run, unchecked: dead})
		s.next(s.r.Pos, s.cur)
	case wasm.OpElse:
		l := &s.labels[len(s.labels)-1]
		l.unchecked = max(l.unchecked, s.run)
		l.op = wasm.OpElse
		s.run = l.entry
		s.next(s.r.Pos, l.dominant)
	case wasm.OpEnd:
		s.end()
	}
}

// segment is the data segment that a memory.init with its immediates at imm names.
func segment(b []byte, imm int) uint32 {
	t := wasm.Reader{B: b, Pos: imm}
	return t.U32()
}

// loop puts a loop around a loop. The outer one calls the host; the inner one goes
// back there from its first instruction when the counter is below zero. So the
// call is outside of the code that runs hot, and the compiler keeps that code's values
// in registers. A loop with parameters on the stack calls the host itself.
func (s *scanner) loop(at, imm int, weight int64) {
	t := wasm.Reader{B: s.r.B, Pos: imm}
	l := label{op: wasm.OpLoop, dominant: s.cur, entry: s.run, unchecked: dead, wrapped: true}
	if bt := t.S33(); bt >= 0 {
		if int(bt) >= len(s.m.types) {
			s.r.Fail("unknown type")
			return
		}
		l.wrapped = s.m.types[bt].params == 0
	}
	s.labels = append(s.labels, l)
	s.close()
	if !l.wrapped {
		s.open(s.r.Pos, weight, -1, checked)
		return
	}
	outer := append([]byte{wasm.OpLoop}, s.r.B[imm:s.r.Pos]...)
	s.edits = append(s.edits, edit{kind: editInsert, at: at, bytes: s.check(outer)})
	s.open(s.r.Pos, weight, -1, loopHeader)
}

// leaf is the weight of a called function that does not charge for itself; 0 where it
// does, and for all other instructions.
func (s *scanner) leaf(op byte, imm int) int64 {
	if op != wasm.OpCall {
		return 0
	}
	t := wasm.Reader{B: s.r.B, Pos: imm}
	if d := int(t.U32()) - int(s.m.imported); d >= 0 && d < len(s.m.leaves) {
		return s.m.leaves[d]
	}
	return 0
}

// deeper is what a branch has to count more because of added loops on its way.
func (s *scanner) deeper(depth uint32) uint32 {
	var n uint32
	for i := len(s.labels) - int(depth); i >= 0 && i < len(s.labels); i++ {
		if s.labels[i].wrapped {
			n++
		}
	}
	return n
}

func (s *scanner) end() {
	l := s.labels[len(s.labels)-1]
	s.labels = s.labels[:len(s.labels)-1]
	if len(s.labels) == 0 {
		at := s.r.Pos - 1
		s.checkBefore(at, checkExit)
		s.close()
		return
	}
	if l.wrapped {
		s.edits = append(s.edits, edit{kind: editInsert, at: s.r.Pos, bytes: []byte{wasm.OpEnd}})
	}
	if l.op == wasm.OpIf { // no else: the condition may skip it
		l.unchecked = max(l.unchecked, l.entry)
	}
	s.run = max(s.run, l.unchecked)
	s.next(s.r.Pos, l.dominant)
}

func (s *scanner) jump(op byte, at, imm int) {
	end := s.r.Pos
	t := wasm.Reader{B: s.r.B[:end], Pos: imm}
	switch op {
	case wasm.OpBr, wasm.OpBrIf:
		depth := t.U32()
		if s.leaves(depth) {
			s.checkBefore(at, checkExit)
		}
		s.arrive(depth)
		if more := s.deeper(depth); more > 0 {
			s.replace(at, wasm.AppendU32([]byte{op}, depth+more))
		}
	case wasm.OpBrTable:
		s.table(&t, at)
	case wasm.OpReturn:
		s.checkBefore(at, checkExit)
		outermost := uint32(len(s.labels) - 1)
		s.edits = append(s.edits, edit{kind: editReturn, at: at, skip: 1, arg: int(outermost + s.deeper(outermost))})
	}
	if op != wasm.OpBrIf {
		s.run = dead
	}
	s.next(end, s.cur)
}

// table notes the targets of a br_table, and writes it anew where depths change.
func (s *scanner) table(t *wasm.Reader, at int) {
	n := t.U32()
	out := wasm.AppendU32([]byte{wasm.OpBrTable}, n)
	changed := false
	for i := uint32(0); i <= n && t.Err == nil; i++ {
		depth := t.U32()
		if s.leaves(depth) {
			s.checkBefore(at, checkExit)
		}
		s.arrive(depth)
		more := s.deeper(depth)
		changed = changed || more > 0
		out = wasm.AppendU32(out, depth+more)
	}
	if changed {
		s.replace(at, out)
	}
}

func (s *scanner) replace(at int, with []byte) {
	s.edits = append(s.edits, edit{kind: editReplace, at: at, skip: s.r.Pos - at, bytes: with})
}

// function renumbers a function index: our imports come before the module's functions.
func (s *scanner) function(op byte, at, imm int) {
	t := wasm.Reader{B: s.r.B, Pos: imm}
	if i := t.U32(); i >= s.m.imported {
		s.replace(at, wasm.AppendU32([]byte{op}, s.m.renumber(i)))
	}
}

func (s *scanner) bulk(sub uint32, at, imm int) {
	switch sub {
	case wasm.FCMemoryCopy:
		s.replace(at, wasm.AppendU32([]byte{wasm.OpCall}, s.m.helper(helperCopy)))
	case wasm.FCMemoryFill:
		s.replace(at, wasm.AppendU32([]byte{wasm.OpCall}, s.m.helper(helperFill)))
	case wasm.FCMemoryInit:
		if from := segment(s.r.B, imm); s.m.large(from) {
			s.replace(at, wasm.AppendU32([]byte{wasm.OpCall}, s.m.initHelper(from)))
			return
		}
		s.size(at, bytesPerUnit)
	case wasm.FCTableInit, wasm.FCTableCopy, wasm.FCTableGrow, wasm.FCTableFill:
		s.size(at, 0)
	}
}

// size charges the size on the stack, shifted right, before the instruction at.
func (s *scanner) size(at, shift int) {
	s.sized = true
	s.edits = append(s.edits, edit{kind: editSized, at: at, arg: shift})
}
