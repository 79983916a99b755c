// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/knftables"
)

// table is our table of one family, in the kernel.
type table struct {
	family   family
	name     string
	services []netip.Prefix // the Services' networks of this family, those of ServiceCIDRs too
	reserved []int32        // TCP ports of the node that no Service gets
	sockets  *bool          // the kernel can be asked who listens; nil: not tried yet
	nft      knftables.Interface
}

func openTable(f family, name string, services []netip.Prefix, reserved []int32) (*table, error) {
	fam := knftables.IPv4Family
	if f.ip6 {
		fam = knftables.IPv6Family
	}
	nft, err := knftables.New(fam, name)
	if err != nil {
		return nil, fmt.Errorf("the service proxy needs nftables: install the package nftables (nft 1.0.1 or later) and run as root: %w", err)
	}
	return &table{family: f, name: name, services: f.widest(services), reserved: reserved, nft: nft}, nil
}

// rewrite replaces the whole table at once: no packet sees half of it.
func (t *table) rewrite(ctx context.Context, c *change) error {
	if t.sockets == nil {
		known := t.asksSockets(ctx)
		t.sockets = &known
	}
	tx := t.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("services of a wasmplane cluster")})
	t.skeleton(tx)
	c.write(tx, t.family)
	return t.run(ctx, tx)
}

func (t *table) update(ctx context.Context, c *change) error {
	tx := t.nft.NewTransaction()
	c.write(tx, t.family)
	return t.run(ctx, tx)
}

// asksSockets tries, in a table of its own, whether the kernel has the module nft_socket. Without
// it what is reserved stays out of Services' reach, and what else listens does not.
func (t *table) asksSockets(ctx context.Context) bool {
	fam := knftables.IPv4Family
	if t.family.ip6 {
		fam = knftables.IPv6Family
	}
	probe, err := knftables.New(fam, t.name+"-probe")
	if err != nil {
		return false
	}
	tx := probe.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{Name: "probe"})
	tx.Add(&knftables.Rule{Chain: "probe", Rule: "socket wildcard 0 return"})
	tx.Delete(&knftables.Table{})
	return probe.Run(ctx, tx) == nil
}

func (t *table) run(ctx context.Context, tx *knftables.Transaction) error {
	if err := t.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write the nftables table %s %s: %w", t.family.word, t.name, err)
	}
	return nil
}

// remove takes the table away; one that is not there is as good.
func (t *table) remove(ctx context.Context) error {
	tx := t.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	return t.run(ctx, tx)
}

// intact says whether the table is still there: others flush the whole ruleset.
func (t *table) intact(ctx context.Context) (bool, error) {
	chains, err := t.nft.List(ctx, "chain")
	if knftables.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, want := range []string{
		"nat-prerouting", "nat-output", "nat-postrouting", "filter-forward", "filter-output", "filter-input",
		"strays-forward", "strays-output", "services", chainOwn, chainOwnOut, chainOwnNone,
	} {
		if !slices.Contains(chains, want) {
			return false, nil
		}
	}
	return true, nil
}

func (t *table) address() string {
	if t.family.ip6 {
		return "ipv6_addr"
	}
	return "ipv4_addr"
}

// skeleton is what every table has, with no Service in it.
func (t *table) skeleton(tx *knftables.Transaction) {
	ip := t.family.word
	for _, m := range []string{mapServices, mapNoIPs} {
		tx.Add(&knftables.Map{Name: m, Type: t.address() + " . inet_proto . inet_service : verdict"})
	}
	for _, m := range []string{mapNodePorts, mapNoPorts} {
		tx.Add(&knftables.Map{Name: m, Type: "inet_proto . inet_service : verdict"})
	}
	tx.Add(&knftables.Set{
		Name: setHairpin, Type: t.address() + " . " + t.address(),
		Comment: knftables.PtrTo("a pod that reaches itself by a Service"),
	})
	tx.Add(&knftables.Set{
		Name: setRanges, Type: t.address(), Flags: []knftables.SetFlag{knftables.IntervalFlag},
		Comment: knftables.PtrTo("the networks of Services"),
	})
	t.addRanges(tx)
	rules := func(name string, rules ...string) {
		tx.Add(&knftables.Chain{Name: name})
		for _, r := range rules {
			tx.Add(&knftables.Rule{Chain: name, Rule: r})
		}
	}
	rules(chainReject, "meta l4proto tcp reject with tcp reset", "reject")
	rules(chainDrop, "drop")
	rules("services", fmt.Sprintf("%s daddr . meta l4proto . th dport vmap @%s", ip, mapServices))
	rules("no-endpoints", fmt.Sprintf("%s daddr . meta l4proto . th dport vmap @%s", ip, mapNoIPs))
	rules(chainOwn, t.own(mapNodePorts, true, "goto services")...)
	rules(chainOwnOut, t.own(mapNodePorts, false, "goto services")...)
	rules(chainOwnNone, t.own(mapNoPorts, true, "goto no-endpoints")...)
	t.hooks(tx, ip)
}

// own is what becomes of connections to the node's own addresses. They lead to node ports, and
// to Services of which they are the external or load balancer's address; but what the machine
// is reached and rescued by, and ports on which a process of it listens, are no Service's. Where
// connections leave the node the kernel answers with the socket of who connects: nobody asks then.
func (t *table) own(nodePorts string, incoming bool, then string) []string {
	loopback := "127.0.0.0/8"
	if t.family.ip6 {
		loopback = "::1"
	}
	var rules []string
	if len(t.reserved) > 0 {
		ports := make([]string, len(t.reserved))
		for i, p := range t.reserved {
			ports[i] = strconv.Itoa(int(p))
		}
		rules = append(rules, fmt.Sprintf("tcp dport { %s } return", strings.Join(ports, ", ")))
	}
	rules = append(rules, fmt.Sprintf("%s daddr != %s meta l4proto . th dport vmap @%s", t.family.word, loopback, nodePorts))
	if incoming && *t.sockets {
		rules = append(rules, "socket wildcard 0 return", "socket wildcard 1 return")
	}
	return append(rules, then)
}

// hooks: the filter hooks come before nat, and see only what begins. The output
// hook's priority is a number, because nft 1.0.6 does not know its name there.
func (t *table) hooks(tx *knftables.Transaction, ip string) {
	hook := func(kind knftables.BaseChainType, name string, at knftables.BaseChainHook, priority string, rules ...string) {
		tx.Add(&knftables.Chain{
			Name: name, Type: knftables.PtrTo(kind), Hook: knftables.PtrTo(at), Priority: knftables.PtrTo(knftables.BaseChainPriority(priority)),
		})
		for _, r := range rules {
			tx.Add(&knftables.Rule{Chain: name, Rule: r})
		}
	}
	for name, at := range map[string]knftables.BaseChainHook{
		"filter-input": knftables.InputHook, "filter-forward": knftables.ForwardHook, "filter-output": knftables.OutputHook,
	} {
		if at == knftables.ForwardHook { // nothing that is forwarded is for the node, nor may sockets be asked for there
			hook(knftables.FilterType, name, at, "-110", "ct state new jump no-endpoints")
			continue
		}
		hook(knftables.FilterType, name, at, "-110", "ct state != new return", "fib daddr type local goto "+chainOwnNone, "goto no-endpoints")
	}
	// What still goes to a Service's network behind nat went to no port of any
	// Service: without an answer here it would leave by the default route.
	stray := fmt.Sprintf("%s daddr @%s goto %s", ip, setRanges, chainReject)
	for name, at := range map[string]knftables.BaseChainHook{"strays-forward": knftables.ForwardHook, "strays-output": knftables.OutputHook} {
		hook(knftables.FilterType, name, at, "0", stray)
	}
	hook(knftables.NATType, "nat-prerouting", knftables.PreroutingHook, "-100", "fib daddr type local goto "+chainOwn, "goto services")
	hook(knftables.NATType, "nat-output", knftables.OutputHook, "-100", "fib daddr type local goto "+chainOwnOut, "goto services")
	hook(knftables.NATType, "nat-postrouting", knftables.PostroutingHook, "100",
		fmt.Sprintf("meta mark and %s == 0 %s saddr . %s daddr @%s ct status dnat masquerade fully-random", masqueradeMark, ip, ip, setHairpin),
		// The node's own processes have the address that leads to the Service's, by the default route as a rule: on a
		// machine with several links an endpoint of another node could not answer to it.
		fmt.Sprintf("meta mark and %s == 0 ct status dnat ct original %s daddr @%s fib saddr type local masquerade fully-random", masqueradeMark, ip, setRanges),
		fmt.Sprintf("meta mark and %s == 0 return", masqueradeMark),
		"meta mark set meta mark xor "+masqueradeMark,
		"masquerade fully-random",
	)
}

func affinitySet(name string, seconds int32, f family) *knftables.Set {
	kind := "ipv4_addr"
	if f.ip6 {
		kind = "ipv6_addr"
	}
	return &knftables.Set{
		Name: name, Type: kind, Flags: []knftables.SetFlag{knftables.DynamicFlag, knftables.TimeoutFlag},
		Timeout: knftables.PtrTo(time.Duration(seconds) * time.Second),
	}
}
