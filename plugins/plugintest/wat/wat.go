// Package wat assembles the WebAssembly text format, as much of it as tests and
// hand-written plugins need: core 1.0 with sign extension, saturating
// conversion, bulk memory, reference types of functions and multi-value, in flat and folded
// form, with inline imports and exports. What it does not know it refuses, with
// the line.
package wat

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Assemble translates one module.
func Assemble(source string) (wasm []byte, err error) {
	defer func() {
		if r := recover(); r != nil { // a field with too few parts: which one, the reader has to find
			wasm, err = nil, fmt.Errorf("a field is incomplete: %v", r)
		}
	}()
	nodes, err := parse(source)
	if err != nil {
		return nil, err
	}
	if len(nodes) == 1 && nodes[0].head() == "module" {
		nodes = nodes[0].list[1:]
	}
	a := &assembler{names: map[string]map[string]uint32{}}
	if err := a.module(nodes); err != nil {
		return nil, err
	}
	return a.encode(), nil
}

// node is an atom, a string or a list.
type node struct {
	line   int
	atom   string
	str    []byte
	isStr  bool
	list   []node
	isList bool
}

func (n node) head() string {
	if n.isList && len(n.list) > 0 {
		return n.list[0].atom
	}
	return ""
}

func (n node) errorf(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", n.line, fmt.Sprintf(format, args...))
}

type lexer struct {
	s    string
	pos  int
	line int
}

func parse(source string) ([]node, error) {
	l := &lexer{s: source, line: 1}
	nodes, err := l.list(false)
	if err != nil {
		return nil, err
	}
	return nodes, nil
}

func (l *lexer) space() {
	for l.pos < len(l.s) {
		switch {
		case l.s[l.pos] == '\n':
			l.line++
			l.pos++
		case l.s[l.pos] == ' ' || l.s[l.pos] == '\t' || l.s[l.pos] == '\r':
			l.pos++
		case strings.HasPrefix(l.s[l.pos:], ";;"):
			for l.pos < len(l.s) && l.s[l.pos] != '\n' {
				l.pos++
			}
		case strings.HasPrefix(l.s[l.pos:], "(;"):
			end := strings.Index(l.s[l.pos:], ";)")
			if end < 0 {
				end = len(l.s) - l.pos - 2
			}
			l.line += strings.Count(l.s[l.pos:l.pos+end], "\n")
			l.pos += end + 2
		default:
			return
		}
	}
}

func (l *lexer) list(nested bool) ([]node, error) {
	var out []node
	for {
		l.space()
		if l.pos >= len(l.s) {
			if nested {
				return nil, fmt.Errorf("line %d: a parenthesis is not closed", l.line)
			}
			return out, nil
		}
		n := node{line: l.line}
		switch c := l.s[l.pos]; c {
		case ')':
			if !nested {
				return nil, fmt.Errorf("line %d: a parenthesis too many", l.line)
			}
			l.pos++
			return out, nil
		case '(':
			l.pos++
			inner, err := l.list(true)
			if err != nil {
				return nil, err
			}
			n.list, n.isList = inner, true
		case '"':
			s, err := l.str()
			if err != nil {
				return nil, err
			}
			n.str, n.isStr = s, true
		default:
			start := l.pos
			for l.pos < len(l.s) && !strings.ContainsRune(" \t\r\n()\";", rune(l.s[l.pos])) {
				l.pos++
			}
			if l.pos == start {
				return nil, fmt.Errorf("line %d: unexpected %q", l.line, c)
			}
			n.atom = l.s[start:l.pos]
		}
		out = append(out, n)
	}
}

func (l *lexer) str() ([]byte, error) {
	var out []byte
	l.pos++
	for l.pos < len(l.s) {
		c := l.s[l.pos]
		l.pos++
		switch {
		case c == '"':
			return out, nil
		case c == '\\' && l.pos < len(l.s):
			e := l.s[l.pos]
			l.pos++
			switch e {
			case 'n':
				out = append(out, '\n')
			case 't':
				out = append(out, '\t')
			case 'r':
				out = append(out, '\r')
			case '"', '\'', '\\':
				out = append(out, e)
			default:
				if l.pos >= len(l.s) {
					break
				}
				v, err := strconv.ParseUint(l.s[l.pos-1:l.pos+1], 16, 8)
				if err != nil {
					return nil, fmt.Errorf("line %d: unknown escape \\%c", l.line, e)
				}
				l.pos++
				out = append(out, byte(v))
			}
		default:
			if c == '\n' {
				l.line++
			}
			out = append(out, c)
		}
	}
	return nil, fmt.Errorf("line %d: a string is not closed", l.line)
}

// The index spaces.
const (
	spaceType   = "type"
	spaceFunc   = "func"
	spaceTable  = "table"
	spaceMemory = "memory"
	spaceGlobal = "global"
	spaceElem   = "elem"
	spaceData   = "data"
)

type signature struct{ params, results []byte }

func (s signature) key() string { return string(s.params) + ">" + string(s.results) }

type function struct {
	node   node
	name   string
	sig    uint32
	locals map[string]uint32
	rest   []node // instructions
	extra  []byte // types of declared locals
	params int
}

type assembler struct {
	names   map[string]map[string]uint32
	counts  [7]uint32
	types   []signature
	imports [][]byte
	funcs   []*function
	tables  [][]byte
	mems    [][]byte
	globals [][]byte
	exports [][]byte
	elems   [][]byte
	datas   [][]byte
	codes   [][]byte
	start   []byte
	passive bool
	funcAt  uint32 // imported functions
	named   []string
}

func (a *assembler) declare(space string, name string, index uint32) {
	if name == "" {
		return
	}
	if a.names[space] == nil {
		a.names[space] = map[string]uint32{}
	}
	a.names[space][name] = index
}

var spaces = map[string]int{spaceType: 0, spaceFunc: 1, spaceTable: 2, spaceMemory: 3, spaceGlobal: 4, spaceElem: 5, spaceData: 6}

func (a *assembler) next(space, name string) uint32 {
	i := a.counts[spaces[space]]
	a.counts[spaces[space]]++
	a.declare(space, name, i)
	return i
}

func (a *assembler) index(space string, n node) (uint32, error) {
	if strings.HasPrefix(n.atom, "$") {
		i, ok := a.names[space][n.atom]
		if !ok {
			return 0, n.errorf("no %s is named %s", space, n.atom)
		}
		return i, nil
	}
	v, err := strconv.ParseUint(strings.ReplaceAll(n.atom, "_", ""), 0, 32)
	if err != nil {
		return 0, n.errorf("%q is no index of a %s", n.atom, space)
	}
	return uint32(v), nil
}

func takeName(list []node) (string, []node) {
	if len(list) > 0 && strings.HasPrefix(list[0].atom, "$") {
		return list[0].atom, list[1:]
	}
	return "", list
}

// module works in passes: types, then everything that has an index, then bodies.
func (a *assembler) module(fields []node) error {
	for _, f := range fields {
		if f.head() == "type" {
			name, rest := takeName(f.list[1:])
			if len(rest) != 1 || rest[0].head() != "func" {
				return f.errorf("expected (type (func ...))")
			}
			sig, _, _, err := a.signature(rest[0].list[1:])
			if err != nil {
				return err
			}
			a.declare(spaceType, name, uint32(len(a.types)))
			a.types = append(a.types, sig)
		}
	}
	for _, f := range fields {
		if f.head() == "import" {
			if err := a.importField(f); err != nil {
				return err
			}
		}
	}
	for _, f := range fields {
		if err := a.field(f); err != nil {
			return err
		}
	}
	for _, f := range fields {
		if err := a.late(f); err != nil {
			return err
		}
	}
	for _, fn := range a.funcs {
		if err := a.body(fn); err != nil {
			return err
		}
	}
	return nil
}

func valType(n node) (byte, error) {
	switch n.atom {
	case "i32":
		return 0x7f, nil
	case "i64":
		return 0x7e, nil
	case "f32":
		return 0x7d, nil
	case "f64":
		return 0x7c, nil
	case "v128":
		return 0x7b, nil
	case "funcref":
		return 0x70, nil
	case "externref":
		return 0x6f, nil
	}
	return 0, n.errorf("%q is no value type", n.atom)
}

// signature reads (param ...) and (result ...) and returns what follows.
func (a *assembler) signature(list []node) (sig signature, names map[string]uint32, rest []node, err error) {
	names = map[string]uint32{}
	for len(list) > 0 && (list[0].head() == "param" || list[0].head() == "result") {
		f := list[0]
		name, types := takeName(f.list[1:])
		if name != "" {
			names[name] = uint32(len(sig.params))
		}
		for _, t := range types {
			v, err := valType(t)
			if err != nil {
				return sig, nil, nil, err
			}
			if f.head() == "param" {
				sig.params = append(sig.params, v)
			} else {
				sig.results = append(sig.results, v)
			}
		}
		list = list[1:]
	}
	return sig, names, list, nil
}

func (a *assembler) typeOf(sig signature) uint32 {
	for i, t := range a.types {
		if t.key() == sig.key() {
			return uint32(i)
		}
	}
	a.types = append(a.types, sig)
	return uint32(len(a.types) - 1)
}

// typeUse reads (type $t)? (param)* (result)*.
func (a *assembler) typeUse(list []node) (index uint32, sig signature, names map[string]uint32, rest []node, err error) {
	explicit := false
	if len(list) > 0 && list[0].head() == "type" {
		if index, err = a.index(spaceType, list[0].list[1]); err != nil {
			return 0, sig, nil, nil, err
		}
		if int(index) >= len(a.types) {
			return 0, sig, nil, nil, list[0].errorf("no such type")
		}
		explicit = true
		list = list[1:]
	}
	sig, names, rest, err = a.signature(list)
	if err != nil {
		return 0, sig, nil, nil, err
	}
	if explicit {
		return index, a.types[index], names, rest, nil
	}
	return a.typeOf(sig), sig, names, rest, nil
}

func (a *assembler) importField(f node) error {
	if len(f.list) != 4 || !f.list[1].isStr || !f.list[2].isStr {
		return f.errorf(`expected (import "module" "name" (func ...))`)
	}
	return a.importItem(f.list[1].str, f.list[2].str, f.list[3])
}

func (a *assembler) importItem(module, name []byte, item node) error {
	out := append(str(module), str(name)...)
	id, rest := takeName(item.list[1:])
	switch item.head() {
	case "func":
		t, _, _, _, err := a.typeUse(rest)
		if err != nil {
			return err
		}
		a.next(spaceFunc, id)
		a.named = append(a.named, id)
		a.funcAt++
		out = append(append(out, 0), u32(t)...)
	case "memory":
		l, err := limits(rest, item)
		if err != nil {
			return err
		}
		a.next(spaceMemory, id)
		out = append(append(out, 2), l...)
	default:
		return item.errorf("import of a %s is not supported", item.head())
	}
	a.imports = append(a.imports, out)
	return nil
}

func limits(list []node, at node) ([]byte, error) {
	var v []uint64
	for _, n := range list {
		x, err := strconv.ParseUint(n.atom, 0, 32)
		if err != nil {
			break
		}
		v = append(v, x)
	}
	switch len(v) {
	case 1:
		return append([]byte{0}, u32(uint32(v[0]))...), nil
	case 2:
		return append(append([]byte{1}, u32(uint32(v[0]))...), u32(uint32(v[1]))...), nil
	}
	return nil, at.errorf("expected a minimum, and perhaps a maximum")
}

// inline takes (export "x") and (import "a" "b") in front of a field's content.
func (a *assembler) inline(kind byte, index uint32, list []node) []node {
	for len(list) > 0 && list[0].head() == "export" {
		a.exports = append(a.exports, append(append(str(list[0].list[1].str), kind), u32(index)...))
		list = list[1:]
	}
	return list
}

func (a *assembler) field(f node) error {
	if !f.isList || len(f.list) == 0 {
		return f.errorf("expected a module field in parentheses")
	}
	id, rest := takeName(f.list[1:])
	switch f.head() {
	case "type", "import", "export", "start", "elem", "data":
		return nil
	case "func":
		i := a.next(spaceFunc, id)
		a.named = append(a.named, id)
		rest = a.inline(0, i, rest)
		t, sig, names, body, err := a.typeUse(rest)
		if err != nil {
			return err
		}
		fn := &function{node: f, name: id, sig: t, locals: names, params: len(sig.params)}
		for len(body) > 0 && body[0].head() == "local" {
			name, types := takeName(body[0].list[1:])
			if name != "" {
				fn.locals[name] = uint32(fn.params + len(fn.extra))
			}
			for _, tn := range types {
				v, err := valType(tn)
				if err != nil {
					return err
				}
				fn.extra = append(fn.extra, v)
			}
			body = body[1:]
		}
		fn.rest = body
		a.funcs = append(a.funcs, fn)
	case "memory":
		i := a.next(spaceMemory, id)
		rest = a.inline(2, i, rest)
		l, err := limits(rest, f)
		if err != nil {
			return err
		}
		a.mems = append(a.mems, l)
	case "table":
		i := a.next(spaceTable, id)
		rest = a.inline(1, i, rest)
		if len(rest) == 0 || rest[len(rest)-1].atom != "funcref" {
			return f.errorf("expected a table of funcref")
		}
		l, err := limits(rest, f)
		if err != nil {
			return err
		}
		a.tables = append(a.tables, append([]byte{0x70}, l...))
	case "global":
		i := a.next(spaceGlobal, id)
		rest = a.inline(3, i, rest)
		if len(rest) != 2 {
			return f.errorf("expected a type and an initial value")
		}
		mut := byte(0)
		tn := rest[0]
		if tn.head() == "mut" {
			mut, tn = 1, tn.list[1]
		}
		t, err := valType(tn)
		if err != nil {
			return err
		}
		init, err := a.constant(rest[1])
		if err != nil {
			return err
		}
		a.globals = append(a.globals, append([]byte{t, mut}, init...))
	default:
		return f.errorf("unknown field %q", f.head())
	}
	return nil
}

func (a *assembler) constant(n node) ([]byte, error) {
	e := &emitter{a: a, fn: &function{}}
	if err := e.instructions([]node{n}); err != nil {
		return nil, err
	}
	return append(e.out, 0x0b), nil
}

// late reads what refers to indices.
func (a *assembler) late(f node) error {
	id, rest := takeName(f.list[1:])
	switch f.head() {
	case "export":
		if len(f.list) != 3 || len(f.list[2].list) != 2 {
			return f.errorf(`expected (export "name" (func $f))`)
		}
		kinds := map[string]byte{spaceFunc: 0, spaceTable: 1, spaceMemory: 2, spaceGlobal: 3}
		space := f.list[2].head()
		kind, ok := kinds[space]
		if !ok {
			return f.errorf("cannot export a %s", space)
		}
		i, err := a.index(space, f.list[2].list[1])
		if err != nil {
			return err
		}
		a.exports = append(a.exports, append(append(str(f.list[1].str), kind), u32(i)...))
	case "start":
		i, err := a.index(spaceFunc, f.list[1])
		if err != nil {
			return err
		}
		a.start = u32(i)
	case "data":
		a.next(spaceData, id)
		out := []byte{1}
		if len(rest) > 0 && rest[0].isList {
			off := rest[0]
			if off.head() == "offset" {
				off = off.list[1]
			}
			init, err := a.constant(off)
			if err != nil {
				return err
			}
			out = append([]byte{0}, init...)
			rest = rest[1:]
		} else {
			a.passive = true
		}
		var data []byte
		for _, n := range rest {
			data = append(data, n.str...)
		}
		a.datas = append(a.datas, append(out, str(data)...))
	case "elem":
		a.next(spaceElem, id)
		out := []byte{1, 0}
		if len(rest) > 0 && rest[0].isList {
			init, err := a.constant(rest[0])
			if err != nil {
				return err
			}
			out = append([]byte{0}, init...)
			rest = rest[1:]
		} else if len(rest) > 0 && rest[0].atom == "declare" {
			out = []byte{3, 0}
			rest = rest[1:]
		}
		if len(rest) > 0 && rest[0].atom == "func" {
			rest = rest[1:]
		}
		out = append(out, u32(uint32(len(rest)))...)
		for _, n := range rest {
			i, err := a.index(spaceFunc, n)
			if err != nil {
				return err
			}
			out = append(out, u32(i)...)
		}
		a.elems = append(a.elems, out)
	}
	return nil
}

func (a *assembler) body(fn *function) error {
	e := &emitter{a: a, fn: fn}
	if err := e.instructions(fn.rest); err != nil {
		return err
	}
	if len(e.labels) > 0 {
		return fn.node.errorf("a block is not ended")
	}
	locals := u32(uint32(len(fn.extra)))
	for _, t := range fn.extra {
		locals = append(locals, 1, t)
	}
	code := append(append(locals, e.out...), 0x0b)
	a.codes = append(a.codes, append(u32(uint32(len(code))), code...))
	return nil
}

func u32(v uint32) []byte {
	var b []byte
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

func s64(v int64) []byte {
	var b []byte
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

func str(s []byte) []byte { return append(u32(uint32(len(s))), s...) }

func vector(items [][]byte) []byte {
	out := u32(uint32(len(items)))
	for _, i := range items {
		out = append(out, i...)
	}
	return out
}

func (a *assembler) encode() []byte {
	out := []byte("\x00asm\x01\x00\x00\x00")
	section := func(id byte, content []byte) {
		out = append(append(append(out, id), u32(uint32(len(content)))...), content...)
	}
	vec := func(id byte, items [][]byte) {
		if len(items) > 0 {
			section(id, vector(items))
		}
	}
	var types, sigs [][]byte
	for _, t := range a.types {
		types = append(types, append(append([]byte{0x60}, str(t.params)...), str(t.results)...))
	}
	for _, f := range a.funcs {
		sigs = append(sigs, u32(f.sig))
	}
	vec(1, types)
	vec(2, a.imports)
	vec(3, sigs)
	vec(4, a.tables)
	vec(5, a.mems)
	vec(6, a.globals)
	vec(7, a.exports)
	if a.start != nil {
		section(8, a.start)
	}
	vec(9, a.elems)
	if a.passive {
		section(12, u32(uint32(len(a.datas))))
	}
	vec(10, a.codes)
	vec(11, a.datas)
	section(0, append(str([]byte("name")), a.nameSection()...))
	return out
}

func (a *assembler) nameSection() []byte {
	var entries [][]byte
	for i, n := range a.named {
		if n != "" {
			entries = append(entries, append(u32(uint32(i)), str([]byte(n[1:]))...))
		}
	}
	content := vector(entries)
	return append([]byte{1}, str(content)...)
}

// emitter writes the instructions of one body.
type emitter struct {
	a      *assembler
	fn     *function
	out    []byte
	labels []string
}

func (e *emitter) instructions(list []node) error {
	for len(list) > 0 {
		n := list[0]
		if n.isList {
			if err := e.folded(n); err != nil {
				return err
			}
			list = list[1:]
			continue
		}
		rest, err := e.plain(n, list[1:])
		if err != nil {
			return err
		}
		list = rest
	}
	return nil
}

// folded writes (op immediates operands...).
func (e *emitter) folded(n node) error {
	if len(n.list) == 0 || n.list[0].isList {
		return n.errorf("expected an instruction")
	}
	op, rest := n.list[0], n.list[1:]
	switch op.atom {
	case "block", "loop":
		rest, err := e.block(op, rest)
		if err != nil {
			return err
		}
		if err := e.instructions(rest); err != nil {
			return err
		}
		return e.end(op)
	case "if":
		return e.foldedIf(op, rest)
	}
	// Operands come before the instruction, but behind its immediates.
	split := len(rest)
	for i, r := range rest {
		if r.isList && r.head() != "type" && r.head() != "param" && r.head() != "result" {
			split = i
			break
		}
	}
	if err := e.instructions(rest[split:]); err != nil {
		return err
	}
	left, err := e.plain(op, rest[:split])
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return left[0].errorf("unexpected %q behind %s", left[0].atom, op.atom)
	}
	return nil
}

func (e *emitter) foldedIf(op node, rest []node) error {
	// (if $l (result t) cond... (then ...) (else ...)): the condition is written first.
	then := -1
	for i, r := range rest {
		if r.head() == "then" {
			then = i
			break
		}
	}
	if then < 0 {
		return op.errorf("(if ...) needs (then ...)")
	}
	head := 0
	for head < then && (!rest[head].isList || rest[head].head() == "result" || rest[head].head() == "param" || rest[head].head() == "type") {
		head++
	}
	if err := e.instructions(rest[head:then]); err != nil {
		return err
	}
	if _, err := e.block(op, rest[:head]); err != nil {
		return err
	}
	if err := e.instructions(rest[then].list[1:]); err != nil {
		return err
	}
	if len(rest) > then+1 && rest[then+1].head() == "else" && len(rest[then+1].list) > 1 {
		e.out = append(e.out, 0x05)
		if err := e.instructions(rest[then+1].list[1:]); err != nil {
			return err
		}
	}
	return e.end(op)
}

func (e *emitter) block(op node, rest []node) ([]node, error) {
	name, rest := takeName(rest)
	t, sig, _, rest, err := e.a.typeUse(rest)
	if err != nil {
		return nil, err
	}
	e.out = append(e.out, map[string]byte{"block": 0x02, "loop": 0x03, "if": 0x04}[op.atom])
	switch {
	case len(sig.params) == 0 && len(sig.results) == 0:
		e.out = append(e.out, 0x40)
	case len(sig.params) == 0 && len(sig.results) == 1:
		e.out = append(e.out, sig.results[0])
	default:
		e.out = append(e.out, s64(int64(t))...)
	}
	e.labels = append(e.labels, name)
	return rest, nil
}

func (e *emitter) end(at node) error {
	if len(e.labels) == 0 {
		return at.errorf("end without a block")
	}
	e.labels = e.labels[:len(e.labels)-1]
	e.out = append(e.out, 0x0b)
	return nil
}

func (e *emitter) label(n node) ([]byte, error) {
	if !strings.HasPrefix(n.atom, "$") {
		v, err := strconv.ParseUint(n.atom, 10, 32)
		if err != nil {
			return nil, n.errorf("%q is no label", n.atom)
		}
		return u32(uint32(v)), nil
	}
	for i := len(e.labels) - 1; i >= 0; i-- {
		if e.labels[i] == n.atom {
			return u32(uint32(len(e.labels) - 1 - i)), nil
		}
	}
	return nil, n.errorf("no enclosing label %s", n.atom)
}

func (e *emitter) local(n node) ([]byte, error) {
	if strings.HasPrefix(n.atom, "$") {
		i, ok := e.fn.locals[n.atom]
		if !ok {
			return nil, n.errorf("no local is named %s", n.atom)
		}
		return u32(i), nil
	}
	v, err := strconv.ParseUint(n.atom, 10, 32)
	if err != nil {
		return nil, n.errorf("%q is no local", n.atom)
	}
	return u32(uint32(v)), nil
}

func isIndex(n node) bool {
	if n.isList || n.isStr || n.atom == "" {
		return false
	}
	return n.atom[0] == '$' || n.atom[0] >= '0' && n.atom[0] <= '9'
}

// plain writes one instruction; rest holds its immediates and what follows.
func (e *emitter) plain(op node, rest []node) ([]node, error) {
	need := func(n int) error {
		if len(rest) < n {
			return op.errorf("%s needs %d immediates", op.atom, n)
		}
		return nil
	}
	one := func(code byte, space string) ([]node, error) {
		if err := need(1); err != nil {
			return nil, err
		}
		i, err := e.a.index(space, rest[0])
		e.out = append(append(e.out, code), u32(i)...)
		return rest[1:], err
	}
	switch op.atom {
	case "block", "loop", "if":
		return e.block(op, rest)
	case "else":
		e.out = append(e.out, 0x05)
		return rest, nil
	case "end":
		return rest, e.end(op)
	case "br", "br_if":
		if err := need(1); err != nil {
			return nil, err
		}
		l, err := e.label(rest[0])
		e.out = append(append(e.out, map[string]byte{"br": 0x0c, "br_if": 0x0d}[op.atom]), l...)
		return rest[1:], err
	case "br_table":
		var labels [][]byte
		for len(rest) > 0 && isIndex(rest[0]) {
			l, err := e.label(rest[0])
			if err != nil {
				return nil, err
			}
			labels = append(labels, l)
			rest = rest[1:]
		}
		if len(labels) == 0 {
			return nil, op.errorf("br_table needs labels")
		}
		e.out = append(append(e.out, 0x0e), u32(uint32(len(labels)-1))...)
		for _, l := range labels {
			e.out = append(e.out, l...)
		}
		return rest, nil
	case "call":
		return one(0x10, spaceFunc)
	case "ref.func":
		return one(0xd2, spaceFunc)
	case "global.get":
		return one(0x23, spaceGlobal)
	case "global.set":
		return one(0x24, spaceGlobal)
	case "call_indirect":
		t, _, _, left, err := e.a.typeUse(rest)
		if err != nil {
			return nil, err
		}
		e.out = append(append(append(e.out, 0x11), u32(t)...), 0)
		return left, nil
	case "local.get", "local.set", "local.tee":
		if err := need(1); err != nil {
			return nil, err
		}
		l, err := e.local(rest[0])
		e.out = append(append(e.out, map[string]byte{"local.get": 0x20, "local.set": 0x21, "local.tee": 0x22}[op.atom]), l...)
		return rest[1:], err
	case "i32.const", "i64.const", "f32.const", "f64.const":
		if err := need(1); err != nil {
			return nil, err
		}
		return rest[1:], e.constant(op.atom, rest[0])
	case "memory.size", "memory.grow":
		e.out = append(e.out, map[string]byte{"memory.size": 0x3f, "memory.grow": 0x40}[op.atom], 0)
		return rest, nil
	case "memory.copy":
		e.out = append(e.out, 0xfc, 10, 0, 0)
		return rest, nil
	case "memory.fill":
		e.out = append(e.out, 0xfc, 11, 0)
		return rest, nil
	case "memory.init", "data.drop":
		if err := need(1); err != nil {
			return nil, err
		}
		i, err := e.a.index(spaceData, rest[0])
		if op.atom == "data.drop" {
			e.out = append(append(e.out, 0xfc, 9), u32(i)...)
		} else {
			e.out = append(append(append(e.out, 0xfc, 8), u32(i)...), 0)
		}
		return rest[1:], err
	case "table.init":
		if err := need(1); err != nil {
			return nil, err
		}
		i, err := e.a.index(spaceElem, rest[0])
		e.out = append(append(append(e.out, 0xfc, 12), u32(i)...), 0)
		return rest[1:], err
	case "table.copy":
		e.out = append(e.out, 0xfc, 14, 0, 0)
		return rest, nil
	case "table.grow", "table.size", "table.fill":
		e.out = append(e.out, 0xfc, map[string]byte{"table.grow": 15, "table.size": 16, "table.fill": 17}[op.atom], 0)
		return rest, nil
	case "table.get", "table.set":
		e.out = append(e.out, map[string]byte{"table.get": 0x25, "table.set": 0x26}[op.atom], 0)
		return rest, nil
	case "ref.null":
		e.out = append(e.out, 0xd0, 0x70)
		if len(rest) > 0 && rest[0].atom == "func" {
			rest = rest[1:]
		}
		return rest, nil
	}
	if code, ok := memoryOps[op.atom]; ok {
		return e.memarg(code, rest)
	}
	if code, ok := simpleOps[op.atom]; ok {
		if code >= 0xfc00 {
			e.out = append(e.out, 0xfc, byte(code))
		} else {
			e.out = append(e.out, byte(code))
		}
		return rest, nil
	}
	return nil, op.errorf("unknown instruction %q", op.atom)
}

func (e *emitter) memarg(code memoryOp, rest []node) ([]node, error) {
	offset, align := uint64(0), uint64(code.align)
	for len(rest) > 0 {
		key, value, ok := strings.Cut(rest[0].atom, "=")
		if !ok || key != "offset" && key != "align" {
			break
		}
		v, err := strconv.ParseUint(strings.ReplaceAll(value, "_", ""), 0, 32)
		if err != nil {
			return nil, rest[0].errorf("%q is no number", value)
		}
		if key == "offset" {
			offset = v
		} else {
			align = uint64(math.Log2(float64(v)))
		}
		rest = rest[1:]
	}
	e.out = append(append(append(e.out, code.op), u32(uint32(align))...), u32(uint32(offset))...)
	return rest, nil
}

func (e *emitter) constant(op string, n node) error {
	text := strings.ReplaceAll(n.atom, "_", "")
	switch op {
	case "i32.const", "i64.const":
		v, err := strconv.ParseInt(text, 0, 64)
		if err != nil {
			u, uerr := strconv.ParseUint(text, 0, 64)
			if uerr != nil {
				return n.errorf("%q is no integer", n.atom)
			}
			v = int64(u)
		}
		if op == "i32.const" {
			e.out = append(append(e.out, 0x41), s64(int64(int32(v)))...)
		} else {
			e.out = append(append(e.out, 0x42), s64(v)...)
		}
	default:
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return n.errorf("%q is no number", n.atom)
		}
		if op == "f32.const" {
			bits := math.Float32bits(float32(v))
			e.out = append(e.out, 0x43, byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24))
			return nil
		}
		bits := math.Float64bits(v)
		e.out = append(e.out, 0x44)
		for i := 0; i < 8; i++ {
			e.out = append(e.out, byte(bits>>(8*i)))
		}
	}
	return nil
}
