// SPDX-License-Identifier: Apache-2.0

package networkpolicy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/networkpolicy"
	"github.com/wasmplane/wasmplane/core/networkpolicy/policytest"
)

// kernel is a packet filter to which changes are applied as nftables would: what is
// not there cannot be removed or referred to, and what is referred to cannot be removed.
type kernel struct {
	t        testing.TB
	sets     map[string]networkpolicy.Set
	elements map[networkpolicy.Element]bool
	chains   map[string]networkpolicy.Chain
	verdicts map[networkpolicy.Verdict]string
}

func newKernel(t *testing.T) *kernel {
	return &kernel{t, map[string]networkpolicy.Set{
		"self4": {}, "self6": {IPv6: true},
	}, map[networkpolicy.Element]bool{}, map[string]networkpolicy.Chain{}, map[networkpolicy.Verdict]string{}}
}

func (k *kernel) must(ok bool, format string, args ...any) {
	if !ok {
		k.t.Helper()
		k.t.Fatalf(format, args...)
	}
}

func (k *kernel) apply(c *networkpolicy.Change) {
	for name, s := range c.Sets {
		_, there := k.sets[name]
		k.must(!there, "set %s is there already", name)
		k.sets[name] = s
	}
	for _, pods := range []bool{false, true} {
		for name, ch := range c.Chains {
			if pods == (len(ch.Rules) == 0) {
				_, there := k.chains[name]
				k.must(!there, "chain %s is there already", name)
				k.refers(name, ch)
				k.chains[name] = ch
			}
		}
	}
	for _, e := range c.RemovedElements {
		k.must(k.elements[e], "element %v is removed and not there", e)
		delete(k.elements, e)
	}
	for _, e := range c.Elements {
		_, there := k.sets[e.Set]
		k.must(there && !k.elements[e], "element %v: set there %t, element there %t", e, there, k.elements[e])
		k.elements[e] = true
	}
	for _, v := range c.RemovedVerdicts {
		k.must(k.verdicts[v] != "", "verdict %v is removed and not there", v)
		delete(k.verdicts, v)
	}
	for v, name := range c.Verdicts {
		_, there := k.chains[name]
		k.must(there && k.verdicts[v] == "", "verdict %v: chain there %t, now %q", v, there, k.verdicts[v])
		k.verdicts[v] = name
	}
	for _, name := range c.RemovedChains {
		_, there := k.chains[name]
		k.must(there, "chain %s is removed and not there", name)
		delete(k.chains, name)
	}
	for _, name := range c.RemovedSets {
		_, there := k.sets[name]
		k.must(there, "set %s is removed and not there", name)
		delete(k.sets, name)
		for e := range k.elements {
			if e.Set == name {
				delete(k.elements, e)
			}
		}
	}
	for name, ch := range k.chains {
		k.refers(name, ch)
	}
	for v, name := range k.verdicts {
		_, there := k.chains[name]
		k.must(there, "verdict %v leads to %s, which is gone", v, name)
	}
}

func (k *kernel) refers(name string, ch networkpolicy.Chain) {
	for _, j := range ch.Jumps {
		_, there := k.chains[j]
		k.must(there, "chain %s jumps to %s, which is not there", name, j)
	}
	for _, r := range ch.Rules {
		for _, s := range slices.Concat(r.Pods[:], r.Blocks[:], r.Named[:]) {
			_, there := k.sets[s]
			k.must(s == "" || there, "chain %s refers to set %s, which is not there", name, s)
		}
	}
}

// allowed is what becomes of a packet.
func (k *kernel) allowed(p policytest.Packet) bool {
	if k.elements[networkpolicy.Element{Set: networkpolicy.SelfSet(p.From.Is6()), Value: p.From.String() + " . " + p.To.String()}] {
		return true
	}
	if p.ToThisNode() {
		return k.direction(p, networkpolicy.Egress, networkpolicy.ToNode, p.From, p.To)
	}
	return k.direction(p, networkpolicy.Egress, networkpolicy.Forwarded, p.From, p.To) &&
		k.direction(p, networkpolicy.Ingress, networkpolicy.Forwarded, p.To, p.From)
}

func (k *kernel) direction(p policytest.Packet, d networkpolicy.Direction, s networkpolicy.Stage, subject, peer netip.Addr) bool {
	name := k.verdicts[networkpolicy.Verdict{Direction: d, Stage: s, Address: subject}]
	if name == "" {
		k.must(s != networkpolicy.AfterAdmin, "%v is passed on to a chain that is not there", p)
		return true
	}
	c := k.chains[name]
	if c.OwnNode && p.ToThisNode() {
		return true
	}
	for _, j := range c.Jumps {
		for _, r := range k.chains[j].Rules {
			if !k.peer(r, peer) || !k.port(r, p) {
				continue
			}
			switch r.Action {
			case networkpolicy.Accept:
				return true
			case networkpolicy.Deny:
				return false
			case networkpolicy.Pass:
				return k.direction(p, d, networkpolicy.AfterAdmin, subject, peer)
			}
		}
	}
	if c.End == networkpolicy.Go {
		return k.direction(p, d, networkpolicy.AfterAdmin, subject, peer)
	}
	return c.End == networkpolicy.Permit
}

func family(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}

func (k *kernel) peer(r networkpolicy.Rule, peer netip.Addr) bool {
	if r.AnyPeer || k.elements[networkpolicy.Element{Set: r.Pods[family(peer)], Value: peer.String()}] {
		return true
	}
	for e := range k.elements {
		if e.Set == r.Blocks[family(peer)] && e.Set != "" {
			from, to, many := strings.Cut(e.Value, "-")
			if !many {
				to = from
			}
			if !peer.Less(netip.MustParseAddr(from)) && !netip.MustParseAddr(to).Less(peer) {
				return true
			}
		}
	}
	return false
}

func (k *kernel) port(r networkpolicy.Rule, p policytest.Packet) bool {
	return r.AnyPort ||
		slices.ContainsFunc(r.Ports, func(one networkpolicy.PortRange) bool {
			return one.Protocol == p.Proto && one.From <= p.Port && p.Port <= one.To
		}) || k.elements[networkpolicy.Element{Set: r.Named[family(p.To)], Value: fmt.Sprintf("%s . %s . %d", p.To, p.Proto, p.Port)}]
}
