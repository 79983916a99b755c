// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"sigs.k8s.io/knftables"
)

// guardPurpose names the table of guard.
const guardPurpose = "guard"

// guard keeps pods with IPv6 from what that protocol lets a neighbour do. Nobody on the bridge
// is a router: what advertises one, redirects, or answers for the gateway's address is dropped
// (RFC 6105, RFC 4861); so is what has a source that is no pod's of this node, for which the
// kernel has no reverse path filter of IPv6. What the bridge passes from pod to pod comes by here
// because the kernel shows it to nftables (bridge-nf-call-ip6tables).
// A node without IPv6 has no such table.
func guard(ctx context.Context, c Config) error {
	name := c.Names.Table(guardPurpose)
	nft, err := knftables.New(knftables.IPv6Family, name)
	if err != nil {
		return fmt.Errorf("use nftables (apt-get install nftables): %w", err)
	}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	if own := slices.IndexFunc(c.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() }); own >= 0 {
		tx.Add(&knftables.Table{Comment: knftables.PtrTo("what no pod may send")})
		tx.Add(&knftables.Chain{
			Name: "prerouting", Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(knftables.PreroutingHook),
			Priority: knftables.PtrTo(knftables.BaseChainPriority("-310")),
		})
		for _, r := range guardRules(c.PodCIDRs[own]) {
			tx.Add(&knftables.Rule{Chain: "prerouting", Rule: "iifname " + strconv.Quote(c.Names.Bridge()) + " " + r + " drop"})
		}
	}
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write nftables table ip6 %s: %w", name, err)
	}
	return nil
}

func guardRules(own netip.Prefix) []string {
	gateway := gateway(own).IP.To16()
	return []string{
		"icmpv6 type { nd-router-advert, nd-redirect }",
		// The target is in the 16 bytes behind the first 8 of the message.
		"icmpv6 type nd-neighbor-advert @th,64,128 0x" + hex.EncodeToString(gateway),
		"ip6 saddr " + gateway.String(),
		"ip6 saddr != { " + own.String() + ", fe80::/10, ::/128 }",
	}
}
