// SPDX-License-Identifier: Apache-2.0

// Package callgraph finds which functions of a module can call themselves, over however many
// others, and how deep calls without recursion can be.
package callgraph

// Graph is who calls whom, by number.
type Graph struct{ Edges [][]int32 }

// Analyse finds the nodes on cycles (Tarjan, without recursion of its own) and the
// heaviest path over the condensed graph, with each component counted once.
func (g *Graph) Analyse(size []int64) (recursive []bool, deepest int64) {
	n := len(g.Edges)
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
	for start := range g.Edges {
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
			for f.next < len(g.Edges[v]) {
				w := g.Edges[v][f.next]
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
func (g *Graph) component(root int32, stack *[]int32, onStack, recursive []bool, depth, size []int64) int64 {
	at := len(*stack) - 1
	for (*stack)[at] != root {
		at--
	}
	members := (*stack)[at:]
	var own, below int64
	for _, v := range members {
		own += size[v]
		for _, w := range g.Edges[v] {
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
