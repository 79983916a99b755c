// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join"
)

// overlapping says which network of the cluster this machine is in itself, and what to set; nil = none.
// Pods whose network others make (node.cniConfigDir, node.criEndpoint) have addresses on interfaces that
// nobody can tell from the machine's own, and simulated ones have none at all.
func overlapping(c *config.Configuration, own []join.Network) error {
	if c.Node.Mode.Simulated > 0 {
		return nil
	}
	check := func(field, what string, theirs []netip.Prefix) error {
		if n, at := join.Overlap(own, theirs); at.IsValid() {
			return fmt.Errorf("%s: the network of %s, %s, overlaps %s, which this machine's interface %s is in: what is sent to machines there would go to %s. Set %s to a network that no machine of the cluster is in, and that none of them has to reach", field, what, at, n.Prefix, n.Interface, what, field)
		}
		return nil
	}
	if c.Node.CNIConfigDir == "" && c.Node.CRIEndpoint == "" {
		if err := check("cluster.podCIDR", "pods", c.Cluster.PodNetworks()); err != nil {
			return err
		}
	}
	if !c.Proxy.Enabled {
		return nil
	}
	return check("cluster.serviceCIDR", "Services", c.Cluster.ServiceNetworks())
}

// checkNetworks refuses to begin a cluster whose networks this machine is in itself. One that
// has begun goes on: it cannot change them, and the interface may be a VPN of today.
func (s Site) checkNetworks(ctx context.Context) error {
	own, err := join.Interfaces()
	if err != nil {
		return err
	}
	found := overlapping(s.Options.Config, own)
	if found == nil {
		return nil
	}
	if _, err := s.Options.Dir.ReadState(); err != nil && !s.Around.Joined() { // nothing was ever written here
		return found
	}
	s.Options.Logger.WarnContext(ctx, "this machine is in a network of the cluster's", "error", found)
	return nil
}
