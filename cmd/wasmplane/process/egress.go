// SPDX-License-Identifier: Apache-2.0

package process

import (
	"net"
	"net/netip"

	"github.com/wasmplane/wasmplane/core/dial"
)

// OperatorsDial is where the control plane connects to on behalf of what operators write
// (sources, webhooks, aggregated APIs, identity providers), and to kubelets and pods.
func OperatorsDial(o Options) *dial.Policy {
	_, allowed := o.Config.Egress.Networks()
	p := dial.Operator(allowed)
	return &p
}

// tenantsDial is where it connects to on behalf of tenants: the internet, without the
// cluster's own networks and this machine's own addresses, should these be public.
func tenantsDial(o Options) *dial.Policy {
	allowed, _ := o.Config.Egress.Networks()
	own := append(o.Config.Cluster.PodNetworks(), o.Config.Cluster.ServiceNetworks()...)
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		o.Logger.Warn("could not list this machine's addresses, which sources of tenants' plugins must not lead to", "error", err)
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				addr = addr.Unmap()
				own = append(own, netip.PrefixFrom(addr, addr.BitLen()))
			}
		}
	}
	p := dial.Public(allowed, own)
	return &p
}
