// SPDX-License-Identifier: Apache-2.0

package fuel

import (
	"bytes"
	"crypto/sha256"
	"fmt"
)

// Version is part of every key under which rewritten modules are cached: it
// grows with any change of what Rewrite puts out.
const Version = 9

// Names that a rewritten module and its host share. A module that already uses
// one of them is refused.
const (
	// ImportModule and ImportYield name the safe point, func(why i32): see Yield and Overflow.
	ImportModule = "wasmplane:fuel"
	ImportYield  = "yield"
	// ExportCounter is the exported mutable i64 global that holds the fuel left.
	ExportCounter = "wasmplane:fuel"
	// ExportGlobal is the prefix under which mutable globals are exported with
	// Options.ExportGlobals: "wasmplane:global0", ...
	ExportGlobal = "wasmplane:global"
)

// Why a rewritten module calls the host.
const (
	// Yield: the counter is below zero. The host refills it, or traps.
	Yield = 0
	// Overflow: the stack budget is used up. The host traps; to return would be wrong.
	Overflow = 1
)

// Options are the bounds that a module is rewritten for. The zero value of a
// field means its default.
type Options struct {
	MemoryPages  uint32 // most 64 KiB pages of linear memory; default 512 (32 MiB)
	StackBytes   int64  // stack budget of recursive calls, in estimated bytes; default 1 MiB
	TableEntries uint32 // most entries of a table; default 1<<18
	Functions    uint32 // most functions; default 1<<17
	BodyBytes    uint32 // longest function body; default 1 MiB
	FunctionCost uint64 // bound of what the compiler has to do for one function; default 3<<20, some seconds
	CompileCost  uint64 // the same for all of them; default 1<<25
	// ExportGlobals exports every mutable global, so that a host can put an
	// instance back to an earlier state.
	ExportGlobals bool
	// Shared has the module import counter and stack budget (ImportMeter), which several modules
	// that call each other share. StackBytes is Meter's then.
	Shared bool
}

func (o Options) withDefaults() Options {
	set := func(p *uint32, v uint32) {
		if *p == 0 {
			*p = v
		}
	}
	set(&o.MemoryPages, 512)
	set(&o.TableEntries, 1<<18)
	set(&o.Functions, 1<<17)
	set(&o.BodyBytes, 1<<20)
	if o.StackBytes == 0 {
		o.StackBytes = 1 << 20
	}
	if o.FunctionCost == 0 {
		o.FunctionCost = 3 << 20
	}
	if o.CompileCost == 0 {
		o.CompileCost = 1 << 25
	}
	return o
}

// Key names what Rewrite would make of a module, for caches.
func Key(wasm []byte, o Options) string {
	h := sha256.New()
	h.Write(wasm)
	_, _ = fmt.Fprintf(h, "|%d|%+v", Version, o.withDefaults()) // a hash never fails
	return fmt.Sprintf("%x", h.Sum(nil))
}

// Section ids.
const (
	secCustom = iota
	secType
	secImport
	secFunction
	secTable
	secMemory
	secGlobal
	secExport
	secStart
	secElement
	secCode
	secData
	secDataCount
	secEnd
)

// sectionOrder is the order in which known sections are written.
var sectionOrder = [...]byte{
	secType, secImport, secFunction, secTable, secMemory, secGlobal,
	secExport, secStart, secElement, secDataCount, secCode, secData,
}

type funcType struct {
	params  int
	results []byte
}

type custom struct {
	name string
	data []byte
}

// module is a parsed module and the state of its rewriting.
type module struct {
	opts     Options
	sections [secEnd][]byte
	customs  []custom

	types           []funcType
	newTypes        [][]byte // encodings of types that the rewriter adds
	imported        uint32   // imported functions
	funcTypes       []uint32 // of defined functions
	bodies          [][]byte
	bodyAt          []int // offset of each body in the code section
	globals         uint32
	importedGlobals uint32
	mutable         []uint32 // indices of mutable defined globals

	frames  []int64 // stack budget that each function takes; 0 = none
	loops   []bool  // functions with a loop: they hold the counter in a local
	leaves  []int64 // weight of functions that their callers pay for; 0 = pays itself
	helpers [helperCount]bool
	data    []uint32 // length of each data segment
	inits   []uint32 // segments that memory.init copies in chunks, by a helper each

	moves   []move // where instructions went, for the line table
	tracing bool
	oldBase int
	pending int // first of moves that belongs to the body being emitted
}

// move says that from old offset in the code section on, code is at new offset.
type move struct{ from, to int }

// Rewrite returns the metered form of a module. What it makes of an invalid one is
// worth nothing: have the original validated before the result is used. It may come before
// that, and should: it finds every length that is a lie, which a validator might allocate.
func Rewrite(wasm []byte, o Options) ([]byte, error) {
	m := &module{opts: o.withDefaults()}
	steps := []func() error{
		func() error { return m.split(wasm) },
		m.readTypes, m.readImports, m.readFunctions, m.readGlobals, m.readBodies, m.readData,
		m.boundTables, m.boundMemory, m.measureFrames, m.rewriteCode,
		m.rewriteExports, m.rewriteStart, m.rewriteElements, m.rewriteGlobals,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	m.finishDeclarations()
	m.rewriteCustoms()
	return m.assemble(), nil
}

func (m *module) split(wasm []byte) error {
	if len(wasm) < 8 || !bytes.Equal(wasm[:8], []byte("\x00asm\x01\x00\x00\x00")) {
		return fmt.Errorf("%w: no WebAssembly core module, version 1", ErrMalformed)
	}
	r := &reader{b: wasm, pos: 8}
	for !r.done() {
		id := r.byte()
		content := r.bytes(r.u32())
		switch {
		case r.err != nil:
			return r.err
		case id == secCustom:
			c := reader{b: content}
			name := c.name()
			if c.err != nil {
				return c.err
			}
			if name == "name" && len(content) > maxNames {
				return tooMany(len(content), "bytes of names", maxNames)
			}
			m.customs = append(m.customs, custom{name: name, data: content[c.pos:]})
			if len(m.customs) > maxCustoms {
				return tooMany(len(m.customs), "custom sections", maxCustoms)
			}
		case id >= secEnd:
			return fmt.Errorf("%w: unknown section %d", ErrMalformed, id)
		case m.sections[id] != nil:
			return fmt.Errorf("%w: section %d twice", ErrMalformed, id)
		default:
			m.sections[id] = content
		}
	}
	return r.err
}

// section returns a reader of one section; an absent one reads as an empty vector.
func (m *module) section(id int) *reader {
	if b := m.sections[id]; len(b) > 0 {
		return &reader{b: b}
	}
	return &reader{b: []byte{0}}
}

func (m *module) readTypes() error {
	r := m.section(secType)
	all := 0
	for n := r.count("types", maxTypes); n > 0 && r.err == nil; n-- {
		if form := r.byte(); form != 0x60 {
			r.fail("unknown form of type")
		}
		params := r.bytes(r.count("parameters of a type", maxArity))
		results := r.bytes(r.count("results of a type", maxArity))
		m.types = append(m.types, funcType{params: len(params), results: results})
		if all += len(params) + len(results); all > maxArities && r.err == nil {
			return tooMany(all, "parameters and results of all types", maxArities)
		}
	}
	return r.err
}

func (m *module) readImports() error {
	r := m.section(secImport)
	for n := r.count("imports", maxImports); n > 0 && r.err == nil; n-- {
		if mod, name := r.name(), r.name(); mod == ImportModule {
			return fmt.Errorf("import %s.%s is reserved to the host", mod, name)
		}
		switch r.byte() {
		case 0:
			r.u32()
			m.imported++
		case 1:
			r.byte()
			r.limits()
		case 2:
			if flags, _, _ := r.limits(); r.err == nil {
				r.err = checkMemory(flags)
			}
		case 3:
			r.skip(2)
			m.globals++
			m.importedGlobals++
		default:
			r.fail("unknown kind of import")
		}
	}
	return r.err
}

func (m *module) readFunctions() error {
	r := m.section(secFunction)
	n := r.u32()
	if n > m.opts.Functions {
		return fmt.Errorf("%d functions: at most %d are allowed", n, m.opts.Functions)
	}
	for ; n > 0 && r.err == nil; n-- {
		t := r.u32()
		if int(t) >= len(m.types) {
			r.fail("unknown type")
		}
		m.funcTypes = append(m.funcTypes, t)
	}
	return r.err
}

func (m *module) readGlobals() error {
	r := m.section(secGlobal)
	n := r.count("globals", maxGlobals)
	for i := uint32(0); i < n && r.err == nil; i++ {
		r.byte()
		if r.byte() == 1 {
			m.mutable = append(m.mutable, m.globals+i)
		}
		skipConstExpr(r)
	}
	m.globals += n
	return r.err
}

// skipConstExpr skips an initialiser.
func skipConstExpr(r *reader) {
	for r.err == nil {
		op := r.byte()
		var sub uint32
		if op == opPrefixFD {
			sub = r.u32()
		}
		if op == opEnd {
			return
		}
		r.immediates(op, sub)
	}
}

func (m *module) readBodies() error {
	r := m.section(secCode)
	n := r.u32()
	if r.err == nil && int(n) != len(m.funcTypes) {
		r.fail("function and code sections differ in length")
	}
	var cost uint64
	for i := uint32(0); i < n && r.err == nil; i++ {
		size := r.u32()
		if size > m.opts.BodyBytes {
			return fmt.Errorf("function %d has a body of %d bytes: at most %d are allowed", m.imported+i, size, m.opts.BodyBytes)
		}
		at := r.pos
		body := r.bytes(size)
		m.bodies = append(m.bodies, body)
		m.bodyAt = append(m.bodyAt, at)
		// Every call makes the compiler reload every mutable global.
		cost += uint64(len(body)) * uint64(1+len(m.mutable)/8)
	}
	if cost > 8*m.opts.CompileCost {
		return fmt.Errorf("%d bytes of code with %d mutable globals are too expensive to compile", len(m.sections[secCode]), len(m.mutable))
	}
	return r.err
}

// readData looks at the data segments: nothing is changed in them, but a length that
// is a lie has to be found before an engine allocates it.
func (m *module) readData() error {
	r := m.section(secData)
	for n := r.count("data segments", maxSegments); n > 0 && r.err == nil; n-- {
		flags := r.u32()
		if flags == 2 {
			r.u32()
		}
		if flags != 1 {
			skipConstExpr(r)
		}
		m.data = append(m.data, uint32(len(r.bytes(r.u32()))))
	}
	return r.err
}

// Strip returns a module without its custom sections: what a validator needs to see.
func Strip(wasm []byte) ([]byte, error) {
	m := &module{}
	if err := m.split(wasm); err != nil {
		return nil, err
	}
	m.customs = nil
	return m.assemble(), nil
}

func (m *module) boundTables() error {
	r := m.section(secTable)
	n := r.count("tables", maxTables)
	out := appendU32(nil, n)
	for ; n > 0 && r.err == nil; n-- {
		out = append(out, r.byte())
		flags, minimum, maximum := r.limits()
		if minimum > m.opts.TableEntries {
			return fmt.Errorf("a table of %d entries: at most %d are allowed", minimum, m.opts.TableEntries)
		}
		if flags&1 == 0 || maximum > m.opts.TableEntries {
			flags, maximum = flags|1, m.opts.TableEntries
		}
		out = appendLimits(out, flags, minimum, maximum)
	}
	m.put(secTable, out)
	return r.err
}

func (m *module) boundMemory() error {
	r := m.section(secMemory)
	n := r.u32()
	out := appendU32(nil, n)
	for ; n > 0 && r.err == nil; n-- {
		flags, minimum, maximum := r.limits()
		if err := checkMemory(flags); err != nil {
			return err
		}
		if minimum > m.opts.MemoryPages {
			return fmt.Errorf("the module starts with %d KiB of memory: its limit is %d KiB (limits.memory)", minimum*64, m.opts.MemoryPages*64)
		}
		if flags&1 == 0 || maximum > m.opts.MemoryPages {
			flags, maximum = 1, m.opts.MemoryPages
		}
		out = appendLimits(out, flags, minimum, maximum)
	}
	m.put(secMemory, out)
	return r.err
}

// put replaces a section that exists.
func (m *module) put(id int, content []byte) {
	if m.sections[id] != nil {
		m.sections[id] = content
	}
}

// renumber gives a defined function's new index, behind our import.
func (m *module) renumber(i uint32) uint32 {
	if i < m.imported {
		return i
	}
	return i + 1
}

func (m *module) rewriteExports() error {
	r := m.section(secExport)
	n := r.count("exports", maxExports)
	var out []byte
	for i := uint32(0); i < n && r.err == nil; i++ {
		name := r.name()
		if name == ExportCounter || len(name) > len(ExportGlobal) && name[:len(ExportGlobal)] == ExportGlobal {
			return fmt.Errorf("export %q is reserved to the host", name)
		}
		kind, index := r.byte(), r.u32()
		switch kind {
		case 0:
			index = m.renumber(index)
		case 3:
			index = m.renumberGlobal(index)
		}
		out = appendU32(append(appendName(out, name), kind), index)
	}
	out = appendU32(append(appendName(out, ExportCounter), 3), m.counter())
	added := uint32(1)
	if m.opts.ExportGlobals {
		for i, g := range m.mutable {
			out = appendU32(append(appendName(out, fmt.Sprintf("%s%d", ExportGlobal, i)), 3), m.renumberGlobal(g))
			added++
		}
	}
	m.sections[secExport] = append(appendU32(nil, n+added), out...)
	return r.err
}

func (m *module) rewriteStart() error {
	if m.sections[secStart] == nil {
		return nil
	}
	r := m.section(secStart)
	m.sections[secStart] = appendU32(nil, m.renumber(r.u32()))
	return r.err
}

// rewriteGlobals adds the fuel counter and the stack budget, and moves ref.func
// in the initialisers of the others.
func (m *module) rewriteGlobals() error {
	r := m.section(secGlobal)
	n := r.u32()
	var out []byte
	for i := uint32(0); i < n && r.err == nil; i++ {
		out = append(out, r.byte(), r.byte())
		out = m.constExpr(out, r)
	}
	if m.opts.Shared {
		m.put(secGlobal, append(appendU32(nil, n), out...))
		return r.err
	}
	out = append(out, typeI64, 1, opI64Const, 0, opEnd)
	out = append(appendS64(append(out, typeI64, 1, opI64Const), m.opts.StackBytes), opEnd)
	m.sections[secGlobal] = append(appendU32(nil, n+2), out...)
	return r.err
}

// constExpr copies an initialiser, with function indices moved.
func (m *module) constExpr(out []byte, r *reader) []byte {
	for r.err == nil {
		at := r.pos
		op := r.byte()
		if op == opRefFunc {
			out = appendU32(append(out, op), m.renumber(r.u32()))
			continue
		}
		var sub uint32
		if op == opPrefixFD {
			sub = r.u32()
		}
		r.immediates(op, sub)
		out = append(out, r.b[at:r.pos]...)
		if op == opEnd {
			return out
		}
	}
	return out
}

// rewriteElements moves the function indices of element segments; the flags are
// those of the binary format, section 5.5.12.
func (m *module) rewriteElements() error {
	if m.sections[secElement] == nil {
		return nil
	}
	r := m.section(secElement)
	n := r.count("element segments", maxElements)
	out := appendU32(nil, n)
	entries := 0
	for ; n > 0 && r.err == nil; n-- {
		flags := r.u32()
		if flags > 7 {
			r.fail("unknown kind of element segment")
		}
		out = appendU32(out, flags)
		if flags&1 == 0 {
			if flags&2 != 0 {
				out = appendU32(out, r.u32())
			}
			out = m.constExpr(out, r)
		}
		if flags&3 != 0 {
			out = append(out, r.byte())
		}
		count := r.count("functions in element segments", maxEntries)
		if entries += int(count); entries > maxEntries {
			return tooMany(entries, "functions in element segments", maxEntries)
		}
		out = appendU32(out, count)
		for ; count > 0 && r.err == nil; count-- {
			if flags&4 != 0 {
				out = m.constExpr(out, r)
			} else {
				out = appendU32(out, m.renumber(r.u32()))
			}
		}
	}
	m.sections[secElement] = out
	return r.err
}

// finishDeclarations writes types, imports and functions, once it is known what
// the code needs.
func (m *module) finishDeclarations() {
	yield := m.typeIndex([]byte{0x60, 1, typeI32, 0})
	r := m.section(secImport)
	n := r.u32()
	added := uint32(1)
	if m.opts.Shared {
		added = 3
	}
	imports := append(appendU32(nil, n+added), r.b[r.pos:]...)
	imports = appendName(appendName(imports, ImportModule), ImportYield)
	imports = appendU32(append(imports, 0), yield)
	if m.opts.Shared {
		imports = importMeter(imports)
	}
	m.sections[secImport] = imports
	m.declareFunctions()
}

func (m *module) declareFunctions() {
	r := m.section(secFunction)
	n := r.u32()
	var added []byte
	for h := range m.helpers {
		if m.helpers[h] {
			added = appendU32(added, m.helperType(h))
			n++
		}
	}
	for range m.inits {
		added = appendU32(added, m.helperType(helperCopy))
		n++
	}
	if n > 0 {
		m.sections[secFunction] = append(append(appendU32(nil, n), r.b[r.pos:]...), added...)
	}
	r = m.section(secType)
	r.u32()
	types := append(appendU32(nil, uint32(len(m.types)+len(m.newTypes))), r.b[r.pos:]...)
	for _, t := range m.newTypes {
		types = append(types, t...)
	}
	m.sections[secType] = types
}

// typeIndex adds a type, unless the rewriter has added it before.
func (m *module) typeIndex(encoded []byte) uint32 {
	for i, t := range m.newTypes {
		if bytes.Equal(t, encoded) {
			return uint32(len(m.types) + i)
		}
	}
	m.newTypes = append(m.newTypes, encoded)
	return uint32(len(m.types) + len(m.newTypes) - 1)
}

func (m *module) assemble() []byte {
	out := []byte("\x00asm\x01\x00\x00\x00")
	for _, id := range sectionOrder {
		if m.sections[id] != nil {
			out = appendSection(out, id, m.sections[id])
		}
	}
	for _, c := range m.customs {
		out = appendSection(out, secCustom, append(appendName(nil, c.name), c.data...))
	}
	return out
}
