// SPDX-License-Identifier: Apache-2.0

package fuel

import "fmt"

// measureFrames decides which functions count their frames: those that can call
// themselves, over however many others, and all of them where even calls without
// recursion could pile up more than half of the stack budget.
//
// Calls through tables may reach every function whose address is taken.
func (m *module) measureFrames() error {
	n := len(m.bodies)
	m.frames, m.leaves, m.loops = make([]int64, n), make([]int64, n), make([]bool, n)
	if n == 0 {
		return nil
	}
	g := graph{edges: make([][]int32, n+1)}
	indirect := int32(n) // stands for "through a table"
	taken := make([]bool, n)
	take := func(index uint32) {
		if d := int(index) - int(m.imported); d >= 0 && d < n && !taken[d] {
			taken[d] = true
			g.edges[indirect] = append(g.edges[indirect], int32(d))
		}
	}
	size := make([]int64, n+1)
	cost := uint64(0)
	for i, b := range m.bodies {
		seen := map[int32]bool{}
		add := func(to int32) {
			if !seen[to] {
				seen[to] = true
				g.edges[i] = append(g.edges[i], to)
			}
		}
		t := &m.types[m.funcTypes[i]]
		found, err := m.survey(b, t, func(op byte, index uint32) {
			switch d := int(index) - int(m.imported); {
			case op == opCallIndirect:
				add(indirect)
			case op == opRefFunc:
				take(index)
			case d >= 0 && d < n:
				add(int32(d))
			}
		})
		if err != nil {
			return err
		}
		m.loops[i] = found.loops
		one := found.compileCost(t.params, len(m.mutable))
		cost += one
		if err := m.affordable(uint32(i), &found, one, cost); err != nil {
			return err
		}
		if found.weight > 0 && found.weight <= leafWeight {
			m.leaves[i] = found.weight
		}
		size[i] = frameBase + int64(len(b))/frameBodyPart + 8*int64(m.types[m.funcTypes[i]].params) + localBytes(b)
	}
	if err := m.eachElementFunction(take); err != nil {
		return err
	}
	err := m.eachEntry(func(index uint32) {
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
	recursive, deepest := g.analyse(size)
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
func (m *module) affordable(i uint32, f *facts, one, all uint64) error {
	if f.table > maxTargets {
		return tooMany(f.table, fmt.Sprintf("targets of a br_table in function %d", m.imported+i), maxTargets)
	}
	limit, spent := m.opts.FunctionCost, one
	if one <= limit {
		limit, spent = m.opts.CompileCost, all
	}
	if spent <= limit {
		return nil
	}
	return fmt.Errorf("function %d is too expensive to compile (estimated %d, at most %d): it has %d blocks and targets, nested %d deep, %d locals, %d calls, branches with %d values, and the module has %d mutable globals",
		m.imported+i, spent, limit, f.blocks, f.depth, f.locals, f.calls, f.values, len(m.mutable))
}

// localBytes is what the declared locals of a body take.
func localBytes(body []byte) int64 {
	r := reader{b: body}
	var n int64
	for groups := r.u32(); groups > 0 && r.err == nil; groups-- {
		count := int64(r.u32())
		if r.byte() == 0x7b { // v128
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
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		r.name()
		if kind, index := r.byte(), r.u32(); kind == 0 {
			visit(index)
		}
	}
	if r.err != nil || m.sections[secStart] == nil {
		return r.err
	}
	r = m.section(secStart)
	visit(r.u32())
	return r.err
}

// eachElementFunction visits the functions that element segments and global
// initialisers name.
func (m *module) eachElementFunction(visit func(uint32)) error {
	r := m.section(secGlobal)
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		r.skip(2)
		visitConstExpr(r, visit)
	}
	if r.err != nil {
		return r.err
	}
	r = m.section(secElement)
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		flags := r.u32()
		if flags&1 == 0 {
			if flags&2 != 0 {
				r.u32()
			}
			skipConstExpr(r)
		}
		if flags&3 != 0 {
			r.byte()
		}
		for count := r.u32(); count > 0 && r.err == nil; count-- {
			if flags&4 != 0 {
				visitConstExpr(r, visit)
			} else {
				visit(r.u32())
			}
		}
	}
	return r.err
}

func visitConstExpr(r *reader, visit func(uint32)) {
	for r.err == nil {
		op := r.byte()
		if op == opRefFunc {
			visit(r.u32())
			continue
		}
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

// graph is who calls whom.
type graph struct{ edges [][]int32 }

// analyse finds the nodes on cycles (Tarjan, without recursion of its own) and the
// heaviest path over the condensed graph, with each component counted once.
func (g *graph) analyse(size []int64) (recursive []bool, deepest int64) {
	n := len(g.edges)
	recursive = make([]bool, n)
	index := make([]int32, n) // 0 = not seen
	low := make([]int32, n)
	onStack := make([]bool, n)
	depth := make([]int64, n) // heaviest path from here on, set when a component is done
	var stack []int32
	type frame struct {
		node int32
		next int
	}
	var work []frame
	counter := int32(0)
	for start := range g.edges {
		if index[start] != 0 {
			continue
		}
		work = append(work[:0], frame{node: int32(start)})
		for len(work) > 0 {
			f := &work[len(work)-1]
			v := f.node
			if f.next == 0 {
				counter++
				index[v], low[v] = counter, counter
				stack = append(stack, v)
				onStack[v] = true
			}
			descended := false
			for f.next < len(g.edges[v]) {
				w := g.edges[v][f.next]
				f.next++
				if index[w] == 0 {
					work = append(work, frame{node: w})
					descended = true
					break
				}
				if onStack[w] {
					low[v] = min(low[v], index[w])
				}
				if w == v {
					recursive[v] = true
				}
			}
			if descended {
				continue
			}
			work = work[:len(work)-1]
			if len(work) > 0 {
				p := work[len(work)-1].node
				low[p] = min(low[p], low[v])
			}
			if low[v] == index[v] {
				deepest = max(deepest, g.component(v, &stack, onStack, recursive, depth, size))
			}
		}
	}
	return recursive, deepest
}

// component takes one finished component off the stack.
func (g *graph) component(root int32, stack *[]int32, onStack, recursive []bool, depth, size []int64) int64 {
	at := len(*stack) - 1
	for (*stack)[at] != root {
		at--
	}
	members := (*stack)[at:]
	var own, below int64
	for _, v := range members {
		own += size[v]
		for _, w := range g.edges[v] {
			below = max(below, depth[w]) // 0 for members: not done yet
		}
	}
	for _, v := range members {
		onStack[v] = false
		recursive[v] = recursive[v] || len(members) > 1
	}
	if recursive[root] {
		own = 0 // counted at run time
	}
	for _, v := range members {
		depth[v] = own + below
	}
	*stack = (*stack)[:at]
	return own + below
}
