// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/proxy/healthports"
)

// Names of maps, sets and chains that every table has.
const (
	mapServices  = "service-ips"
	mapNodePorts = "service-nodeports"
	mapNoIPs     = "no-endpoint-services"
	mapNoPorts   = "no-endpoint-nodeports"
	setHairpin   = "hairpin-connections"
	chainReject  = "reject-packets"
	chainDrop    = "drop-packets"
	// Connections to the node's own addresses: those that come, those that a process of the
	// node begins, and those for which there is nobody.
	chainOwn     = "own-addresses"
	chainOwnOut  = "own-addresses-output"
	chainOwnNone = "own-addresses-without"
	// masqueradeMark is the bit that upstream uses too, so that its meaning on a host is the same.
	masqueradeMark = "0x4000"
)

// plan is what one Service wants in the tables: regular chains with their rules,
// elements of maps and sets by key, and sets that remember clients.
type plan struct {
	chains   map[string]chain
	elements map[elementKey]string
	affinity map[string]int32 // set name -> seconds
	health   *healthports.Want
	udp      []flow
}

type chain struct {
	comment string
	rules   []string
}

// elementKey is an element of a map or set; keys of several parts are joined by " . ".
type elementKey struct{ in, key string }

// flow is a UDP address with the endpoints behind it: what connection tracking
// has to forget when an endpoint goes.
type flow struct {
	at        netip.AddrPort // the zero Addr stands for every address of the node
	endpoints []netip.AddrPort
}

// family is what differs between IPv4 and IPv6.
type family struct {
	ip6  bool
	word string // as nft calls it: ip, ip6
}

func (f family) fits(a netip.Addr) bool { return a.IsValid() && a.Is6() == f.ip6 }

// endpoint is one address behind a Service.
type endpoint struct {
	at    netip.AddrPort
	local bool
	// zones and nodes are the places that the endpoint is meant for; only a ready one has such.
	zones, nodes []string
}

// planner turns one Service and its slices into a plan. It is pure.
type planner struct {
	family family
	node   string
	zone   string // that the node's label names, or nothing
	pods   []netip.Prefix
	// before are the Service's slices of before an outage; see outage.
	before []*discoveryv1.EndpointSlice
}

// after plans a Service of which these slices were known before an outage.
func (pl planner) after(before []*discoveryv1.EndpointSlice) planner {
	pl.before = before
	return pl
}

// others says that an object's labels leave it to another proxy, or to nobody, as upstream's.
func others(labels map[string]string) bool {
	_, another := labels["service.kubernetes.io/service-proxy-name"]
	_, headless := labels[corev1.IsHeadlessService]
	return another || headless
}

// ignored says that a Service is none of this proxy's business.
func ignored(s *corev1.Service) bool {
	return others(s.Labels) || s.Spec.Type == corev1.ServiceTypeExternalName || s.Spec.ClusterIP == "" ||
		s.Spec.ClusterIP == corev1.ClusterIPNone
}

func (pl planner) plan(s *corev1.Service, slices []*discoveryv1.EndpointSlice) *plan {
	p := &plan{chains: map[string]chain{}, elements: map[elementKey]string{}, affinity: map[string]int32{}}
	if s == nil || ignored(s) {
		return p
	}
	healthy := 0
	for i := range s.Spec.Ports {
		port := &s.Spec.Ports[i]
		all := pl.endpoints(slices, port, func(endpoint) bool { return true })
		local := pl.endpoints(slices, port, func(e endpoint) bool { return e.local })
		healthy = max(healthy, pl.readyHere(slices, port))
		pl.port(p, s, port, all, local)
	}
	if n := s.Spec.HealthCheckNodePort; n != 0 && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		p.health = &healthports.Want{Service: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, Port: n, Local: healthy}
	}
	return p
}

// endpoints of a port that may be used: the ready ones, and where there are none
// those that are on their way out but still serve, or those that were ready before an outage.
func (pl planner) endpoints(list []*discoveryv1.EndpointSlice, port *corev1.ServicePort, want func(endpoint) bool) []endpoint {
	found := pl.sorted(list, port, want)
	use := found.ready
	if len(use) == 0 {
		use = found.leaving
	}
	if len(use) == 0 && len(pl.before) > 0 {
		use = found.silent
		were := pl.sorted(pl.before, port, want).ready
		maps.DeleteFunc(use, func(at netip.AddrPort, _ endpoint) bool { _, was := were[at]; return !was })
	}
	return slices.SortedFunc(maps.Values(use), func(a, b endpoint) int { return a.at.Compare(b.at) })
}

// conditions are the endpoints of a port by what is said of them: silent ones are neither ready nor on their way out.
type conditions struct{ ready, leaving, silent map[netip.AddrPort]endpoint }

func (pl planner) sorted(list []*discoveryv1.EndpointSlice, port *corev1.ServicePort, want func(endpoint) bool) conditions {
	found := conditions{map[netip.AddrPort]endpoint{}, map[netip.AddrPort]endpoint{}, map[netip.AddrPort]endpoint{}}
	for _, s := range list {
		number, ok := portOf(s, port)
		if !ok || (s.AddressType == discoveryv1.AddressTypeIPv6) != pl.family.ip6 || s.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for _, e := range s.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			addr, err := netip.ParseAddr(e.Addresses[0])
			if err != nil || !pl.family.fits(addr) {
				continue
			}
			one := endpoint{at: netip.AddrPortFrom(addr, number), local: e.NodeName != nil && *e.NodeName == pl.node}
			switch isReady, ends := ptr.Deref(e.Conditions.Ready, true), ptr.Deref(e.Conditions.Terminating, false); {
			case !want(one):
			case isReady:
				one.zones, one.nodes = hints(e.Hints)
				found.ready[one.at] = one
			case !ends:
				found.silent[one.at] = one
			case ptr.Deref(e.Conditions.Serving, isReady):
				found.leaving[one.at] = one
			}
		}
	}
	return found
}

// readyHere counts what a load balancer may send more connections to: what is on its way out
// serves those that come nevertheless.
func (pl planner) readyHere(list []*discoveryv1.EndpointSlice, port *corev1.ServicePort) int {
	found := map[netip.Addr]bool{}
	for _, s := range list {
		if _, ok := portOf(s, port); !ok || (s.AddressType == discoveryv1.AddressTypeIPv6) != pl.family.ip6 {
			continue
		}
		for _, e := range s.Endpoints {
			if ptr.Deref(e.NodeName, "") != pl.node || !ptr.Deref(e.Conditions.Ready, true) || len(e.Addresses) == 0 {
				continue
			}
			if a, err := netip.ParseAddr(e.Addresses[0]); err == nil {
				found[a] = true
			}
		}
	}
	return len(found)
}

// portOf is where a slice's endpoints serve a port of the Service. A slice can be taken from proxies by its labels alone.
func portOf(s *discoveryv1.EndpointSlice, port *corev1.ServicePort) (uint16, bool) {
	if others(s.Labels) {
		return 0, false
	}
	for _, p := range s.Ports {
		if ptr.Deref(p.Name, "") == port.Name && ptr.Deref(p.Protocol, corev1.ProtocolTCP) == port.Protocol && p.Port != nil {
			return uint16(*p.Port), true
		}
	}
	return 0, false
}

// port plans one port of a Service.
func (pl planner) port(p *plan, s *corev1.Service, port *corev1.ServicePort, all, local []endpoint) {
	id := s.Namespace + "/" + s.Name + ":" + port.Name
	proto := strings.ToLower(string(port.Protocol))
	svc, loc, ext, ranged := name("svc", id, proto), name("loc", id, proto), name("ext", id, proto), name("lbr", id, proto)
	inside := all
	insideChain := svc
	if ptr.Deref(s.Spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster) == corev1.ServiceInternalTrafficPolicyLocal {
		inside, insideChain = local, loc
	}
	outsideLocal := s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	external, balanced := pl.addresses(s.Spec.ExternalIPs), pl.balanced(s)
	outside := len(external)+len(balanced) > 0 || port.NodePort != 0
	if len(all) > 0 && (insideChain == svc || outside) {
		pl.balance(p, svc, id, proto, s, nearest(all, pl.node, pl.zone))
	}
	if len(local) > 0 && (insideChain == loc || outside && outsideLocal) {
		pl.balance(p, loc, id, proto, s, local)
	}
	for _, e := range all {
		if e.local {
			p.elements[elementKey{setHairpin, e.at.Addr().String() + " . " + e.at.Addr().String()}] = ""
		}
	}
	if outside && len(all) > 0 {
		p.chains[ext] = chain{id, pl.entry(svc, loc, outsideLocal, len(local) > 0)}
	}
	for _, ip := range pl.clusterIPs(s) {
		p.direct(elementKey{mapServices, key(ip, proto, port.Port)}, elementKey{mapNoIPs, key(ip, proto, port.Port)}, insideChain,
			verdictWithout(inside, all))
		p.watchUDP(proto, netip.AddrPortFrom(ip, uint16(port.Port)), inside)
	}
	reach := func(ips []netip.Addr, by string) {
		for _, ip := range ips {
			p.direct(elementKey{mapServices, key(ip, proto, port.Port)}, elementKey{mapNoIPs, key(ip, proto, port.Port)}, by,
				verdictWithout(all, all))
			p.watchUDP(proto, netip.AddrPortFrom(ip, uint16(port.Port)), all)
		}
	}
	reach(external, ext)
	if rules, restricted := pl.sourceRanges(s, ext); restricted && len(balanced) > 0 && len(all) > 0 {
		p.chains[ranged] = chain{id, rules}
		reach(balanced, ranged)
	} else {
		reach(balanced, ext)
	}
	if port.NodePort != 0 {
		k := proto + " . " + strconv.Itoa(int(port.NodePort))
		p.direct(elementKey{mapNodePorts, k}, elementKey{mapNoPorts, k}, ext, verdictWithout(all, all))
		p.watchUDP(proto, netip.AddrPortFrom(netip.Addr{}, uint16(port.NodePort)), all)
	}
}

// verdictWithout: nobody at all refuses connections, nobody here drops packets,
// so that who asks goes elsewhere. Empty: there is somebody.
func verdictWithout(usable, all []endpoint) string {
	switch {
	case len(usable) > 0:
		return ""
	case len(all) > 0:
		return chainDrop
	default:
		return chainReject
	}
}

// direct sends an address to a chain, or to where it is refused.
func (p *plan) direct(with, without elementKey, to, refuse string) {
	if refuse != "" {
		p.elements[without] = "goto " + refuse
		return
	}
	p.elements[with] = "goto " + to
}

func (p *plan) watchUDP(proto string, at netip.AddrPort, list []endpoint) {
	if proto != "udp" {
		return
	}
	f := flow{at: at}
	for _, e := range list {
		f.endpoints = append(f.endpoints, e.at)
	}
	p.udp = append(p.udp, f)
}

// entry is how traffic from outside the cluster comes in. Where it may be sent to
// another node its source is replaced, so that the answer comes back by here.
func (pl planner) entry(svc, loc string, localOnly, hasLocal bool) []string {
	mark := "meta mark set meta mark or " + masqueradeMark
	if !localOnly {
		return []string{mark, "goto " + svc}
	}
	var rules []string
	// From inside, policy for the outside does not count.
	for _, p := range pl.pods {
		if pl.family.fits(p.Addr()) {
			rules = append(rules, fmt.Sprintf("%s saddr %s goto %s", pl.family.word, p, svc))
		}
	}
	rules = append(rules, fmt.Sprintf("fib saddr type local %s goto %s", mark, svc))
	if hasLocal {
		return append(rules, "goto "+loc)
	}
	return append(rules, "drop")
}

// balance writes the chain that chooses an endpoint.
func (pl planner) balance(p *plan, name, id, proto string, s *corev1.Service, list []endpoint) {
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		pl.sticky(p, name, id, proto, s, list)
		return
	}
	to := make([]string, len(list))
	for i, e := range list {
		to[i] = fmt.Sprintf("%d : %s . %d", i, e.at.Addr(), e.at.Port())
	}
	rule := fmt.Sprintf("meta l4proto %s dnat %s to numgen random mod %d map { %s }", proto, pl.family.word, len(list), strings.Join(to, ", "))
	if len(list) == 1 {
		rule = fmt.Sprintf("meta l4proto %s dnat to %s", proto, list[0].at)
	}
	p.chains[name] = chain{id, []string{rule}}
}

// sticky sends a client to the endpoint that it had before, for a while.
func (pl planner) sticky(p *plan, chainName, id, proto string, s *corev1.Service, list []endpoint) {
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	var back, fresh []string
	for i, e := range list {
		endpointChain, clients := name("ep", id+e.at.String(), proto), name("aff", id+e.at.String(), proto)
		p.affinity[clients] = seconds
		p.chains[endpointChain] = chain{id + " " + e.at.String(), []string{
			fmt.Sprintf("update @%s { %s saddr }", clients, pl.family.word),
			fmt.Sprintf("meta l4proto %s dnat to %s", proto, e.at),
		}}
		back = append(back, fmt.Sprintf("%s saddr @%s goto %s", pl.family.word, clients, endpointChain))
		fresh = append(fresh, fmt.Sprintf("%d : goto %s", i, endpointChain))
	}
	choose := fmt.Sprintf("numgen random mod %d vmap { %s }", len(list), strings.Join(fresh, " , "))
	p.chains[chainName] = chain{id, append(back, choose)}
}

func (pl planner) clusterIPs(s *corev1.Service) []netip.Addr {
	list := s.Spec.ClusterIPs
	if len(list) == 0 {
		list = []string{s.Spec.ClusterIP}
	}
	return pl.addresses(list)
}

// balanced are the addresses of a load balancer that are ours to forward. Those of one that
// is a proxy itself come back to it.
func (pl planner) balanced(s *corev1.Service) []netip.Addr {
	var list []string
	for _, in := range s.Status.LoadBalancer.Ingress {
		if ptr.Deref(in.IPMode, corev1.LoadBalancerIPModeVIP) == corev1.LoadBalancerIPModeVIP {
			list = append(list, in.IP)
		}
	}
	return pl.addresses(list)
}

// sourceRanges are the rules that let only some clients through to a chain. Ranges of the
// other IP family alone let nobody through.
func (pl planner) sourceRanges(s *corev1.Service, to string) (rules []string, restricted bool) {
	if len(s.Spec.LoadBalancerSourceRanges) == 0 {
		return nil, false
	}
	var allowed []netip.Prefix
	for _, text := range s.Spec.LoadBalancerSourceRanges {
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil && pl.family.fits(p.Addr()) {
			allowed = append(allowed, p.Masked())
		}
	}
	// In one set networks must not lie in each other: the wider ones come first.
	slices.SortFunc(allowed, func(a, b netip.Prefix) int { return cmp.Or(a.Bits()-b.Bits(), a.Addr().Compare(b.Addr())) })
	var list []string
	for i, p := range allowed {
		if p.Bits() == 0 {
			return nil, false
		}
		if !slices.ContainsFunc(allowed[:i], func(wider netip.Prefix) bool { return wider.Overlaps(p) }) {
			list = append(list, p.String())
		}
	}
	if len(list) == 0 {
		return []string{"drop"}, true
	}
	return []string{fmt.Sprintf("%s saddr != { %s } drop", pl.family.word, strings.Join(list, ", ")), "goto " + to}, true
}

func (pl planner) addresses(list []string) []netip.Addr {
	var found []netip.Addr
	for _, text := range list {
		if a, err := netip.ParseAddr(text); err == nil && pl.family.fits(a) {
			found = append(found, a)
		}
	}
	return found
}

func key(ip netip.Addr, proto string, port int32) string {
	return ip.String() + " . " + proto + " . " + strconv.Itoa(int(port))
}

// name is short, because nft objects have short names, and the same every time.
func name(prefix, id, proto string) string {
	sum := sha256.Sum256([]byte(id + "/" + proto))
	return prefix + "-" + hex.EncodeToString(sum[:8])
}
