// SPDX-License-Identifier: Apache-2.0

package fuel

import (
	"fmt"

	"github.com/wasmplane/wasmplane/plugins/fuel/callgraph"
	"github.com/wasmplane/wasmplane/plugins/fuel/survey"
	"github.com/wasmplane/wasmplane/plugins/fuel/wasm"
)

// measureFrames decides which functions count their frames: those that can call
// themselves, over however many others, and all of them where even calls without
// recursion could pile up more than half of the stack budget.
//
// Calls through tables may reach every function whose address is taken. Where several modules share
// their budget, so may calls of imported functions, which others define: and every exported function.
func (m *module) measureFrames() error {
	n := len(m.bodies)
	m.frames, m.leaves, m.loops = make([]int64, n), make([]int64, n), make([]bool, n)
	if n == 0 {
		return nil
	}
	g := callgraph.Graph{Edges: make([][]int32, n+1)}
	indirect := int32(n) // stands for "through a table"
	taken := make([]bool, n)
	take := func(index uint32) {
		if d := int(index) - int(m.imported); d >= 0 && d < n && !taken[d] {
			taken[d] = true
			g.Edges[indirect] = append(g.Edges[indirect], int32(d))
		}
	}
	size := make([]int64, n+1)
	cost := uint64(0)
	for i, b := range m.bodies {
		seen := map[int32]bool{}
		add := func(to int32) {
			if !seen[to] {
				seen[to] = true
				g.Edges[i] = append(g.Edges[i], to)
			}
		}
		t := &m.types[m.funcTypes[i]]
		found, err := survey.Body(b, len(t.results), maxLocals, signatures{m}, func(op byte, index uint32) {
			switch d := int(index) - int(m.imported); {
			case op == wasm.OpCallIndirect, op == wasm.OpCall && d < 0 && m.opts.Shared:
				add(indirect)
			case op == wasm.OpRefFunc:
				take(index)
			case d >= 0 && d < n:
				add(int32(d))
			}
		})
		if err != nil {
			return err
		}
		m.loops[i] = found.Loops
		one := found.CompileCost(t.params, len(m.mutable))
		cost += one
		if err := m.affordable(uint32(i), &found, one, cost); err != nil {
			return err
		}
		if found.Weight > 0 && found.Weight <= leafWeight && found.Locals <= leafLocals && !m.opts.Shared { // its globals have to be renumbered
			m.leaves[i] = found.Weight
		}
		size[i] = frameBase + int64(len(b))/frameBodyPart + 8*int64(m.types[m.funcTypes[i]].params) + localBytes(b)
	}
	if err := m.eachElementFunction(take); err != nil {
		return err
	}
	err := m.eachEntry(func(index uint32) {
		if m.opts.Shared {
			take(index)
		}
		if d := int(index) - int(m.imported); d >= 0 && d < n {
			m.leaves[d] = 0
		}
	})
	if err != nil {
		return err
	}
	for i := range m.leaves {
		if taken[i] { // may be called through a table, by a caller that does not know it
			m.leaves[i] = 0
		}
	}
	recursive, deepest := g.Analyse(size)
	all := deepest > m.opts.StackBytes/2
	for i := range m.frames {
		if (all || recursive[i]) && m.leaves[i] == 0 {
			m.frames[i] = size[i]
		}
	}
	return nil
}

// affordable refuses a function that the compiler would be busy with for too long, or that
// makes the module one.
func (m *module) affordable(i uint32, f *survey.Facts, one, all uint64) error {
	if f.Table > maxTargets {
		return wasm.OverLimit("targets of a br_table",
			"%d targets of a br_table in function %d: at most %d are allowed", f.Table, m.imported+i, maxTargets)
	}
	limit, spent := m.opts.FunctionCost, one
	if one <= limit {
		limit, spent = m.opts.CompileCost, all
	}
	if spent <= limit {
		return nil
	}
	return fmt.Errorf("function %d is too expensive to compile (estimated %d, at most %d): it has %d blocks and targets, nested %d deep, %d locals, %d calls, branches with %d values, and the module has %d mutable globals",
		m.imported+i, spent, limit, f.Blocks, f.Depth, f.Locals, f.Calls, f.Values, len(m.mutable))
}

// signatures are the module's types, for survey.
type signatures struct{ m *module }

func (t signatures) Block(blockType int64) (params, results uint64) {
	switch {
	case blockType >= 0 && blockType < int64(len(t.m.types)):
		return uint64(t.m.types[blockType].params), uint64(len(t.m.types[blockType].results))
	case blockType == -64: // empty
		return 0, 0
	}
	return 0, 1
}

// Function is 0 for imports: the host's have few.
func (t signatures) Function(index uint32) uint64 {
	d := int64(index) - int64(t.m.imported)
	if d < 0 || d >= int64(len(t.m.funcTypes)) {
		return 0
	}
	params, results := t.Block(int64(t.m.funcTypes[d]))
	return params + results
}

// localBytes is what the declared locals of a body take.
func localBytes(body []byte) int64 {
	r := wasm.Reader{B: body}
	var n int64
	for groups := r.U32(); groups > 0 && r.Err == nil; groups-- {
		count := int64(r.U32())
		if r.Byte() == 0x7b { // v128
			count *= 2
		}
		n += 8 * count
	}
	return n
}

// eachEntry visits the functions that the host calls, which pays for nothing ahead:
// exports, and the start function.
func (m *module) eachEntry(visit func(uint32)) error {
	r := m.section(secExport)
	for n := r.U32(); n > 0 && r.Err == nil; n-- {
		r.Name()
		if kind, index := r.Byte(), r.U32(); kind == 0 {
			visit(index)
		}
	}
	if r.Err != nil || m.sections[secStart] == nil {
		return r.Err
	}
	r = m.section(secStart)
	visit(r.U32())
	return r.Err
}

// eachElementFunction visits the functions that element segments and global
// initialisers name.
func (m *module) eachElementFunction(visit func(uint32)) error {
	r := m.section(secGlobal)
	for n := r.U32(); n > 0 && r.Err == nil; n-- {
		r.Skip(2)
		visitConstExpr(r, visit)
	}
	if r.Err != nil {
		return r.Err
	}
	r = m.section(secElement)
	for n := r.U32(); n > 0 && r.Err == nil; n-- {
		flags := r.U32()
		if flags&1 == 0 {
			if flags&2 != 0 {
				r.U32()
			}
			skipConstExpr(r)
		}
		if flags&3 != 0 {
			r.Byte()
		}
		for count := r.U32(); count > 0 && r.Err == nil; count-- {
			if flags&4 != 0 {
				visitConstExpr(r, visit)
			} else {
				visit(r.U32())
			}
		}
	}
	return r.Err
}

func visitConstExpr(r *wasm.Reader, visit func(uint32)) {
	for r.Err == nil {
		op := r.Byte()
		if op == wasm.OpRefFunc {
			visit(r.U32())
			continue
		}
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
