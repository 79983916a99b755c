// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"net"
	"net/netip"

	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/scheduler/extender"
)

// OperatorsDial is where the control plane connects to on behalf of what operators write
// (sources, webhooks, aggregated APIs, identity providers), and to kubelets and pods.
func OperatorsDial(o Options) *dial.Policy {
	_, allowed := o.Config.Egress.Networks()
	p := dial.Operator(allowed)
	p.Through, p.Report = o.ToPods, reportDials(o.Attempts, "operators")
	return &p
}

// Extenders is how the scheduler extenders that operators name are reached; on a trial they bind nothing.
func Extenders(o Options, trial bool) extender.Reach {
	return extender.Reach{Dial: *OperatorsDial(o), Trial: trial}
}

// TenantsDial is where it connects to on behalf of tenants: the internet, without the
// cluster's own networks and this machine's own addresses, should these be public.
func TenantsDial(o Options) *dial.Policy {
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
	p.Report = reportDials(o.Attempts, "tenants")
	return &p
}

// reportDials writes down what a policy refuses. Objects of namespaces get no event: their status says
// what their owners may know, and what a name leads to is not that.
func reportDials(l *attempts.Ledger, policy string) func(context.Context, *dial.RefusedError) {
	return func(ctx context.Context, refused *dial.RefusedError) {
		a := attempts.Attempt{Kind: attempts.Dial, Reason: policy, Detail: "policy of " + policy + ": " + refused.Error()}
		if attempts.From(ctx).Object.Namespace == "" {
			a.Event = "it leads to an address that the policy of " + policy + " refuses: " + refused.Error()
		}
		l.Refused(ctx, a)
	}
}
