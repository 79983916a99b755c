// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// ownFor is how long the machine's addresses are taken for those that it had.
const ownFor = 10 * time.Second

// own knows the machine's addresses. Pods in the machine's own network ask from them, as its processes do; the kernel
// takes no packet from outside that claims to come from one. Strangers cannot make it look more often than ownFor.
type own struct {
	// list is net.InterfaceAddrs, or a test's.
	list func() ([]net.Addr, error)
	now  func() time.Time

	mu    sync.Mutex
	known []netip.Addr
	at    time.Time
}

func newOwn() *own { return &own{list: net.InterfaceAddrs, now: time.Now} }

func (o *own) has(a netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := o.now(); o.at.IsZero() || now.Sub(o.at) >= ownFor {
		o.at = now
		if list, err := o.list(); err == nil { // and what was known, otherwise
			o.known = o.known[:0]
			for _, l := range list {
				if p, err := netip.ParsePrefix(l.String()); err == nil {
					o.known = append(o.known, p.Addr().Unmap())
				}
			}
		}
	}
	return slices.Contains(o.known, a)
}
