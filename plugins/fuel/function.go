package fuel

// Bounds of the charging scheme. They trade exactness of the count and of the
// safe points for speed; all of them are part of what "one unit of fuel" means,
// so that changing one changes counts (Version).
const (
	absorbPiece = 12   // a branch up to this weight may be paid for ahead,
	absorbTotal = 48   // up to this much for each charge
	checkEvery  = 4096 // longest unchecked weight on any path inside a function
	checkExit   = 256  // longest unchecked weight that a function returns with
)

// editKind says what is put into the copied code.
type editKind uint8

const (
	editCharge  editKind = iota // take the weight of a piece
	editCheck                   // look at the counter
	editReturn                  // return becomes a branch where the frame must be given back
	editReplace                 // other bytes
	editSized                   // charge by the size on top of the stack
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
	check    bool
}

// label is an enclosing block, loop or if.
type label struct {
	op        byte
	dominant  int   // piece that was running when the block was entered
	entry     int64 // unchecked weight at entry
	unchecked int64 // largest unchecked weight that arrives at its end by branches; -1 = none
}

const dead = int64(-1) // unchecked weight of code that cannot be reached

// scanner decodes one function body and plans its edits.
type scanner struct {
	m        *module
	r        reader
	edits    []edit
	pieces   []piece
	labels   []label
	cur      int   // current piece
	run      int64 // unchecked weight on the heaviest path to here, or dead
	sized    bool  // needs a scratch local
	bodyFrom int   // where the expression starts in r.b
}

func (s *scanner) reset(body []byte) {
	s.r = reader{b: body}
	s.edits, s.pieces, s.labels = s.edits[:0], s.pieces[:0], s.labels[:0]
	s.sized = false
}

// root follows the chain of payers.
func (s *scanner) root(p int) int {
	for s.pieces[p].into != p {
		p = s.pieces[p].into
	}
	return p
}

// open starts a piece at offset at.
func (s *scanner) open(at int, weight int64, dominant int, check bool) {
	s.cur = len(s.pieces)
	s.pieces = append(s.pieces, piece{weight: weight, into: s.cur, dominant: dominant, check: check})
	s.edits = append(s.edits, edit{kind: editCharge, at: at, arg: s.cur})
	if check && s.run != dead {
		s.run = weight
	}
}

// close ends the current piece, and lets its dominator pay where it is small.
func (s *scanner) close() {
	p := &s.pieces[s.cur]
	if p.check || p.dominant < 0 || p.weight > absorbPiece {
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
	s.open(at, 0, dominant, false)
}

// arrive notes that label depth is branched to from here.
func (s *scanner) arrive(depth uint32) {
	i := len(s.labels) - 1 - int(depth)
	if i < 0 {
		s.r.fail("branch to no label")
		return
	}
	if l := &s.labels[i]; l.op != opLoop && s.run > l.unchecked {
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

// scan plans the edits of one body; locals says how many locals it declares.
func (s *scanner) scan(body []byte) (locals uint64, err error) {
	s.reset(body)
	r := &s.r
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		locals += uint64(r.u32())
		r.byte()
	}
	s.bodyFrom = r.pos
	s.run = 0
	s.labels = append(s.labels, label{op: opBlock, unchecked: dead})
	s.open(r.pos, 1+int64(locals/4), -1, true)
	for r.err == nil && len(s.labels) > 0 {
		s.instruction()
	}
	if r.err == nil && !r.done() {
		r.fail("bytes behind the end of a function")
	}
	return locals, r.err
}

func (s *scanner) instruction() {
	r := &s.r
	at := r.pos
	op := r.byte()
	var sub uint32
	if op == opPrefixFC || op == opPrefixFD {
		sub = r.u32()
	}
	imm := r.pos
	weight := r.immediates(op, sub)
	if r.err != nil {
		return
	}
	if s.run > checkEvery {
		s.close()
		s.open(at, 0, -1, true)
	}
	if op != opLoop {
		s.pieces[s.cur].weight += weight
	}
	if s.run != dead {
		s.run += weight
	}
	switch op {
	case opBlock:
		s.labels = append(s.labels, label{op: op, dominant: s.cur, entry: s.run, unchecked: dead})
	case opLoop:
		s.labels = append(s.labels, label{op: op, dominant: s.cur, entry: s.run, unchecked: dead})
		s.close()
		s.open(r.pos, weight, -1, true)
	case opIf:
		s.labels = append(s.labels, label{op: op, dominant: s.cur, entry: s.run, unchecked: dead})
		s.next(r.pos, s.cur)
	case opElse:
		l := &s.labels[len(s.labels)-1]
		l.unchecked = max(l.unchecked, s.run)
		l.op = opElse
		s.run = l.entry
		s.next(r.pos, l.dominant)
	case opEnd:
		s.end()
	case opBr, opBrIf, opBrTable, opReturn, opUnreachable:
		s.jump(op, at, imm)
	case opCall, opRefFunc:
		s.function(op, at, imm)
	case opMemoryGrow:
		s.replace(at, appendU32([]byte{opCall}, s.m.helper(helperGrow)))
	case opPrefixFC:
		s.bulk(sub, at)
	}
}

func (s *scanner) end() {
	l := s.labels[len(s.labels)-1]
	s.labels = s.labels[:len(s.labels)-1]
	if len(s.labels) == 0 {
		at := s.r.pos - 1
		s.checkBefore(at, checkExit)
		s.close()
		return
	}
	if l.op == opIf { // no else: the condition may skip it
		l.unchecked = max(l.unchecked, l.entry)
	}
	s.run = max(s.run, l.unchecked)
	s.next(s.r.pos, l.dominant)
}

func (s *scanner) jump(op byte, at, imm int) {
	end := s.r.pos
	t := reader{b: s.r.b[:end], pos: imm}
	switch op {
	case opBr, opBrIf:
		depth := t.u32()
		if s.leaves(depth) {
			s.checkBefore(at, checkExit)
		}
		s.arrive(depth)
	case opBrTable:
		for n := int64(t.u32()); n >= 0; n-- {
			depth := t.u32()
			if s.leaves(depth) {
				s.checkBefore(at, checkExit)
			}
			s.arrive(depth)
		}
	case opReturn:
		s.checkBefore(at, checkExit)
		s.edits = append(s.edits, edit{kind: editReturn, at: at, skip: 1, arg: len(s.labels) - 1})
	}
	if op != opBrIf {
		s.run = dead
	}
	s.next(end, s.cur)
}

func (s *scanner) replace(at int, with []byte) {
	s.edits = append(s.edits, edit{kind: editReplace, at: at, skip: s.r.pos - at, bytes: with})
}

// function renumbers a function index: our imports come before the module's functions.
func (s *scanner) function(op byte, at, imm int) {
	t := reader{b: s.r.b, pos: imm}
	if i := t.u32(); i >= s.m.imported {
		s.replace(at, appendU32([]byte{op}, s.m.renumber(i)))
	}
}

func (s *scanner) bulk(sub uint32, at int) {
	switch sub {
	case fcMemoryCopy:
		s.replace(at, appendU32([]byte{opCall}, s.m.helper(helperCopy)))
	case fcMemoryFill:
		s.replace(at, appendU32([]byte{opCall}, s.m.helper(helperFill)))
	case fcMemoryInit:
		s.size(at, 4)
	case fcTableInit, fcTableCopy, fcTableGrow, fcTableFill:
		s.size(at, 0)
	}
}

// size charges the size on the stack, shifted right, before the instruction at.
func (s *scanner) size(at, shift int) {
	s.sized = true
	s.edits = append(s.edits, edit{kind: editSized, at: at, arg: shift})
}

// calls walks a body only for whom it calls, without planning edits.
func calls(body []byte, visit func(op byte, index uint32)) error {
	r := reader{b: body}
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		r.u32()
		r.byte()
	}
	for r.err == nil && !r.done() {
		op := r.byte()
		var sub uint32
		if op == opPrefixFC || op == opPrefixFD {
			sub = r.u32()
		}
		imm := r.pos
		r.immediates(op, sub)
		switch op {
		case opCall, opRefFunc:
			t := reader{b: body, pos: imm}
			visit(op, t.u32())
		case opCallIndirect:
			visit(op, 0)
		}
	}
	return r.err
}

// emit writes the edited body. frame > 0 takes that much of the stack budget.
func (s *scanner) emit(out []byte, frame int64, results []byte, params int, locals uint64) []byte {
	scratch := uint32(params) + uint32(locals)
	out = s.emitLocals(out)
	if frame > 0 {
		out = s.m.enterFrame(out, frame)
		out = s.m.appendBlockType(append(out, opBlock), results)
	}
	pos := s.bodyFrom
	s.m.moved(pos, len(out))
	for _, e := range s.edits {
		out = append(out, s.r.b[pos:e.at]...)
		pos = e.at
		switch e.kind {
		case editCharge:
			p := &s.pieces[e.arg]
			if p.into != e.arg || p.weight == 0 {
				continue
			}
			out = s.m.charge(out, p.weight, p.check)
		case editCheck:
			out = s.m.check(out)
		case editReturn:
			if frame == 0 {
				continue
			}
			out = appendU32(append(out, opBr), uint32(e.arg))
		case editSized:
			out = s.m.chargeSized(out, scratch, e.arg)
		case editReplace:
			out = append(out, e.bytes...)
		}
		pos = e.at + e.skip
		s.m.moved(pos, len(out))
	}
	if frame == 0 {
		return append(out, s.r.b[pos:]...)
	}
	out = append(out, s.r.b[pos:]...) // its last byte ends our block
	out = s.m.leaveFrame(out, frame)
	return append(out, opEnd)
}

func (s *scanner) emitLocals(out []byte) []byte {
	if !s.sized {
		return append(out, s.r.b[:s.bodyFrom]...)
	}
	r := reader{b: s.r.b}
	n := r.u32()
	out = appendU32(out, n+1)
	out = append(out, s.r.b[r.pos:s.bodyFrom]...)
	return append(out, 1, typeI32)
}
