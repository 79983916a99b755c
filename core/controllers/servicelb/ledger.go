// SPDX-License-Identifier: Apache-2.0

package servicelb

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/loadbalancer"
)

// owner is a Service. One that was deleted and made anew is another.
type owner struct {
	controllers.Key
	uid types.UID
}

func ownerOf(s *corev1.Service) owner {
	return owner{controllers.Key{Namespace: s.Namespace, Name: s.Name}, s.UID}
}

// port of the nodes' own addresses.
type port struct {
	protocol corev1.Protocol
	number   int32
}

// Node ports are taken by the Services that have them, and are no load balancer's.
const firstNodePort, lastNodePort = 30000, 32767

// ledger is who has what: an address of a pool, or, where Services share the nodes' own
// addresses, a port. It is pure; the controller locks it.
type ledger struct {
	pools     []loadbalancer.Pool
	reserved  []int32
	addresses map[netip.Addr]owner
	ports     map[port]owner
	freed     int // how often something was given back
}

func newLedger(cfg Config) *ledger {
	return &ledger{pools: cfg.Pools, reserved: cfg.ReservedPorts, addresses: map[netip.Addr]owner{}, ports: map[port]owner{}}
}

// problem is why a Service gets no address, by the reason of its condition.
type problem struct{ reason, message string }

func (p *problem) Error() string { return p.message }

func refuse(reason, format string, args ...any) *problem {
	return &problem{reason, fmt.Sprintf(format, args...)}
}

// adopt takes over what a Service's status says that it has, unless another has it.
func (l *ledger) adopt(s *corev1.Service) {
	if !loadbalancer.Ours(s) || len(s.Status.LoadBalancer.Ingress) == 0 {
		return
	}
	o := ownerOf(s)
	if len(l.pools) == 0 {
		// Its ports as a whole, for a Service has all of them or none.
		wanted := portsOf(s)
		if !slices.ContainsFunc(wanted, func(p port) bool { return l.portTaken(p, o) }) {
			for _, p := range wanted {
				l.ports[p] = o
			}
		}
		return
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil && l.pool(a, s.Namespace) && !l.taken(a, o) {
			l.addresses[a] = o
		}
	}
}

// release gives back all that a Service has.
func (l *ledger) release(o owner) {
	for a, holder := range l.addresses {
		if holder == o {
			delete(l.addresses, a)
			l.freed++
		}
	}
	for p, holder := range l.ports {
		if holder == o {
			delete(l.ports, p)
			l.freed++
		}
	}
}

func (l *ledger) taken(a netip.Addr, by owner) bool {
	holder, ok := l.addresses[a]
	return ok && holder != by
}

func (l *ledger) portTaken(p port, by owner) bool {
	holder, ok := l.ports[p]
	return ok && holder != by
}

// pool says whether Services of a namespace may have an address.
func (l *ledger) pool(a netip.Addr, namespace string) bool {
	return slices.ContainsFunc(l.pools, func(p loadbalancer.Pool) bool { return p.For(namespace) && p.Contains(a) })
}

// take gives a Service its addresses: those that it has, if they still fit what it asks for,
// and else free ones. After a problem it has nothing. An address that avoid names is a node's.
func (l *ledger) take(s *corev1.Service, avoid func(netip.Addr) bool) ([]netip.Addr, *problem) {
	o := ownerOf(s)
	chosen, problem := l.choose(s, o, avoid)
	for a, holder := range l.addresses {
		if holder == o && !slices.Contains(chosen, a) {
			delete(l.addresses, a)
			l.freed++
		}
	}
	for _, a := range chosen {
		l.addresses[a] = o
	}
	return chosen, problem
}

func (l *ledger) choose(s *corev1.Service, o owner, avoid func(netip.Addr) bool) ([]netip.Addr, *problem) {
	wanted, err := loadbalancer.Wanted(s)
	if err != nil {
		return nil, refuse("NoSuchAddress", "the address that is asked for: %v", err)
	}
	var chosen []netip.Addr
	for _, v6 := range families(s) {
		asked := ofFamily(wanted, v6)
		switch {
		case len(asked) > 1:
			return nil, refuse("NoSuchAddress", "%s and %s are asked for; a Service has one address of an IP family", asked[0], asked[1])
		case len(asked) == 1:
			if problem := l.may(asked[0], o, avoid); problem != nil {
				return nil, problem
			}
			chosen = append(chosen, asked[0])
		default:
			if a, ok := l.free(o, v6, avoid); ok {
				chosen = append(chosen, a)
			} else if s.Spec.IPFamilyPolicy == nil || *s.Spec.IPFamilyPolicy != corev1.IPFamilyPolicyPreferDualStack {
				return nil, exhausted(v6)
			}
		}
	}
	if len(chosen) == 0 {
		return nil, exhausted(false)
	}
	for _, a := range wanted {
		if !slices.Contains(chosen, a) {
			return nil, refuse("NoSuchAddress", "%s is asked for, and is of no IP family of the Service", a)
		}
	}
	return chosen, nil
}

func exhausted(v6 bool) *problem {
	family := "IPv4"
	if v6 {
		family = "IPv6"
	}
	return refuse("NoFreeAddress", "no pool has a free %s address for this namespace: delete a Service that has one, or add addresses to loadBalancer.pools", family)
}

// may says why a Service cannot have an address that it asks for. Who has it is not said:
// that is another namespace's matter.
func (l *ledger) may(a netip.Addr, o owner, avoid func(netip.Addr) bool) *problem {
	switch {
	case !l.pool(a, o.Namespace):
		return refuse("NoSuchAddress", "%s is asked for, and is in no pool for this namespace", a)
	case avoid(a):
		return refuse("NoSuchAddress", "%s is asked for, and is a node's own", a)
	case l.taken(a, o):
		return refuse("AddressTaken", "%s is asked for, and another Service has it", a)
	}
	return nil
}

// free is the address of a family that a Service has already, or the first that nobody has.
func (l *ledger) free(o owner, v6 bool, avoid func(netip.Addr) bool) (netip.Addr, bool) {
	var held []netip.Addr
	for a, holder := range l.addresses {
		if holder == o && a.Is6() == v6 && l.pool(a, o.Namespace) && !avoid(a) {
			held = append(held, a)
		}
	}
	if len(held) > 0 {
		return slices.MinFunc(held, netip.Addr.Compare), true
	}
	for i := range l.pools {
		if !l.pools[i].For(o.Namespace) {
			continue
		}
		for _, r := range l.pools[i].Ranges {
			if a, ok := r.Free(v6, func(a netip.Addr) bool { return l.taken(a, o) || avoid(a) }); ok {
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}

// takePorts gives a Service its ports of the nodes' addresses, all of them or none. Ports that
// reach the machines themselves are nobody's.
func (l *ledger) takePorts(s *corev1.Service, own []int32) *problem {
	o, wanted := ownerOf(s), portsOf(s)
	var found *problem
	for i, p := range wanted {
		switch {
		case slices.Contains(l.reserved, p.number) || slices.Contains(own, p.number):
			found = refuse("PortReserved", "port %d of the nodes' addresses is reserved for the nodes themselves: choose another one, or configure loadBalancer.pools", p.number)
		case p.number >= firstNodePort && p.number <= lastNodePort && p.number != s.Spec.Ports[i].NodePort:
			found = refuse("PortReserved", "port %d of the nodes' addresses is for node ports: choose one outside %d-%d",
				p.number, firstNodePort, lastNodePort)
		case l.portTaken(p, o):
			found = refuse("PortTaken", "another Service has port %d/%s of the nodes' addresses: choose another one, or configure loadBalancer.pools", p.number, p.protocol)
		default:
			continue
		}
		break
	}
	for p, holder := range l.ports {
		if holder == o && (found != nil || !slices.Contains(wanted, p)) {
			delete(l.ports, p)
			l.freed++
		}
	}
	if found != nil {
		return found
	}
	for _, p := range wanted {
		l.ports[p] = o
	}
	return nil
}

func portsOf(s *corev1.Service) []port {
	var out []port
	for _, p := range s.Spec.Ports {
		out = append(out, port{p.Protocol, p.Port})
	}
	return out
}

// families of a Service: which of them are IPv6.
func families(s *corev1.Service) []bool {
	var out []bool
	for _, f := range s.Spec.IPFamilies {
		out = append(out, f == corev1.IPv6Protocol)
	}
	if len(out) == 0 {
		return []bool{false}
	}
	return out
}

func ofFamily(list []netip.Addr, v6 bool) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		if a.Is6() == v6 {
			out = append(out, a)
		}
	}
	return out
}
