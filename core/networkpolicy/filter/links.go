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

const (
	setFrom = "isolated-egress"  // links of pods that may not send what they like
	setTo   = "isolated-ingress" // links of pods that may not be sent whatever one likes
)

// addressSets are those of pods' addresses with their links, by family.
var addressSets = [2]string{"addresses4", "addresses6"}

// link is a pod's link to the bridge, on the node's side.
type link struct {
	from, to bool
	ips      []netip.Addr
}

func (l link) isolated() bool { return l.from || l.to }

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
	for _, set := range []string{setFrom, setTo, addressSets[0], addressSets[1]} {
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
		tx.Add(&knftables.Table{Comment: knftables.PtrTo("links of pods that network policies isolate")})
		t.skeleton(tx)
		t.written = map[string]link{}
	}
	for name, l := range t.written {
		if now, ok := want[name]; !ok || !now.equal(l) {
			elements(name, l, func(e *knftables.Element) { tx.Delete(e) })
		}
	}
	for name, l := range want {
		if was, ok := t.written[name]; !ok || !was.equal(l) {
			elements(name, l, func(e *knftables.Element) { tx.Add(e) })
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

func elements(name string, l link, do func(*knftables.Element)) {
	if l.from {
		do(&knftables.Element{Set: setFrom, Key: []string{name}})
	}
	if l.to {
		do(&knftables.Element{Set: setTo, Key: []string{name}})
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
	for _, name := range []string{setFrom, setTo} {
		tx.Add(&knftables.Set{Name: name, Type: "ifname"})
	}
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
	filter := func(hook knftables.BaseChainHook) *knftables.Chain {
		return &knftables.Chain{
			Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(hook),
			Priority: knftables.PtrTo(knftables.BaseChainPriority("-300")),
		}
	}
	chain("from-pod", filter(knftables.PreroutingHook), "iifname @"+setFrom+" goto own-sources")
	chain("to-pod", filter(knftables.ForwardHook), "oifname @"+setTo+" goto own-destinations")
}
