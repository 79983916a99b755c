// SPDX-License-Identifier: Apache-2.0

package fuel

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/fuel/wasm"
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
func Key(source []byte, o Options) string {
	h := sha256.New()
	h.Write(source)
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
func Rewrite(source []byte, o Options) ([]byte, error) {
	m := &module{opts: o.withDefaults()}
	steps := []func() error{
		func() error { return m.split(source) },
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

func (m *module) split(source []byte) error {
	if len(source) < 8 || !bytes.Equal(source[:8], []byte("\x00asm\x01\x00\x00\x00")) {
		return fmt.Errorf("%w: no WebAssembly core module, version 1", wasm.ErrMalformed)
	}
	r := &wasm.Reader{B: source, Pos: 8}
	for !r.Done() {
		id := r.Byte()
		content := r.Bytes(r.U32())
		switch {
		case r.Err != nil:
			return r.Err
		case id == secCustom:
			c := wasm.Reader{B: content}
			name := c.Name()
			if c.Err != nil {
				return c.Err
			}
			if name == "name" && len(content) > maxNames {
				return wasm.TooMany(len(content), "bytes of names", maxNames)
			}
			m.customs = append(m.customs, custom{name: name, data: content[c.Pos:]})
			if len(m.customs) > maxCustoms {
				return wasm.TooMany(len(m.customs), "custom sections", maxCustoms)
			}
		case id >= secEnd:
			return fmt.Errorf("%w: unknown section %d", wasm.ErrMalformed, id)
		case m.sections[id] != nil:
			return fmt.Errorf("%w: section %d twice", wasm.ErrMalformed, id)
		default:
			m.sections[id] = content
		}
	}
	return r.Err
}

// section returns a reader of one section; an absent one reads as an empty vector.
func (m *module) section(id int) *wasm.Reader {
	if b := m.sections[id]; len(b) > 0 {
		return &wasm.Reader{B: b}
	}
	return &wasm.Reader{B: []byte{0}}
}

func (m *module) readTypes() error {
	r := m.section(secType)
	all := 0
	for n := r.Count("types", maxTypes); n > 0 && r.Err == nil; n-- {
		if form := r.Byte(); form != 0x60 {
			r.Fail("unknown form of type")
		}
		params := r.Bytes(r.Count("parameters of a type", maxArity))
		results := r.Bytes(r.Count("results of a type", maxArity))
		m.types = append(m.types, funcType{params: len(params), results: results})
		if all += len(params) + len(results); all > maxArities && r.Err == nil {
			return wasm.TooMany(all, "parameters and results of all types", maxArities)
		}
	}
	return r.Err
}

func (m *module) readImports() error {
	r := m.section(secImport)
	for n := r.Count("imports", maxImports); n > 0 && r.Err == nil; n-- {
		if mod, name := r.Name(), r.Name(); mod == ImportModule {
			return fmt.Errorf("import %s.%s is reserved to the host", mod, name)
		}
		switch r.Byte() {
		case 0:
			r.U32()
			m.imported++
		case 1:
			r.Byte()
			r.Limits()
		case 2:
			if flags, _, _ := r.Limits(); r.Err == nil {
				r.Err = checkMemory(flags)
			}
		case 3:
			r.Skip(2)
			m.globals++
			m.importedGlobals++
		default:
			r.Fail("unknown kind of import")
		}
	}
	return r.Err
}

func (m *module) readFunctions() error {
	r := m.section(secFunction)
	n := r.U32()
	if n > m.opts.Functions {
		return wasm.TooMany(n, "functions", int(m.opts.Functions))
	}
	for ; n > 0 && r.Err == nil; n-- {
		t := r.U32()
		if int(t) >= len(m.types) {
			r.Fail("unknown type")
		}
		m.funcTypes = append(m.funcTypes, t)
	}
	return r.Err
}

func (m *module) readGlobals() error {
	r := m.section(secGlobal)
	n := r.Count("globals", maxGlobals)
	for i := uint32(0); i < n && r.Err == nil; i++ {
		r.Byte()
		if r.Byte() == 1 {
			m.mutable = append(m.mutable, m.globals+i)
		}
		skipConstExpr(r)
	}
	m.globals += n
	return r.Err
}

// skipConstExpr skips an initialiser.
func skipConstExpr(r *wasm.Reader) {
	for r.Err == nil {
		op := r.Byte()
		var sub uint32
		if op == wasm.OpPrefixFD {
			sub = r.U32()
		}
		if op == wasm.OpEnd {
			return
		}
		r.Immediates(op, sub)
	}
}

func (m *module) readBodies() error {
	r := m.section(secCode)
	n := r.U32()
	if r.Err == nil && int(n) != len(m.funcTypes) {
		r.Fail("function and code sections differ in length")
	}
	var cost uint64
	for i := uint32(0); i < n && r.Err == nil; i++ {
		size := r.U32()
		if size > m.opts.BodyBytes {
			return wasm.OverLimit("bytes of a function",
				"function %d has a body of %d bytes: at most %d are allowed", m.imported+i, size, m.opts.BodyBytes)
		}
		at := r.Pos
		body := r.Bytes(size)
		m.bodies = append(m.bodies, body)
		m.bodyAt = append(m.bodyAt, at)
		// Every call makes the compiler reload every mutable global.
		cost += uint64(len(body)) * uint64(1+len(m.mutable)/8)
	}
	if cost > 8*m.opts.CompileCost {
		return fmt.Errorf("%d bytes of code with %d mutable globals are too expensive to compile", len(m.sections[secCode]), len(m.mutable))
	}
	return r.Err
}

// readData looks at the data segments: nothing is changed in them, but a length that
// is a lie has to be found before an engine allocates it.
func (m *module) readData() error {
	r := m.section(secData)
	for n := r.Count("data segments", maxSegments); n > 0 && r.Err == nil; n-- {
		flags := r.U32()
		if flags == 2 {
			r.U32()
		}
		if flags != 1 {
			skipConstExpr(r)
		}
		m.data = append(m.data, uint32(len(r.Bytes(r.U32()))))
	}
	return r.Err
}

// Strip returns a module without its custom sections: what a validator needs to see.
func Strip(source []byte) ([]byte, error) {
	m := &module{}
	if err := m.split(source); err != nil {
		return nil, err
	}
	m.customs = nil
	return m.assemble(), nil
}

func (m *module) boundTables() error {
	r := m.section(secTable)
	n := r.Count("tables", maxTables)
	out := wasm.AppendU32(nil, n)
	for ; n > 0 && r.Err == nil; n-- {
		out = append(out, r.Byte())
		flags, minimum, maximum := r.Limits()
		if minimum > m.opts.TableEntries {
			return wasm.OverLimit("entries of a table", "a table of %d entries: at most %d are allowed", minimum, m.opts.TableEntries)
		}
		if flags&1 == 0 || maximum > m.opts.TableEntries {
			flags, maximum = flags|1, m.opts.TableEntries
		}
		out = wasm.AppendLimits(out, flags, minimum, maximum)
	}
	m.put(secTable, out)
	return r.Err
}

func (m *module) boundMemory() error {
	r := m.section(secMemory)
	n := r.U32()
	out := wasm.AppendU32(nil, n)
	for ; n > 0 && r.Err == nil; n-- {
		flags, minimum, maximum := r.Limits()
		if err := checkMemory(flags); err != nil {
			return err
		}
		if minimum > m.opts.MemoryPages {
			return fmt.Errorf("the module starts with %d KiB of memory: its limit is %d KiB (limits.memory)", minimum*64, m.opts.MemoryPages*64)
		}
		if flags&1 == 0 || maximum > m.opts.MemoryPages {
			flags, maximum = 1, m.opts.MemoryPages
		}
		out = wasm.AppendLimits(out, flags, minimum, maximum)
	}
	m.put(secMemory, out)
	return r.Err
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
	n := r.Count("exports", maxExports)
	var out []byte
	for i := uint32(0); i < n && r.Err == nil; i++ {
		name := r.Name()
		if name == ExportCounter || len(name) > len(ExportGlobal) && name[:len(ExportGlobal)] == ExportGlobal {
			return fmt.Errorf("export %q is reserved to the host", name)
		}
		kind, index := r.Byte(), r.U32()
		switch kind {
		case 0:
			index = m.renumber(index)
		case 3:
			index = m.renumberGlobal(index)
		}
		out = wasm.AppendU32(append(wasm.AppendName(out, name), kind), index)
	}
	out = wasm.AppendU32(append(wasm.AppendName(out, ExportCounter), 3), m.counter())
	added := uint32(1)
	if m.opts.ExportGlobals {
		for i, g := range m.mutable {
			out = wasm.AppendU32(append(wasm.AppendName(out, fmt.Sprintf("%s%d", ExportGlobal, i)), 3), m.renumberGlobal(g))
			added++
		}
	}
	m.sections[secExport] = append(wasm.AppendU32(nil, n+added), out...)
	return r.Err
}

func (m *module) rewriteStart() error {
	if m.sections[secStart] == nil {
		return nil
	}
	r := m.section(secStart)
	m.sections[secStart] = wasm.AppendU32(nil, m.renumber(r.U32()))
	return r.Err
}

// rewriteGlobals adds the fuel counter and the stack budget, and moves ref.func
// in the initialisers of the others.
func (m *module) rewriteGlobals() error {
	r := m.section(secGlobal)
	n := r.U32()
	var out []byte
	for i := uint32(0); i < n && r.Err == nil; i++ {
		out = append(out, r.Byte(), r.Byte())
		out = m.constExpr(out, r)
	}
	if m.opts.Shared {
		m.put(secGlobal, append(wasm.AppendU32(nil, n), out...))
		return r.Err
	}
	out = append(out, wasm.TypeI64, 1, wasm.OpI64Const, 0, wasm.OpEnd)
	out = append(wasm.AppendS64(append(out, wasm.TypeI64, 1, wasm.OpI64Const), m.opts.StackBytes), wasm.OpEnd)
	m.sections[secGlobal] = append(wasm.AppendU32(nil, n+2), out...)
	return r.Err
}

// constExpr copies an initialiser, with function indices moved.
func (m *module) constExpr(out []byte, r *wasm.Reader) []byte {
	for r.Err == nil {
		at := r.Pos
		op := r.Byte()
		if op == wasm.OpRefFunc {
			out = wasm.AppendU32(append(out, op), m.renumber(r.U32()))
			continue
		}
		var sub uint32
		if op == wasm.OpPrefixFD {
			sub = r.U32()
		}
		r.Immediates(op, sub)
		out = append(out, r.B[at:r.Pos]...)
		if op == wasm.OpEnd {
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
	n := r.Count("element segments", maxElements)
	out := wasm.AppendU32(nil, n)
	entries := 0
	for ; n > 0 && r.Err == nil; n-- {
		flags := r.U32()
		if flags > 7 {
			r.Fail("unknown kind of element segment")
		}
		out = wasm.AppendU32(out, flags)
		if flags&1 == 0 {
			if flags&2 != 0 {
				out = wasm.AppendU32(out, r.U32())
			}
			out = m.constExpr(out, r)
		}
		if flags&3 != 0 {
			out = append(out, r.Byte())
		}
		count := r.Count("functions in element segments", maxEntries)
		if entries += int(count); entries > maxEntries {
			return wasm.TooMany(entries, "functions in element segments", maxEntries)
		}
		out = wasm.AppendU32(out, count)
		for ; count > 0 && r.Err == nil; count-- {
			if flags&4 != 0 {
				out = m.constExpr(out, r)
			} else {
				out = wasm.AppendU32(out, m.renumber(r.U32()))
			}
		}
	}
	m.sections[secElement] = out
	return r.Err
}

// finishDeclarations writes types, imports and functions, once it is known what
// the code needs.
func (m *module) finishDeclarations() {
	yield := m.typeIndex([]byte{0x60, 1, wasm.TypeI32, 0})
	r := m.section(secImport)
	n := r.U32()
	added := uint32(1)
	if m.opts.Shared {
		added = 3
	}
	imports := append(wasm.AppendU32(nil, n+added), r.B[r.Pos:]...)
	imports = wasm.AppendName(wasm.AppendName(imports, ImportModule), ImportYield)
	imports = wasm.AppendU32(append(imports, 0), yield)
	if m.opts.Shared {
		imports = importMeter(imports)
	}
	m.sections[secImport] = imports
	m.declareFunctions()
}

func (m *module) declareFunctions() {
	r := m.section(secFunction)
	n := r.U32()
	var added []byte
	for h := range m.helpers {
		if m.helpers[h] {
			added = wasm.AppendU32(added, m.helperType(h))
			n++
		}
	}
	for range m.inits {
		added = wasm.AppendU32(added, m.helperType(helperCopy))
		n++
	}
	if n > 0 {
		m.sections[secFunction] = append(append(wasm.AppendU32(nil, n), r.B[r.Pos:]...), added...)
	}
	r = m.section(secType)
	r.U32()
	types := append(wasm.AppendU32(nil, uint32(len(m.types)+len(m.newTypes))), r.B[r.Pos:]...)
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
			out = wasm.AppendSection(out, id, m.sections[id])
		}
	}
	for _, c := range m.customs {
		out = wasm.AppendSection(out, secCustom, append(wasm.AppendName(nil, c.name), c.data...))
	}
	return out
}
