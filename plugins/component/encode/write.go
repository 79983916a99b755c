// SPDX-License-Identifier: Apache-2.0

package encode

import (
	"encoding/binary"
	"strconv"

	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

const (
	preamble  = "\x00asm\x0d\x00\x01\x00"
	coreMagic = "\x00asm\x01\x00\x00\x00"
	tableName = "$imports" // of the functions that are called indirectly
)

// join puts parts of an encoding together: bytes as they are, numbers, and texts with their length.
func join(parts ...any) (out []byte) {
	for _, p := range parts {
		switch p := p.(type) {
		case byte:
			out = append(out, p)
		case int:
			out = binary.AppendUvarint(out, uint64(p))
		case string:
			out = append(binary.AppendUvarint(out, uint64(len(p))), p...)
		case []byte:
			out = append(out, p...)
		}
	}
	return out
}

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
	w.pending = append(w.pending, join(parts...)...)
}

func (w *items) flush() {
	if w.n > 0 {
		body := append(join(w.n), w.pending...)
		w.out = append(w.out, join(w.section, len(body), body)...)
	}
	w.n, w.pending = 0, nil
}

// whole adds a section that has no items.
func (w *items) whole(section byte, body []byte) {
	w.flush()
	w.out = append(w.out, join(section, len(body), body)...)
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
	out := join(byte(1), len(all))
	for _, n := range all {
		out = append(out, join(n.name, byte(n.sort), n.index)...)
	}
	w.add(sectionCoreInstance, out)
	return w.next("instance")
}

// instantiate adds an instance of a core module.
func (w *items) instantiate(module int, args []named) int {
	out := join(byte(0), module, len(args))
	for _, n := range args {
		out = append(out, join(n.name, byte(ctype.CoreInsts), n.index)...)
	}
	w.add(sectionCoreInstance, out)
	return w.next("instance")
}

func (w *items) module(b []byte) int {
	w.whole(sectionCoreModule, b)
	return w.next("module")
}

// write writes the component.
func (e *encoder) write(module []byte) []byte {
	w := &items{out: []byte(preamble)}
	for _, d := range e.world.before {
		w.add(d.section, d.item)
	}
	for _, i := range e.world.typ.Imports {
		if i.Sort == ctype.Funcs {
			w.next("function")
		}
	}
	indirect := e.throughTable()
	main := w.module(module)
	shim := 0
	if len(indirect) > 0 {
		shim = w.instantiate(w.module(shimModule(indirect)), nil)
	}
	functions := e.functions(w)
	instance := w.instantiate(main, e.arguments(w, functions, shim))
	o := e.options(w, instance)
	e.fill(w, indirect, functions, shim, instance, o)
	for _, l := range e.exports {
		e.lift(w, l, instance, o)
	}
	w.flush()
	return w.out
}

// throughTable lists the functions that the module calls by the table, in its order.
func (e *encoder) throughTable() (out []*ctype.CoreFunc) {
	for _, l := range e.imports {
		if l.indirect >= 0 {
			out = append(out, l.core)
		}
	}
	return out
}

// functions adds the component's functions that are lowered, and the resource types that are dropped. It returns
// their indices.
func (e *encoder) functions(w *items) []int {
	var out []int
	types := e.typeCount()
	for _, l := range e.imports {
		switch {
		case l.drops != "":
			w.add(sectionAlias, byte(ctype.Types), byte(0), l.instance, l.drops)
			out = append(out, types)
			types++
		case l.module == rootName:
			out = append(out, l.instance)
		default:
			w.add(sectionAlias, byte(ctype.Funcs), byte(0), l.instance, l.name)
			out = append(out, w.next("function"))
		}
	}
	return out
}

// typeCount is how many types the world's declarations have added.
func (e *encoder) typeCount() (n int) {
	for _, d := range e.world.before {
		c := &cursor{b: d.item}
		switch d.section {
		case sectionType:
			n++
		case sectionAlias:
			if ctype.Sort(c.byte()) == ctype.Types {
				n++
			}
		case sectionImport:
			if c.externName(); ctype.Sort(c.byte()) == ctype.Types {
				n++
			}
		}
	}
	return n
}

// arguments adds what the module is instantiated with: an instance for each module name that it imports from.
func (e *encoder) arguments(w *items, functions []int, shim int) (args []named) {
	by := map[string][]named{}
	var order []string
	for i, l := range e.imports {
		if by[l.module] == nil {
			order = append(order, l.module)
		}
		var f int
		switch {
		case l.indirect >= 0:
			f = w.alias(ctype.CoreFuncs, shim, strconv.Itoa(l.indirect))
		case l.drops != "":
			w.add(sectionCanon, byte(3), functions[i])
			f = w.next(ctype.CoreFuncs.String())
		default:
			w.add(sectionCanon, byte(1), byte(0), functions[i], 0)
			f = w.next(ctype.CoreFuncs.String())
		}
		by[l.module] = append(by[l.module], named{l.name, ctype.CoreFuncs, f})
	}
	for _, module := range order {
		args = append(args, named{name: module, index: w.bundle(by[module])})
	}
	return args
}

// options are the canonical options: indices of the memory and of realloc.
type options struct{ memory, realloc int }

func (e *encoder) options(w *items, instance int) (o options) {
	if e.memory {
		o.memory = w.alias(ctype.CoreMemories, instance, memoryName)
	}
	if e.realloc {
		o.realloc = w.alias(ctype.CoreFuncs, instance, reallocName)
	}
	return o
}

// canonical encodes the options that a function needs; post < 0 = there is nothing to be called afterwards.
func (e *encoder) canonical(o options, memory, realloc bool, post int) []byte {
	var out []byte
	n := 0
	add := func(parts ...any) {
		n++
		out = append(out, join(parts...)...)
	}
	if memory || realloc {
		add(e.world.strings)
		add(byte(3), o.memory)
	}
	if realloc {
		add(byte(4), o.realloc)
	}
	if post >= 0 {
		add(byte(5), post)
	}
	return append(join(n), out...)
}

// fill lowers the functions that need the module's memory, and has a last module put them into the table.
func (e *encoder) fill(w *items, indirect []*ctype.CoreFunc, functions []int, shim, instance int, o options) {
	if len(indirect) == 0 && !e.initialize {
		return
	}
	var all []named
	for i, l := range e.imports {
		if l.indirect >= 0 {
			w.add(sectionCanon, byte(1), byte(0), functions[i], e.canonical(o, true, l.realloc, -1))
			all = append(all, named{strconv.Itoa(l.indirect), ctype.CoreFuncs, w.next(ctype.CoreFuncs.String())})
		}
	}
	if len(indirect) > 0 {
		all = append(all, named{tableName, ctype.CoreTables, w.alias(ctype.CoreTables, shim, tableName)})
	}
	if e.initialize {
		all = append(all, named{initName, ctype.CoreFuncs, w.alias(ctype.CoreFuncs, instance, initName)})
	}
	w.instantiate(w.module(fixupModule(indirect, e.initialize)), []named{{name: "", index: w.bundle(all)}})
}

func (e *encoder) lift(w *items, l lifted, instance int, o options) {
	f, post := w.alias(ctype.CoreFuncs, instance, l.name), -1
	if l.post {
		post = w.alias(ctype.CoreFuncs, instance, postPrefix+l.name)
	}
	w.add(sectionCanon, byte(0), byte(0), f, e.canonical(o, l.flat.Memory, l.flat.Realloc, post), int(e.world.exported[l.name]))
	w.add(sectionExport, byte(0), l.name, byte(ctype.Funcs), w.next("function"), byte(0))
	w.next("function") // an export adds what it exports once more
}
