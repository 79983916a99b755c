// SPDX-License-Identifier: Apache-2.0

package wat

import (
	"strconv"
	"strings"
)

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
	case "global":
		if len(rest) != 1 {
			return item.errorf("expected a type")
		}
		t, mut, err := globalType(rest[0])
		if err != nil {
			return err
		}
		a.next(spaceGlobal, id)
		out = append(out, 3, t, mut)
	default:
		return item.errorf("import of a %s is not supported", item.head())
	}
	a.imports = append(a.imports, out)
	return nil
}

// globalType reads the type of a global, and 1 where it is mutable.
func globalType(n node) (t, mut byte, err error) {
	if n.head() == "mut" {
		mut, n = 1, n.list[1]
	}
	t, err = valType(n)
	return t, mut, err
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
		t, mut, err := globalType(rest[0])
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
