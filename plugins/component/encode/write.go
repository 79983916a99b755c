// SPDX-License-Identifier: Apache-2.0

package encode

import (
	"strconv"

	"github.com/wasmplane/wasmplane/plugins/component/bytejoin"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

const (
	preamble  = "\x00asm\x0d\x00\x01\x00"
	coreMagic = "\x00asm\x01\x00\x00\x00"
	tableName = "$imports" // of the functions that are called indirectly
)

// items collects the items of sections. Those of one kind that follow each other share a section.
type items struct {
	out     []byte
	section byte
	n       int
	pending []byte
	counts  map[string]int
}

func (w *items) add(section byte, parts ...any) {
	if section != w.section {
		w.flush()
		w.section = section
	}
	w.n++
	w.pending = append(w.pending, bytejoin.Join(parts...)...)
}

func (w *items) flush() {
	if w.n > 0 {
		body := append(bytejoin.Join(w.n), w.pending...)
		w.out = append(w.out, bytejoin.Join(w.section, len(body), body)...)
	}
	w.n, w.pending = 0, nil
}

// whole adds a section that has no items.
func (w *items) whole(section byte, body []byte) {
	w.flush()
	w.out = append(w.out, bytejoin.Join(section, len(body), body)...)
}

// next is the index of something that is added to an index space.
func (w *items) next(space string) int {
	if w.counts == nil {
		w.counts = map[string]int{}
	}
	w.counts[space]++
	return w.counts[space] - 1
}

// alias adds what a core instance exports.
func (w *items) alias(sort ctype.CoreSort, instance int, name string) int {
	w.add(sectionAlias, byte(0), byte(sort), byte(1), instance, name)
	return w.next(sort.String())
}

// named is something core under a name.
type named struct {
	name  string
	sort  ctype.CoreSort
	index int
}

// bundle adds a core instance that consists of what is there.
func (w *items) bundle(all []named) int {
	out := bytejoin.Join(byte(1), len(all))
	for _, n := range all {
		out = append(out, bytejoin.Join(n.name, byte(n.sort), n.index)...)
	}
	w.add(sectionCoreInstance, out)
	return w.next("instance")
}

// instantiate adds an instance of a core module.
func (w *items) instantiate(module int, args []named) int {
	out := bytejoin.Join(byte(0), module, len(args))
	for _, n := range args {
		out = append(out, bytejoin.Join(n.name, byte(ctype.CoreInsts), n.index)...)
	}
	w.add(sectionCoreInstance, out)
	return w.next("instance")
}

func (w *items) module(b []byte) int {
	w.whole(sectionCoreModule, b)
	return w.next("module")
}

// write writes the component.
func (e *encoder) write() []byte {
	w := &items{out: []byte(preamble)}
	for _, d := range e.imports.items {
		w.add(d.section, d.item)
	}
	for range e.imports.counts[ctype.Funcs] {
		w.next("function")
	}
	for range e.imports.counts[ctype.Types] {
		w.next("type")
	}
	main := w.module(e.parts[0].module)
	shim := 0
	if len(e.table) > 0 {
		shim = w.instantiate(w.module(shimModule(e.indirect())), nil)
	}
	functions := e.functions(w)
	for i, p := range e.parts {
		module := main
		if i > 0 {
			module = w.module(p.module)
		}
		p.instance = w.instantiate(module, e.arguments(w, p, functions, shim))
	}
	o := e.options(w)
	e.fill(w, functions, shim, o)
	for _, l := range e.exports {
		e.lift(w, l, o)
	}
	w.flush()
	return w.out
}

// indirect lists the types of the functions that are called by the table, in its order.
func (e *encoder) indirect() (out []*ctype.CoreFunc) {
	for _, t := range e.table {
		out = append(out, t.core)
	}
	return out
}

// functions adds the component's functions that are lowered, and the resource types that are dropped. It returns
// their indices.
func (e *encoder) functions(w *items) map[*supply]int {
	out := map[*supply]int{}
	for _, p := range e.parts {
		for _, s := range p.imports {
			switch {
			case s.from != nil:
			case s.drops != "":
				w.add(sectionAlias, byte(ctype.Types), byte(0), int(s.place), s.drops)
				out[s] = w.next("type")
			case s.module == rootName:
				out[s] = int(s.place)
			default:
				w.add(sectionAlias, byte(ctype.Funcs), byte(0), int(s.place), s.name)
				out[s] = w.next("function")
			}
		}
	}
	return out
}

// arguments adds what a part is instantiated with: an instance for each module name that it imports from.
func (e *encoder) arguments(w *items, p *part, functions map[*supply]int, shim int) (args []named) {
	by := map[string][]named{}
	var order []string
	for _, s := range p.imports {
		if by[s.module] == nil {
			order = append(order, s.module)
		}
		var f int
		switch {
		case s.indirect >= 0:
			f = w.alias(ctype.CoreFuncs, shim, strconv.Itoa(s.indirect))
		case s.from != nil:
			f = w.alias(s.sort, s.from.instance, s.name)
		case s.drops != "":
			w.add(sectionCanon, byte(3), functions[s])
			f = w.next(ctype.CoreFuncs.String())
		default:
			w.add(sectionCanon, byte(1), byte(0), functions[s], 0)
			f = w.next(ctype.CoreFuncs.String())
		}
		by[s.module] = append(by[s.module], named{s.name, s.sort, f})
	}
	for _, module := range order {
		args = append(args, named{name: module, index: w.bundle(by[module])})
	}
	return args
}

// options are the canonical options by part: indices of its memory and of its realloc.
type options map[*part]struct{ memory, realloc int }

func (e *encoder) options(w *items) options {
	out := options{}
	main := out[e.parts[0]]
	for _, p := range e.parts {
		o := main
		if p.memory {
			o.memory = w.alias(ctype.CoreMemories, p.instance, memoryName)
		}
		if p.realloc {
			o.realloc = w.alias(ctype.CoreFuncs, p.instance, reallocName)
		}
		if out[p] = o; p == e.parts[0] {
			main = o
		}
	}
	return out
}

// canonical encodes the options that a function needs; post < 0 = there is nothing to be called afterwards.
func canonical(of *world, memory, realloc, post int) []byte {
	var out []byte
	n := 0
	add := func(parts ...any) {
		n++
		out = append(out, bytejoin.Join(parts...)...)
	}
	if memory >= 0 {
		add(of.strings)
		add(byte(3), memory)
	}
	if realloc >= 0 {
		add(byte(4), realloc)
	}
	if post >= 0 {
		add(byte(5), post)
	}
	return append(bytejoin.Join(n), out...)
}

// worldOf is the world that says how a part has strings.
func (e *encoder) worldOf(p *part) *world {
	if p.own != nil {
		return p.own
	}
	return e.world
}

// given is the index where an option is needed, else none.
func given(needed bool, index int) int {
	if !needed {
		return -1
	}
	return index
}

// fill makes the functions that are called by the table, and has a last module put them there, and then call what
// wants to be called first.
func (e *encoder) fill(w *items, functions map[*supply]int, shim int, o options) {
	var all []named
	for i, t := range e.table {
		var f int
		if t.supply.from != nil {
			f = w.alias(ctype.CoreFuncs, t.supply.from.instance, t.supply.name)
		} else {
			of := o[t.caller]
			w.add(sectionCanon, byte(1), byte(0), functions[t.supply],
				canonical(e.worldOf(t.caller), of.memory, given(t.supply.realloc, of.realloc), -1))
			f = w.next(ctype.CoreFuncs.String())
		}
		all = append(all, named{strconv.Itoa(i), ctype.CoreFuncs, f})
	}
	if len(e.table) > 0 {
		all = append(all, named{tableName, ctype.CoreTables, w.alias(ctype.CoreTables, shim, tableName)})
	}
	initialized := 0
	for i := range e.parts { // the module last
		if p := e.parts[(i+1)%len(e.parts)]; p.initialize {
			all = append(all, named{initName + strconv.Itoa(initialized), ctype.CoreFuncs, w.alias(ctype.CoreFuncs, p.instance, initName)})
			initialized++
		}
	}
	if len(all) > 0 {
		w.instantiate(w.module(fixupModule(e.indirect(), initialized)), []named{{name: "", index: w.bundle(all)}})
	}
}

func (e *encoder) lift(w *items, l lifted, o options) {
	f, post := w.alias(ctype.CoreFuncs, l.part.instance, l.name), -1
	if l.post {
		post = w.alias(ctype.CoreFuncs, l.part.instance, postPrefix+l.name)
	}
	memory, realloc := o[e.parts[0]].memory, o[l.part].realloc
	w.add(sectionCanon, byte(0), byte(0), f,
		canonical(e.world, given(l.flat.Memory || l.flat.Realloc, memory), given(l.flat.Realloc, realloc), post),
		int(e.types[place{ctype.Types, e.world.exported[l.name]}]))
	w.add(sectionExport, byte(0), l.name, byte(ctype.Funcs), w.next("function"), byte(0))
	w.next("function") // an export adds what it exports once more
}
