// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"
)

// Policies speak of addresses, and who may send raw packets writes into them what he
// likes; what goes to a link-local, multicast or broadcast address of a bridge goes to
// pods without naming any. So at the bridge, behind the link of a pod that a policy
// isolates, only what has the pod's own addresses passes, and what neighbours must ask
// each other.
//
// And whatever policies say: behind a pod's link passes only what is sent from the pod's own addresses, or, on the
// link, from a link-local one; and of what neighbours tell each other only what is about its own addresses, and
// neither a router's advertisement nor a redirect. What pods send to one another, to the node and beyond would else
// come to whoever says loudest that it has the address (CVE-2020-10749 for routers). Answers are not all that
// neighbours learn from: who asks says where he is, too. And what has a tag of a VLAN is none of ours:
// receivers take the tag 0 as none.

const (
	setFrom = "isolated-egress"  // links of pods that may not send what they like
	setTo   = "isolated-ingress" // links of pods that may not be sent whatever one likes
	setPods = "pods"             // links of all pods whose addresses are known
	mapOwn6 = "own6"             // from links of pods with IPv6 addresses to what they may advertise
)

// addressSets are those of pods' addresses with their links, by family.
var addressSets = [2]string{"addresses4", "addresses6"}

// link is a pod's link to the bridge, on the node's side.
type link struct {
	from, to bool
	ips      []netip.Addr
}

// guarded: it is known who may speak there. A link of which that is not known yet is left alone, unless a
// policy isolates it.
func (l link) guarded() bool { return len(l.ips) > 0 }

// wanted: there is something to write about it.
func (l link) wanted() bool { return l.from || l.to || l.guarded() }

// ip6 are its IPv6 addresses.
func (l link) ip6() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(l.ips), func(ip netip.Addr) bool { return !ip.Is6() })
}

func (l link) equal(o link) bool {
	return l.from == o.from && l.to == o.to && slices.Equal(l.ips, o.ips)
}

// linkTable is ours of the bridge, in the kernel; nil where the bridge is not ours.
type linkTable struct {
	name    string
	nft     knftables.Interface
	written map[string]link
	broken  bool
}

func openLinkTable(name string) (*linkTable, error) {
	nft, err := knftables.New(knftables.BridgeFamily, name)
	if err != nil {
		return nil, fmt.Errorf("network policies need nftables with tables for bridges: install nft 1.0.1 or later, use a kernel with CONFIG_NF_TABLES_BRIDGE, and run as root: %w", err)
	}
	return &linkTable{name: name, nft: nft, written: map[string]link{}, broken: true}, nil
}

// left are the links that an earlier process isolated, of those that are still there.
func (t *linkTable) left(ctx context.Context) (map[string]link, error) {
	found := map[string]link{}
	if t == nil {
		return found, nil
	}
	for _, set := range []string{setFrom, setTo, setPods, addressSets[0], addressSets[1]} {
		elements, err := t.nft.ListElements(ctx, "set", set)
		if knftables.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read which links are isolated in the nftables table bridge %s: %w", t.name, err)
		}
		for _, e := range elements {
			name := strings.Trim(e.Key[0], `"`)
			if _, err := net.InterfaceByName(name); err != nil {
				continue
			}
			l := found[name]
			l.from, l.to = l.from || set == setFrom, l.to || set == setTo
			if len(e.Key) > 1 {
				l.ips = append(l.ips, parse(e.Key[1:])...)
			}
			found[name] = l
		}
	}
	return found, nil
}

// sync writes what is different from what is there.
func (t *linkTable) sync(ctx context.Context, want map[string]link) error {
	if t == nil {
		return nil
	}
	tx := t.nft.NewTransaction()
	if t.broken {
		tx.Add(&knftables.Table{})
		tx.Delete(&knftables.Table{})
		tx.Add(&knftables.Table{Comment: knftables.PtrTo("links of pods: which addresses are theirs, and which of them network policies isolate")})
		t.skeleton(tx)
		t.written = map[string]link{}
	}
	for name, l := range t.written {
		if now, ok := want[name]; !ok || !now.equal(l) {
			elements(name, l, func(e *knftables.Element) { tx.Delete(e) })
			if len(l.ip6()) > 0 {
				tx.Delete(&knftables.Element{Map: mapOwn6, Key: []string{name}})
				tx.Flush(&knftables.Chain{Name: ownChain(name)})
				tx.Delete(&knftables.Chain{Name: ownChain(name)})
			}
		}
	}
	for name, l := range want {
		if was, ok := t.written[name]; !ok || !was.equal(l) {
			elements(name, l, func(e *knftables.Element) { tx.Add(e) })
			advertises(tx, name, l.ip6())
		}
	}
	if tx.NumOperations() == 0 {
		return nil
	}
	t.broken = true
	if err := t.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write the nftables table bridge %s: %w", t.name, err)
	}
	t.written, t.broken = want, false
	return nil
}

// intact says whether the table is still there; one that is not is written anew.
func (t *linkTable) intact(ctx context.Context) (bool, error) {
	if t == nil || t.broken {
		return true, nil
	}
	chains, err := t.nft.List(ctx, "chains")
	if err != nil && !knftables.IsNotFound(err) {
		return false, fmt.Errorf("look at the nftables table bridge %s: %w", t.name, err)
	}
	t.broken = !slices.Contains(chains, "from-pod") || !slices.Contains(chains, "to-pod")
	return !t.broken, nil
}

func ownChain(link string) string { return "own-" + link }

// advertises adds what a pod with IPv6 addresses may say that it has: these, and link-local ones. nft reads the
// target of an advertisement by its place: it has no word for it before 1.0.8.
func advertises(tx *knftables.Transaction, name string, own []netip.Addr) {
	if len(own) == 0 {
		return
	}
	chain := ownChain(name)
	tx.Add(&knftables.Chain{Name: chain})
	for _, ip := range own {
		tx.Add(&knftables.Rule{Chain: chain, Rule: fmt.Sprintf("@th,64,128 0x%x return", ip.AsSlice())})
	}
	tx.Add(&knftables.Rule{Chain: chain, Rule: "@th,64,16 & 0xffc0 == 0xfe80 return"})
	tx.Add(&knftables.Rule{Chain: chain, Rule: "drop"})
	tx.Add(&knftables.Element{Map: mapOwn6, Key: []string{name}, Value: []string{"jump " + chain}})
}

func elements(name string, l link, do func(*knftables.Element)) {
	if l.from {
		do(&knftables.Element{Set: setFrom, Key: []string{name}})
	}
	if l.to {
		do(&knftables.Element{Set: setTo, Key: []string{name}})
	}
	if l.guarded() {
		do(&knftables.Element{Set: setPods, Key: []string{name}})
	}
	for _, ip := range l.ips {
		set := addressSets[0]
		if ip.Is6() {
			set = addressSets[1]
		}
		do(&knftables.Element{Set: set, Key: []string{name, ip.String()}})
	}
}

func (t *linkTable) skeleton(tx *knftables.Transaction) {
	for _, name := range []string{setFrom, setTo, setPods} {
		tx.Add(&knftables.Set{Name: name, Type: "ifname"})
	}
	tx.Add(&knftables.Map{Name: mapOwn6, Type: "ifname : verdict"})
	for f, family := range families {
		tx.Add(&knftables.Set{Name: addressSets[f], Type: "ifname . " + family.address})
	}
	chain := func(name string, base *knftables.Chain, rules ...string) {
		base.Name = name
		tx.Add(base)
		for _, r := range rules {
			tx.Add(&knftables.Rule{Chain: name, Rule: r})
		}
	}
	const neighbours = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert%s } ip6 hoplimit 255 accept"
	own := func(iface, end string) []string {
		rules := []string{"ether type arp accept"}
		for f, family := range families {
			rules = append(rules, fmt.Sprintf("%s . %s %s @%s accept", iface, family.word, end, addressSets[f]))
		}
		return rules
	}
	chain("own-sources", &knftables.Chain{}, append(own("iifname", "saddr"), fmt.Sprintf(neighbours, ", nd-router-solicit"), "drop")...)
	chain("own-destinations", &knftables.Chain{}, append(own("oifname", "daddr"), fmt.Sprintf(neighbours, ""), "drop")...)
	const linkLocal = "fe80::/10"
	chain("own-words", &knftables.Chain{},
		"ether type { 0x8100, 0x88a8 } drop",
		"iifname . arp saddr ip @"+addressSets[0]+" return",
		"arp saddr ip 0.0.0.0 arp operation request return", // whether an address is in use (RFC 5227)
		"iifname . ip saddr @"+addressSets[0]+" return",
		"icmpv6 type { nd-router-advert, nd-redirect } drop",
		"icmpv6 type nd-neighbor-advert iifname vmap @"+mapOwn6,
		"iifname . ip6 saddr @"+addressSets[1]+" return",
		"ip6 saddr "+linkLocal+" return",
		// Who has no address yet asks whether it is in use, for routers, and to be in groups (RFC 4862, RFC 3810).
		"ip6 saddr :: icmpv6 type { nd-neighbor-solicit, nd-router-solicit, mld2-listener-report } return",
		"drop",
	)
	filter := func(hook knftables.BaseChainHook) *knftables.Chain {
		return &knftables.Chain{
			Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(hook),
			Priority: knftables.PtrTo(knftables.BaseChainPriority("-300")),
		}
	}
	chain("from-pod", filter(knftables.PreroutingHook), "iifname @"+setPods+" jump own-words", "iifname @"+setFrom+" goto own-sources")
	chain("to-pod", filter(knftables.ForwardHook), "oifname @"+setTo+" goto own-destinations")
}
