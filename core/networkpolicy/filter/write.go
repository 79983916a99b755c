// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/wasmplane/wasmplane/core/networkpolicy"
)

var (
	families = [2]struct{ word, address, suffix string }{{"ip", "ipv4_addr", "4"}, {"ip6", "ipv6_addr", "6"}}
	// hooks come before those of the service proxy and the host's own, but behind nat:
	// what goes to a Service is judged by the endpoint that it was given. Egress is first,
	// so that a packet passes both or none.
	hooks = map[networkpolicy.Direction]string{networkpolicy.Egress: "-6", networkpolicy.Ingress: "-5"}
)

// table is ours in the kernel.
type table struct {
	name string
	nft  knftables.Interface
}

func openTable(name string) (*table, error) {
	nft, err := knftables.New(knftables.InetFamily, name)
	if err != nil {
		return nil, fmt.Errorf("network policies need nftables: install the package nftables (nft 1.0.1 or later) and run as root: %w", err)
	}
	return &table{name, nft}, nil
}

// restChain is where what the tier Admin passes on goes: it leads to the pod's chain of that stage.
func restChain(d networkpolicy.Direction) string { return d.String() + "-rest" }

// toNode is the chain of what is for the node itself. Only pods that policies of the cluster select have their
// addresses in its maps: NetworkPolicies do not part a pod from its node.
const toNode = "egress-node"

// base are the chains at hooks.
var base = []string{networkpolicy.Ingress.String(), networkpolicy.Egress.String(), toNode}

// mapName is the map from pods' addresses to their chains of a stage.
func mapName(d networkpolicy.Direction, s networkpolicy.Stage, ipv6 bool) string {
	name := d.String()
	switch s {
	case networkpolicy.Forwarded:
	case networkpolicy.AfterAdmin:
		name = restChain(d)
	case networkpolicy.ToNode:
		name = toNode
	}
	if ipv6 {
		return name + families[1].suffix
	}
	return name + families[0].suffix
}

// rewrite replaces the whole table at once: no packet sees half of it, or none.
func (t *table) rewrite(ctx context.Context, c *networkpolicy.Change, held []networkpolicy.Verdict) error {
	tx := t.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("network policies of a wasmplane cluster")})
	skeleton(tx)
	for _, v := range held {
		tx.Add(verdict(v, "drop"))
	}
	write(tx, c)
	return t.run(ctx, tx)
}

func (t *table) update(ctx context.Context, c *networkpolicy.Change) error {
	tx := t.nft.NewTransaction()
	write(tx, c)
	return t.run(ctx, tx)
}

func (t *table) run(ctx context.Context, tx *knftables.Transaction) error {
	if err := t.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write the nftables table inet %s: %w", t.name, err)
	}
	return nil
}

// intact says whether the table is still there: others flush the whole ruleset.
func (t *table) intact(ctx context.Context) (bool, error) {
	rules := 0
	for _, chain := range base {
		list, err := t.nft.ListRules(ctx, chain)
		if knftables.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("look at the nftables table inet %s: %w", t.name, err)
		}
		rules += len(list)
	}
	return rules == len(base)*len(entry(networkpolicy.Ingress, networkpolicy.Forwarded)), nil
}

// verdicts are the addresses that the table, as somebody left it, leads to chains.
func (t *table) verdicts(ctx context.Context) ([]networkpolicy.Verdict, error) {
	var list []networkpolicy.Verdict
	for d := range hooks {
		for _, ipv6 := range []bool{false, true} {
			elements, err := t.nft.ListElements(ctx, "map", mapName(d, networkpolicy.Forwarded, ipv6))
			if knftables.IsNotFound(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read which pods are isolated in nftables table inet %s: %w", t.name, err)
			}
			for _, e := range elements {
				if ip, err := netip.ParseAddr(strings.Join(e.Key, "")); err == nil {
					list = append(list, networkpolicy.Verdict{Direction: d, Address: ip})
				}
			}
		}
	}
	return list, nil
}

// entry is what every packet passes that this node forwards, or gets itself. Answers pass; what began a
// connection is judged packet by packet, so that a policy that comes ends connections
// that it does not allow. Pods of one bridge find each other by neighbour discovery,
// which has never been routed when its hop limit is whole.
func entry(d networkpolicy.Direction, s networkpolicy.Stage) []string {
	rules := []string{
		"ct direction reply accept", "ct state related accept",
		"icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept",
	}
	for f, family := range families {
		rules = append(rules, fmt.Sprintf("%s saddr . %s daddr @%s accept", family.word, family.word, networkpolicy.SelfSet(f == 1)))
	}
	return append(rules, lead(d, s)...)
}

// lead sends a pod's packets to its chain of a stage.
func lead(d networkpolicy.Direction, s networkpolicy.Stage) (rules []string) {
	own := "daddr"
	if d == networkpolicy.Egress {
		own = "saddr"
	}
	for f, family := range families {
		rules = append(rules, fmt.Sprintf("%s %s vmap @%s", family.word, own, mapName(d, s, f == 1)))
	}
	return rules
}

func skeleton(tx *knftables.Transaction) {
	for f, family := range families {
		for d := range hooks {
			for _, s := range []networkpolicy.Stage{networkpolicy.Forwarded, networkpolicy.AfterAdmin} {
				tx.Add(&knftables.Map{Name: mapName(d, s, f == 1), Type: family.address + " : verdict"})
			}
		}
		tx.Add(&knftables.Map{Name: mapName(networkpolicy.Egress, networkpolicy.ToNode, f == 1), Type: family.address + " : verdict"})
		tx.Add(&knftables.Set{
			Name: networkpolicy.SelfSet(f == 1), Type: family.address + " . " + family.address,
			Comment: knftables.PtrTo("a pod that reaches itself by a Service"),
		})
	}
	chain := func(name string, c *knftables.Chain, rules ...string) {
		c.Name = name
		tx.Add(c)
		for _, r := range rules {
			tx.Add(&knftables.Rule{Chain: name, Rule: r})
		}
	}
	at := func(hook knftables.BaseChainHook, priority string) *knftables.Chain {
		return &knftables.Chain{
			Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(hook),
			Priority: knftables.PtrTo(knftables.BaseChainPriority(priority)),
		}
	}
	for d, priority := range hooks {
		// Who has a chain that passes on has one to pass on to.
		chain(restChain(d), &knftables.Chain{}, append(lead(d, networkpolicy.AfterAdmin), "drop")...)
		chain(d.String(), at(knftables.ForwardHook, priority), entry(d, networkpolicy.Forwarded)...)
	}
	chain(toNode, at(knftables.InputHook, hooks[networkpolicy.Egress]), entry(networkpolicy.Egress, networkpolicy.ToNode)...)
}

// write adds the change to a transaction, in an order that nft takes: what is referred
// to exists before, and is deleted after.
func write(tx *knftables.Transaction, c *networkpolicy.Change) {
	for name, s := range c.Sets {
		tx.Add(newSet(name, s))
	}
	names := slices.Sorted(maps.Keys(c.Chains))
	for _, pods := range []bool{false, true} {
		for _, name := range names {
			if ch := c.Chains[name]; pods == (len(ch.Rules) == 0) {
				tx.Add(&knftables.Chain{Name: name})
				for _, r := range lines(ch) {
					tx.Add(&knftables.Rule{Chain: name, Rule: r})
				}
			}
		}
	}
	for _, e := range c.RemovedElements {
		tx.Delete(element(e))
	}
	for _, e := range c.Elements {
		tx.Add(element(e))
	}
	for _, v := range c.RemovedVerdicts {
		tx.Delete(verdict(v, ""))
	}
	for v, chain := range c.Verdicts {
		tx.Add(verdict(v, "goto "+chain))
	}
	for _, name := range c.RemovedChains {
		tx.Flush(&knftables.Chain{Name: name})
	}
	for _, name := range c.RemovedChains {
		tx.Delete(&knftables.Chain{Name: name})
	}
	for _, name := range c.RemovedSets {
		tx.Delete(&knftables.Set{Name: name})
	}
}

func newSet(name string, s networkpolicy.Set) *knftables.Set {
	f := families[0]
	if s.IPv6 {
		f = families[1]
	}
	set := &knftables.Set{Name: name, Type: f.address}
	switch s.Kind {
	case networkpolicy.Addresses:
	case networkpolicy.Ranges:
		set.Flags = []knftables.SetFlag{knftables.IntervalFlag}
	case networkpolicy.Ports:
		set.Type += " . inet_proto . inet_service"
	}
	return set
}

func element(e networkpolicy.Element) *knftables.Element {
	return &knftables.Element{Set: e.Set, Key: strings.Split(e.Value, " . ")}
}

func verdict(v networkpolicy.Verdict, to string) *knftables.Element {
	e := &knftables.Element{Map: mapName(v.Direction, v.Stage, v.Address.Is6()), Key: []string{v.Address.String()}}
	if to != "" {
		e.Value = []string{to}
	}
	return e
}

// lines are a chain's rules as nft reads them.
func lines(c networkpolicy.Chain) []string {
	var out []string
	if len(c.Rules) == 0 {
		if c.OwnNode {
			out = append(out, "fib daddr type local accept")
		}
		for _, j := range c.Jumps {
			out = append(out, "jump "+j)
		}
		return append(out, map[networkpolicy.End]string{
			networkpolicy.Drop: "drop", networkpolicy.Permit: "accept", networkpolicy.Go: "goto " + restChain(c.Direction),
		}[c.End])
	}
	for _, r := range c.Rules {
		out = append(out, rule(c.Direction, r)...)
	}
	return out
}

func rule(d networkpolicy.Direction, r networkpolicy.Rule) []string {
	var out []string
	action := map[networkpolicy.Action]string{
		networkpolicy.Accept: "accept", networkpolicy.Deny: "drop", networkpolicy.Pass: "goto " + restChain(d),
	}[r.Action]
	add := func(parts ...string) {
		out = append(out, strings.Join(append(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), action), " "))
	}
	ports := portMatches(r)
	if r.AnyPeer {
		for _, p := range ports {
			add(p)
		}
	}
	other := "saddr"
	if d == networkpolicy.Egress {
		other = "daddr"
	}
	for f, family := range families {
		var peers []string
		for _, name := range []string{r.Pods[f], r.Blocks[f]} {
			if name != "" {
				peers = append(peers, fmt.Sprintf("%s %s @%s", family.word, other, name))
			}
		}
		named := ""
		if r.Named[f] != "" {
			named = fmt.Sprintf("%s daddr . meta l4proto . th dport @%s", family.word, r.Named[f])
			if r.AnyPeer {
				add(named)
			}
		}
		for _, peer := range peers {
			for _, p := range ports {
				add(peer, p)
			}
			if named != "" {
				add(peer, named)
			}
		}
	}
	return out
}

// portMatches is one match for each protocol; a single empty one for any port.
func portMatches(r networkpolicy.Rule) []string {
	if r.AnyPort {
		return []string{""}
	}
	var out []string
	for _, proto := range []string{"tcp", "udp", "sctp"} {
		var list []string
		all := false
		for _, p := range r.Ports {
			if p.Protocol == proto {
				all = all || p.All()
				list = append(list, p.String())
			}
		}
		switch {
		case all:
			out = append(out, "meta l4proto "+proto)
		case len(list) > 0:
			out = append(out, fmt.Sprintf("meta l4proto %s th dport { %s }", proto, strings.Join(list, ", ")))
		}
	}
	return out
}
