// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"fmt"
	"net/netip"
	"sync"

	"google.golang.org/protobuf/proto"
)

// Network hands out addresses of a range to sandboxes of all nodes that share it.
// An address is used again only after all others were.
type Network struct {
	mu      sync.Mutex
	prefix  netip.Prefix
	next    netip.Addr
	used    map[netip.Addr]struct{}
	engines uint64
}

// NewNetwork hands out the addresses of prefix, but for the first and the last.
func NewNetwork(prefix netip.Prefix) (*Network, error) {
	prefix = prefix.Masked()
	if !prefix.IsValid() || prefix.Addr().BitLen()-prefix.Bits() < 2 {
		return nil, fmt.Errorf("simulated pod network %q: expected a range such as 10.244.0.0/16, of at least four addresses", prefix)
	}
	return &Network{prefix: prefix, next: prefix.Addr().Next(), used: map[netip.Addr]struct{}{}}, nil
}

func (n *Network) serial() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.engines++
	return n.engines
}

func (n *Network) take() (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	first := n.next
	for {
		a := n.next
		n.next = a.Next()
		// The last address of the range is its broadcast address.
		if !n.prefix.Contains(n.next) || !n.prefix.Contains(n.next.Next()) {
			n.next = n.prefix.Addr().Next()
		}
		if _, taken := n.used[a]; !taken {
			n.used[a] = struct{}{}
			return a.String(), nil
		}
		if n.next == first {
			return "", fmt.Errorf("all %d addresses of the simulated pod network %s are in use: configure a larger one", len(n.used), n.prefix)
		}
	}
}

func (n *Network) give(ip string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, err := netip.ParseAddr(ip); err == nil {
		delete(n.used, a)
	}
}

// clone copies a status before it changes: who was handed the old one keeps it as it was.
func clone[M proto.Message](m M) M { return proto.CloneOf(m) }
