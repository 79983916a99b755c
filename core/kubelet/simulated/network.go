// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Network hands out addresses of a range, or of one of each IP family, to sandboxes of all
// nodes that share it. An address is used again only after all others were.
type Network struct {
	mu      sync.Mutex
	ranges  []*addresses
	engines uint64
}

// addresses of one range.
type addresses struct {
	prefix netip.Prefix
	next   netip.Addr
	used   map[netip.Addr]struct{}
}

// NewNetwork hands out the addresses of prefixes, but for each one's first and last: one of
// each to every sandbox.
func NewNetwork(prefixes ...netip.Prefix) (*Network, error) {
	n := &Network{}
	for _, prefix := range prefixes {
		prefix = prefix.Masked()
		if !prefix.IsValid() || prefix.Addr().BitLen()-prefix.Bits() < 2 {
			return nil, fmt.Errorf("simulated pod network %q: expected a range such as 10.244.0.0/16, of at least four addresses", prefix)
		}
		n.ranges = append(n.ranges, &addresses{prefix: prefix, next: prefix.Addr().Next(), used: map[netip.Addr]struct{}{}})
	}
	if len(n.ranges) == 0 {
		return nil, errors.New("simulated pod network: expected a range such as 10.244.0.0/16")
	}
	return n, nil
}

func (n *Network) serial() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.engines++
	return n.engines
}

// take takes an address of each range, or none.
func (n *Network) take() (ips []string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, r := range n.ranges {
		a, err := r.take()
		if err != nil {
			for j, taken := range ips {
				n.ranges[j].give(taken)
			}
			return nil, err
		}
		ips = append(ips[:i:i], a)
	}
	return ips, nil
}

func (r *addresses) take() (string, error) {
	first := r.next
	for {
		a := r.next
		r.next = a.Next()
		// The last address of the range is its broadcast address.
		if !r.prefix.Contains(r.next) || !r.prefix.Contains(r.next.Next()) {
			r.next = r.prefix.Addr().Next()
		}
		if _, taken := r.used[a]; !taken {
			r.used[a] = struct{}{}
			return a.String(), nil
		}
		if r.next == first {
			return "", fmt.Errorf("all %d addresses of the simulated pod network %s are in use: configure a larger one", len(r.used), r.prefix)
		}
	}
}

func (r *addresses) give(ip string) {
	if a, err := netip.ParseAddr(ip); err == nil {
		delete(r.used, a)
	}
}

func (n *Network) give(st *cri.PodSandboxNetworkStatus) {
	n.mu.Lock()
	defer n.mu.Unlock()
	ips := []string{st.GetIp()}
	for _, more := range st.GetAdditionalIps() {
		ips = append(ips, more.GetIp())
	}
	for i, ip := range ips[:min(len(ips), len(n.ranges))] {
		n.ranges[i].give(ip)
	}
}

// clone copies a status before it changes: who was handed the old one keeps it as it was.
func clone[M proto.Message](m M) M { return proto.CloneOf(m) }
