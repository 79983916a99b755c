// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
)

// ParseNetworks reads one network, or one of each IP family with a comma between them, as
// Cluster.PodCIDR has them.
func ParseNetworks(text string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(part))
		switch {
		case err != nil, p.Addr().Is4In6():
			return nil, fmt.Errorf("expected a network such as 10.244.0.0/16 or fd00:10:244::/56, found %q", strings.TrimSpace(part))
		case len(out) == 2, len(out) == 1 && out[0].Addr().Is4() == p.Addr().Is4():
			return nil, fmt.Errorf("expected one network, or one of each IP family, found %q", text)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// FormatNetworks writes networks as ParseNetworks reads them.
func FormatNetworks(list []netip.Prefix) string {
	var out []string
	for _, p := range list {
		out = append(out, p.String())
	}
	return strings.Join(out, ",")
}

// PodNetworks are the networks of PodCIDR, the cluster's own family first; none of a text
// that Complete refuses, or where a component does not know them.
func (c *Cluster) PodNetworks() []netip.Prefix { return networks(c.PodCIDR) }

// ServiceNetworks are the networks of ServiceCIDR, likewise.
func (c *Cluster) ServiceNetworks() []netip.Prefix { return networks(c.ServiceCIDR) }

// LeastMTU6 is what a link must carry for Linux to have IPv6 on it.
const LeastMTU6 = 1280

func (c *Cluster) hasIPv6() bool {
	return slices.ContainsFunc(c.PodNetworks(), func(p netip.Prefix) bool { return p.Addr().Is6() })
}

// NodeBits are the prefix lengths of a node's parts of PodNetworks.
func (c *Cluster) NodeBits() []int {
	var bits []int
	for _, p := range c.PodNetworks() {
		bits = append(bits, c.nodeBits(p))
	}
	return bits
}

func (c *Cluster) nodeBits(p netip.Prefix) int {
	if p.Addr().Is6() {
		return c.NodeCIDRMaskSizeIPv6
	}
	return c.NodeCIDRMaskSize
}

func networks(text string) []netip.Prefix {
	list, err := ParseNetworks(text)
	if err != nil {
		return nil
	}
	return list
}

// Addresses are those of Address, as they are written there. They have been checked.
func (n *Node) Addresses() []netip.Addr {
	list, err := parseAddresses(n.Address)
	if err != nil {
		return nil
	}
	return list
}

// PodsThroughKubelets says whether the server connects to pods through the kubelets of their nodes.
func (a *APIServer) PodsThroughKubelets(mode NodeMode) bool {
	return a.PodRoute == PodRouteKubelet || a.PodRoute == "" && mode == NodeMode{}
}

// KubeletPort is where a kubelet listens unless it is told otherwise.
const KubeletPort = 10250

var usualKubelet = fmt.Sprintf(":%d", KubeletPort)

// The values of APIServer.PodRoute.
const (
	PodRouteDirect  = "direct"
	PodRouteKubelet = "kubelet"
)

// VirtualAddresses are those of VirtualAddress. They have been checked.
func (a *APIServer) VirtualAddresses() []netip.Addr {
	list, err := parseAddresses(a.VirtualAddress)
	if err != nil {
		return nil
	}
	return list
}

func parseAddresses(text string) ([]netip.Addr, error) {
	if text == "" {
		return nil, nil
	}
	var out []netip.Addr
	for part := range strings.SplitSeq(text, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(part))
		switch {
		case err != nil, a.Is4In6(), a.Zone() != "", a.IsUnspecified(), a.IsMulticast():
			return nil, fmt.Errorf("expected an address such as 192.0.2.7 or fd00::7, found %q", strings.TrimSpace(part))
		case a.IsLinkLocalUnicast() && a.Is6():
			return nil, fmt.Errorf("expected an address that all nodes reach; %s belongs to one link", a)
		case len(out) == 2, len(out) == 1 && out[0].Is4() == a.Is4():
			return nil, fmt.Errorf("expected one address, or one of each IP family, found %q", text)
		}
		out = append(out, a)
	}
	return out, nil
}

func (c *Configuration) completeNetworks() error {
	if err := c.checkFamilies(); err != nil {
		return err
	}
	if c.Cluster.PodCIDR == "" {
		var list []string
		for _, f := range c.Cluster.IPFamilies {
			list = append(list, defaultNetworks(c.Cluster.Name).pods[slices.Index(familyNames(), f)])
		}
		c.Cluster.PodCIDR = cmp.Or(strings.Join(list, ","), defaultNetworks(c.Cluster.Name).pods[0])
	}
	if c.Cluster.NodeCIDRMaskSize == 0 {
		c.Cluster.NodeCIDRMaskSize = 24
	}
	if c.Cluster.NodeCIDRMaskSizeIPv6 == 0 {
		c.Cluster.NodeCIDRMaskSizeIPv6 = 64
	}
	pods, err := ParseNetworks(c.Cluster.PodCIDR)
	if err != nil {
		return field("cluster.podCIDR", "%v", err)
	}
	if c.Cluster.ServiceCIDR == "" {
		var list []string
		for _, p := range pods {
			list = append(list, defaultNetworks(c.Cluster.Name).services[family(p)])
		}
		c.Cluster.ServiceCIDR = strings.Join(list, ",")
	}
	c.Cluster.PodCIDR = FormatNetworks(pods)
	if err := c.checkPods(pods); err != nil {
		return err
	}
	if err := c.checkServices(pods); err != nil {
		return err
	}
	if err := c.checkAddresses(pods); err != nil {
		return err
	}
	for path, list := range map[string][]string{"egress.tenants": c.Egress.Tenants, "egress.operators": c.Egress.Operators} {
		for i, text := range list {
			if _, err := netip.ParsePrefix(text); err != nil {
				return field(fmt.Sprintf("%s[%d]", path, i), "expected a network such as 10.1.0.0/16, found %q", text)
			}
		}
	}
	return nil
}

// familyNames are as the API has them.
func familyNames() []string { return []string{"IPv4", "IPv6"} }

// checkFamilies wants what PodCIDR says, too, not to contradict.
func (c *Configuration) checkFamilies() error {
	const path = "cluster.ipFamilies"
	asked := c.Cluster.IPFamilies
	for i, f := range asked {
		if !slices.Contains(familyNames(), f) || slices.Contains(asked[:i], f) {
			return field(fmt.Sprintf("%s[%d]", path, i), "expected IPv4 or IPv6, each once, found %q", f)
		}
	}
	var has []string
	for _, p := range c.Cluster.PodNetworks() {
		has = append(has, familyNames()[family(p)])
	}
	if len(asked) > 0 && len(has) > 0 && !slices.Equal(asked, has) {
		return field(path, "these are %v, and the networks of cluster.podCIDR are of %v: leave one of the two fields out, or make them agree, order included", asked, has)
	}
	return nil
}

// maxPartBits bounds how many nodes' parts the controller keeps account of, as upstream.
const maxPartBits = 16

func (c *Configuration) checkPods(pods []netip.Prefix) error {
	if m := c.Cluster.NodeCIDRMaskSize; m < 8 || m > 30 {
		return field("cluster.nodeCIDRMaskSize", "expected a prefix length from 8 to 30, found %d", m)
	}
	if m := c.Cluster.NodeCIDRMaskSizeIPv6; m < 16 || m > 120 {
		return field("cluster.nodeCIDRMaskSizeIPv6", "expected a prefix length from 16 to 120, found %d", m)
	}
	for _, p := range pods {
		mask, name := c.Cluster.nodeBits(p), "cluster.nodeCIDRMaskSize"
		if p.Addr().Is6() {
			name += "IPv6"
		}
		switch {
		case p.Bits() > mask:
			return field("cluster.podCIDR", "a node's part is a /%d (%s), and %s is smaller than that: take a larger network such as %s, or a larger %s",
				mask, name, p, defaultNetworks(c.Cluster.Name).pods[family(p)], name)
		case p.Addr().Is6() && mask-p.Bits() > maxPartBits:
			return field(name, "%s has more than %d networks of /%d: at most %d bits may lie between the two; make one of them larger, or the other smaller", p, 1<<maxPartBits, mask, maxPartBits)
		case !p.Addr().IsGlobalUnicast():
			return field("cluster.podCIDR", "%s is no network that hosts can have addresses of", p)
		}
		// The network's own address, the broadcast address and the bridge are no pod's.
		if left := p.Addr().BitLen() - mask; left < 32 && c.Node.MaxPods > int64(1)<<left-3 {
			return field(name, "a node's /%d has room for %d pods, and node.maxPods is %d: make one of them smaller", mask, int64(1)<<left-3, c.Node.MaxPods)
		}
	}
	return nil
}

func (c *Configuration) checkServices(pods []netip.Prefix) error {
	const path = "cluster.serviceCIDR"
	services, err := ParseNetworks(c.Cluster.ServiceCIDR)
	if err != nil {
		return field(path, "%v", err)
	}
	c.Cluster.ServiceCIDR = FormatNetworks(services)
	for _, s := range services {
		switch {
		case s.Addr().Is4() && (s.Bits() > 28 || s.Bits() < 12):
			return field(path, "expected an IPv4 network from /12 to /28 such as 10.96.0.0/16, found %q", s)
		case s.Addr().Is6() && (s.Bits() > 124 || s.Bits() < 64):
			return field(path, "expected an IPv6 network from /64 to /124 such as fd00:10:96::/112, found %q", s)
		}
		found := false
		for _, p := range pods {
			found = found || p.Addr().Is4() == s.Addr().Is4()
			if p.Overlaps(s) {
				return field(path, "%s overlaps cluster.podCIDR %s", s, p)
			}
		}
		if !found {
			return field(path, "%s is of %s, and pods (cluster.podCIDR %s) have no addresses of that family, so that no Service could lead to one: add such a network there, for example %s,%s",
				s, familyNames()[family(s)], c.Cluster.PodCIDR, c.Cluster.PodCIDR, defaultNetworks(c.Cluster.Name).pods[family(s)])
		}
	}
	return nil
}

func (c *Configuration) checkAddresses(pods []netip.Prefix) error {
	nodes, err := parseAddresses(c.Node.Address)
	if err != nil {
		return field("node.address", "%v", err)
	}
	if !slices.Contains([]string{"", PodRouteDirect, PodRouteKubelet}, c.APIServer.PodRoute) {
		return field("apiserver.podRoute", "expected direct, kubelet or nothing, found %q", c.APIServer.PodRoute)
	}
	virtual, err := parseAddresses(c.APIServer.VirtualAddress)
	if err != nil {
		return field("apiserver.virtualAddress", "%v", err)
	}
	for path, list := range map[string][]netip.Addr{"node.address": nodes, "apiserver.virtualAddress": virtual} {
		for _, a := range list {
			for _, p := range append(pods, c.Cluster.ServiceNetworks()...) {
				if p.Contains(a) {
					return field(path, "%s lies in the cluster's own network %s", a, p)
				}
			}
		}
	}
	for _, a := range virtual {
		switch {
		case a.IsLoopback():
			return field("apiserver.virtualAddress", "%s is reached on one machine alone: choose a free address of the network that the servers are in", a)
		case slices.Contains(nodes, a):
			return field("apiserver.virtualAddress", "%s is this machine's own address (node.address): choose one that no machine has", a)
		}
	}
	return nil
}

func family(p netip.Prefix) int {
	if p.Addr().Is6() {
		return 1
	}
	return 0
}

// defaults are the networks of a cluster, by family: IPv4, IPv6.
type defaults struct{ pods, services [2]string }

// defaultNetworks derives networks from the cluster's name, so that clusters of one
// host don't meet. The default name has upstream's customary ones.
func defaultNetworks(name string) defaults {
	if name == "wasmplane" {
		return defaults{[2]string{"10.244.0.0/16", "fd00:10:244::/56"}, [2]string{"10.96.0.0/16", "fd00:10:96::/112"}}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	n := h.Sum32() % 48
	return defaults{
		[2]string{fmt.Sprintf("10.%d.0.0/16", 128+2*n), fmt.Sprintf("fd00:10:%d::/56", 128+2*n)},
		[2]string{fmt.Sprintf("10.%d.0.0/16", 129+2*n), fmt.Sprintf("fd00:10:%d::/112", 129+2*n)},
	}
}
