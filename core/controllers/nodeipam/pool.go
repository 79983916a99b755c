// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
)

// maxParts bounds what a pool keeps account of: an IPv6 network has more parts than
// any cluster has nodes.
const maxParts = 1 << 16

// pool divides one network into equal parts, each of which belongs to one node.
type pool struct {
	network netip.Prefix
	bits    int
	parts   int
	owner   holdings
	former  holdings        // who had what is free now
	next    int             // where the search begins: parts are reused late
	waiting map[string]bool // nodes that asked when there was none
}

func newPool(network netip.Prefix, bits int) (*pool, error) {
	network = network.Masked()
	if bits < network.Bits() || bits > network.Addr().BitLen() {
		return nil, fmt.Errorf("a node's part /%d does not fit into the pod network %s", bits, network)
	}
	parts := maxParts
	if n := bits - network.Bits(); n < 16 {
		parts = 1 << n
	}
	return &pool{network: network, bits: bits, parts: parts, owner: newHoldings(), former: newHoldings(), waiting: map[string]bool{}}, nil
}

func (p *pool) size() int { return p.parts }

// exhausted says that nothing is left.
func (p *pool) exhausted() string {
	return fmt.Sprintf("the pod network %s has no /%d left for a node; it holds %d", p.network, p.bits, p.size())
}

// free is how many parts nobody has.
func (p *pool) free() int { return p.parts - len(p.owner.nodes) }

// part is the i-th part.
func (p *pool) part(i int) netip.Prefix {
	base := new(big.Int).SetBytes(p.network.Addr().AsSlice())
	offset := new(big.Int).Lsh(big.NewInt(int64(i)), uint(p.network.Addr().BitLen()-p.bits))
	b := base.Add(base, offset).FillBytes(make([]byte, p.network.Addr().BitLen()/8))
	addr, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(addr, p.bits)
}

// index is which part an address lies in.
func (p *pool) index(addr netip.Addr) int {
	diff := new(big.Int).Sub(new(big.Int).SetBytes(addr.AsSlice()), new(big.Int).SetBytes(p.network.Addr().AsSlice()))
	diff.Rsh(diff, uint(p.network.Addr().BitLen()-p.bits))
	if !diff.IsInt64() {
		return maxParts
	}
	return int(min(diff.Int64(), maxParts))
}

// occupy notes what a node has, of whatever size somebody gave it.
func (p *pool) occupy(prefix netip.Prefix, node string) {
	if prefix.Addr().BitLen() != p.network.Addr().BitLen() || !prefix.Overlaps(p.network) {
		return
	}
	if prefix.Bits() <= p.network.Bits() {
		for i := range p.parts {
			p.occupied(i, node)
		}
		return
	}
	from, to := p.index(prefix.Addr()), p.index(lastAddr(prefix))
	for i := from; i <= to && i < p.parts; i++ {
		p.occupied(i, node)
	}
}

func lastAddr(prefix netip.Prefix) netip.Addr {
	b := prefix.Addr().AsSlice()
	for bit := prefix.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// exclude takes a network out; the name cannot be a node's.
func (p *pool) exclude(network netip.Prefix) { p.occupy(network.Masked(), "(excluded)") }

// take gives a node a part. One that was deleted and is registered again gets the part that it
// had, as long as nobody else has it: its pods still run with addresses of that part.
func (p *pool) take(node string) (netip.Prefix, bool) {
	for _, known := range []holdings{p.owner, p.former} {
		if i, ok := known.first(node); ok {
			return p.give(i, node), true
		}
	}
	if p.free() == 0 {
		return netip.Prefix{}, false
	}
	for n := range p.parts {
		i := (p.next + n) % p.parts
		if !p.owner.has(i) {
			p.next = i + 1
			return p.give(i, node), true
		}
	}
	return netip.Prefix{}, false
}

func (p *pool) give(i int, node string) netip.Prefix {
	p.occupied(i, node)
	return p.part(i)
}

func (p *pool) occupied(i int, node string) {
	p.owner.set(i, node)
	p.former.drop(i)
}

func (p *pool) release(node string) {
	for _, i := range p.owner.dropAll(node) {
		p.former.set(i, node)
	}
}

// holdings are which parts have which node. Each is found by the other: a look through all parts for each of many nodes
// would take the square of their number.
type holdings struct {
	nodes map[int]string
	parts map[string][]int
}

func newHoldings() holdings { return holdings{map[int]string{}, map[string][]int{}} }

func (h holdings) has(part int) bool {
	_, ok := h.nodes[part]
	return ok
}

// first is the first part that a node has.
func (h holdings) first(node string) (part int, ok bool) {
	parts := h.parts[node]
	if len(parts) == 0 {
		return 0, false
	}
	return slices.Min(parts), true
}

func (h holdings) set(part int, node string) {
	if h.nodes[part] == node && h.has(part) {
		return
	}
	h.drop(part)
	h.nodes[part] = node
	h.parts[node] = append(h.parts[node], part)
}

func (h holdings) drop(part int) {
	node, ok := h.nodes[part]
	if !ok {
		return
	}
	delete(h.nodes, part)
	if rest := slices.DeleteFunc(h.parts[node], func(i int) bool { return i == part }); len(rest) > 0 {
		h.parts[node] = rest
	} else {
		delete(h.parts, node)
	}
}

// dropAll takes all that a node has, and answers what that was.
func (h holdings) dropAll(node string) []int {
	parts := h.parts[node]
	delete(h.parts, node)
	for _, i := range parts {
		delete(h.nodes, i)
	}
	return parts
}
