// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"fmt"
	"math/big"
	"net/netip"
)

// maxParts bounds what a pool keeps account of: an IPv6 network has more parts than
// any cluster has nodes.
const maxParts = 1 << 16

// pool divides one network into equal parts, each of which belongs to one node.
type pool struct {
	network netip.Prefix
	bits    int
	parts   int
	owner   map[int]string // by part
	former  map[int]string // who had what is free now
	next    int            // where the search begins: parts are reused late
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
	return &pool{network: network, bits: bits, parts: parts, owner: map[int]string{}, former: map[int]string{}}, nil
}

func (p *pool) size() int { return p.parts }

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
			p.owner[i] = node
			delete(p.former, i)
		}
		return
	}
	from, to := p.index(prefix.Addr()), p.index(lastAddr(prefix))
	for i := from; i <= to && i < p.parts; i++ {
		p.owner[i] = node
		delete(p.former, i)
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
	for _, known := range []map[int]string{p.owner, p.former} {
		if i, ok := first(known, node); ok {
			return p.give(i, node), true
		}
	}
	for n := range p.parts {
		i := (p.next + n) % p.parts
		if _, taken := p.owner[i]; !taken {
			p.next = i + 1
			return p.give(i, node), true
		}
	}
	return netip.Prefix{}, false
}

// first is the first part that a node has.
func first(parts map[int]string, node string) (part int, ok bool) {
	for i, owner := range parts {
		if owner == node && (!ok || i < part) {
			part, ok = i, true
		}
	}
	return part, ok
}

func (p *pool) give(i int, node string) netip.Prefix {
	p.owner[i] = node
	delete(p.former, i)
	return p.part(i)
}

func (p *pool) release(node string) {
	for i, owner := range p.owner {
		if owner == node {
			delete(p.owner, i)
			p.former[i] = node
		}
	}
}
