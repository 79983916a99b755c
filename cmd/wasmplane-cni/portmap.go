// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"sigs.k8s.io/knftables"
)

const (
	nftTimeout = 20 * time.Second

	anyAddress = "hostports"    // protocol . port : address . port
	oneAddress = "hostip-ports" // address . protocol . port : address . port
	hairpins   = "hairpins"     // address . address: pods that may call their own host ports
)

// portmapConf is the configuration of the portmap plugin. Rules of all pods are
// elements of three sets in one table, so that adding and removing a pod touches
// its own elements and no rule.
type portmapConf struct {
	types.NetConf
	Backend string `json:"backend"`
	// Table is ours; the reference plugin writes to a table that all clusters share.
	Table string `json:"table"`
	SNAT  *bool  `json:"snat"`
	// ReservedTCPPorts and ReservedUDPPorts are the node's own, whether or not anybody listens there now.
	ReservedTCPPorts []int `json:"reservedTCPPorts"`
	ReservedUDPPorts []int `json:"reservedUDPPorts"`
	RuntimeConfig    struct {
		PortMaps []portMapping `json:"portMappings"`
	} `json:"runtimeConfig"`

	ConditionsV4         []string `json:"conditionsV4"`
	ConditionsV6         []string `json:"conditionsV6"`
	ExternalSetMarkChain string   `json:"externalSetMarkChain"`
	MasqAll              bool     `json:"masqAll"`
}

// portMapping is one entry of the portMappings capability.
type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

func loadPortmap(data []byte) (*portmapConf, *current.Result, error) {
	c := &portmapConf{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, nil, fmt.Errorf("read the network configuration: %w", err)
	}
	if err := c.complete(); err != nil {
		return nil, nil, err
	}
	if c.RawPrevResult == nil {
		return c, nil, nil
	}
	if err := version.ParsePrevResult(&c.NetConf); err != nil {
		return nil, nil, fmt.Errorf("read prevResult: %w", err)
	}
	result, err := current.NewResultFromResult(c.PrevResult)
	if err != nil {
		return nil, nil, fmt.Errorf("read prevResult: %w", err)
	}
	return c, result, nil
}

// complete fills in the defaults, and refuses what would be ignored.
func (c *portmapConf) complete() error {
	c.Table, c.Backend = cmp.Or(c.Table, "cni_hostport"), cmp.Or(c.Backend, "nftables")
	switch {
	case c.Backend != "nftables":
		return fmt.Errorf("the portmap plugin of wasmplane has no backend %q, only nftables", c.Backend)
	case len(c.ConditionsV4) > 0, len(c.ConditionsV6) > 0, c.ExternalSetMarkChain != "", c.MasqAll:
		return errors.New("the portmap plugin of wasmplane supports no conditions, externalSetMarkChain or masqAll; use the reference plugin for them")
	}
	for _, m := range c.RuntimeConfig.PortMaps {
		if err := m.validate(); err != nil {
			return err
		}
	}
	return nil
}

func (m portMapping) validate() error {
	for _, p := range []int{m.HostPort, m.ContainerPort} {
		if p < 1 || p > 65535 {
			return fmt.Errorf("port %d of a port mapping is not between 1 and 65535", p)
		}
	}
	switch m.Protocol {
	case "tcp", "udp", "sctp":
	default:
		return fmt.Errorf("protocol %q of a port mapping is not tcp, udp or sctp", m.Protocol)
	}
	if m.HostIP != "" {
		if _, err := netip.ParseAddr(m.HostIP); err != nil {
			return fmt.Errorf("hostIP of a port mapping: %w", err)
		}
	}
	return nil
}

func addPortmap(args *skel.CmdArgs) error {
	c, result, err := loadPortmap(args.StdinData)
	if err != nil {
		return err
	}
	if result == nil {
		return errors.New("portmap must come after a plugin that gives addresses")
	}
	if len(c.RuntimeConfig.PortMaps) > 0 {
		if err := checkFree(c); err != nil {
			return err
		}
		if err := forwardAll(c, args, result); err != nil {
			return err
		}
	}
	return types.PrintResult(result, c.CNIVersion)
}

// forwardAll sends the pod's host ports to its address of each family.
func forwardAll(c *portmapConf, args *skel.CmdArgs, result *current.Result) error {
	for _, pod := range podAddresses(result, args.IfName) {
		if err := forward(c, args.ContainerID, pod); err != nil {
			return err
		}
	}
	return nil
}

// podAddresses answers the first address of each family on the pod's interface.
func podAddresses(result *current.Result, ifName string) []netip.Addr {
	var v4, v6 []netip.Addr
	for _, a := range result.IPs {
		if i := a.Interface; i != nil && *i >= 0 && *i < len(result.Interfaces) {
			if link := result.Interfaces[*i]; link.Name != ifName || link.Sandbox == "" {
				continue
			}
		}
		addr, ok := netip.AddrFromSlice(a.Address.IP)
		if !ok {
			continue
		}
		if addr = addr.Unmap(); addr.Is4() {
			v4 = append(v4, addr)
		} else {
			v6 = append(v6, addr)
		}
	}
	return append(v4[:min(1, len(v4))], v6[:min(1, len(v6))]...)
}

// table opens our table of the family of an address.
func table(c *portmapConf, family knftables.Family) (knftables.Interface, error) {
	nft, err := knftables.New(family, c.Table)
	if err != nil {
		return nil, fmt.Errorf("use nftables for hostPort (is nft installed?): %w", err)
	}
	return nft, nil
}

func familyOf(a netip.Addr) knftables.Family {
	if a.Is4() {
		return knftables.IPv4Family
	}
	return knftables.IPv6Family
}

// forward sends the pod's host ports to it. A port that an earlier pod left behind
// is taken over: the scheduler saw to it that no living pod has it.
func forward(c *portmapConf, container string, pod netip.Addr) error {
	nft, err := table(c, familyOf(pod))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), nftTimeout)
	defer cancel()
	wanted := elements(c, container, pod)
	tx := nft.NewTransaction()
	layout(tx, familyOf(pod), c.SNAT == nil || *c.SNAT)
	stale, err := existing(ctx, nft, func(e *knftables.Element) bool {
		for _, w := range wanted {
			if sameKey(w, e) {
				return true
			}
		}
		return false
	})
	if err != nil {
		return err
	}
	for _, e := range stale {
		tx.Delete(e)
	}
	for _, e := range wanted {
		tx.Add(e)
	}
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("forward host ports to %s: %w", pod, err)
	}
	forgetConnections(c, pod)
	if pod.Is4() && (c.SNAT == nil || *c.SNAT) {
		return routeLocalnet(pod)
	}
	return nil
}

// layout makes the table's fixed part; adding what is there changes nothing.
func layout(tx *knftables.Transaction, family knftables.Family, snat bool) {
	addr := "ipv4_addr"
	ipX := "ip"
	if family == knftables.IPv6Family {
		addr, ipX = "ipv6_addr", "ip6"
	}
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("host ports of pods")})
	tx.Add(&knftables.Map{Name: anyAddress, Type: "inet_proto . inet_service : " + addr + " . inet_service"})
	tx.Add(&knftables.Map{Name: oneAddress, Type: addr + " . inet_proto . inet_service : " + addr + " . inet_service"})
	tx.Add(&knftables.Set{Name: hairpins, Type: addr + " . " + addr})
	tx.Add(&knftables.Chain{Name: "forward-hostports"})
	tx.Flush(&knftables.Chain{Name: "forward-hostports"})
	// In a map lookup the key's protocol needs the transport header to be there.
	tx.Add(&knftables.Rule{Chain: "forward-hostports", Rule: knftables.Concat(
		"dnat", ipX, "addr . port to", ipX, "daddr . meta l4proto . th dport map @"+oneAddress)})
	tx.Add(&knftables.Rule{Chain: "forward-hostports", Rule: knftables.Concat(
		"dnat", ipX, "addr . port to", "meta l4proto . th dport map @"+anyAddress)})
	for _, hook := range []knftables.BaseChainHook{knftables.PreroutingHook, knftables.OutputHook} {
		// As a number: nft 1.0.6 rejects the name "dstnat" on the output hook. Ahead of
		// it, so that a service rule of the same table family does not win by chance.
		tx.Add(&knftables.Chain{
			Name: string(hook), Type: knftables.PtrTo(knftables.NATType), Hook: knftables.PtrTo(hook),
			Priority: knftables.PtrTo(knftables.BaseChainPriority("-101")),
		})
		tx.Flush(&knftables.Chain{Name: string(hook)})
		tx.Add(&knftables.Rule{Chain: string(hook), Rule: "fib daddr type local jump forward-hostports"})
	}
	tx.Add(&knftables.Chain{
		Name: "postrouting", Type: knftables.PtrTo(knftables.NATType), Hook: knftables.PtrTo(knftables.PostroutingHook),
		Priority: knftables.PtrTo(knftables.SNATPriority),
	})
	tx.Flush(&knftables.Chain{Name: "postrouting"})
	if !snat {
		return
	}
	// A pod that calls its own host port, and a client at localhost, must be answered
	// by way of the host.
	tx.Add(&knftables.Rule{Chain: "postrouting", Rule: knftables.Concat(
		ipX, "saddr .", ipX, "daddr @"+hairpins, "masquerade")})
	if family == knftables.IPv4Family {
		tx.Add(&knftables.Rule{Chain: "postrouting", Rule: "ip saddr 127.0.0.0/8 ip daddr != 127.0.0.0/8 masquerade"})
	}
}

// elements are what one pod has in the table.
func elements(c *portmapConf, container string, pod netip.Addr) []*knftables.Element {
	out := []*knftables.Element{{Set: hairpins, Key: []string{pod.String(), pod.String()}, Comment: &container}}
	for _, m := range c.RuntimeConfig.PortMaps {
		e := &knftables.Element{
			Map: anyAddress, Key: []string{m.Protocol, strconv.Itoa(m.HostPort)},
			Value: []string{pod.String(), strconv.Itoa(m.ContainerPort)}, Comment: &container,
		}
		if m.HostIP != "" {
			hostIP, err := netip.ParseAddr(m.HostIP)
			if err != nil || hostIP.Unmap().Is4() != pod.Is4() {
				continue // for the other family
			}
			if hostIP = hostIP.Unmap(); !hostIP.IsUnspecified() {
				e.Map, e.Key = oneAddress, append([]string{hostIP.String()}, e.Key...)
			}
		}
		out = append(out, e)
	}
	return out
}

func sameKey(a, b *knftables.Element) bool {
	if a.Map != b.Map || a.Set != b.Set || len(a.Key) != len(b.Key) {
		return false
	}
	for i := range a.Key {
		if a.Key[i] != b.Key[i] {
			return false
		}
	}
	return true
}

// protocolNames are those of host ports, by their numbers.
var protocolNames = map[string]string{"6": "tcp", "17": "udp", "132": "sctp"}

// nameProtocols puts names where nft 1.0.6 (Debian 12) lists numbers.
func nameProtocols(e *knftables.Element) {
	if e.Map == "" {
		return
	}
	at := len(e.Key) - 2 // the port comes last
	if name, ok := protocolNames[e.Key[at]]; ok {
		e.Key[at] = name
	}
}

// existing lists the elements in our table that fit; none when there is no table.
func existing(ctx context.Context, nft knftables.Interface, fits func(*knftables.Element) bool) ([]*knftables.Element, error) {
	var out []*knftables.Element
	for _, in := range []struct{ kind, name string }{{"map", anyAddress}, {"map", oneAddress}, {"set", hairpins}} {
		es, err := nft.ListElements(ctx, in.kind, in.name)
		if knftables.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list host ports: %w", err)
		}
		for _, e := range es {
			nameProtocols(e)
			if fits(e) {
				out = append(out, e)
			}
		}
	}
	return out, nil
}

func delPortmap(args *skel.CmdArgs) error {
	c, _, err := loadPortmap(args.StdinData)
	if err != nil {
		return err
	}
	if len(c.RuntimeConfig.PortMaps) == 0 {
		return nil
	}
	return unforward(c, args.ContainerID)
}

// unforward removes what carries the container's id, in both families, whatever
// is configured now.
func unforward(c *portmapConf, container string) error {
	ctx, cancel := context.WithTimeout(context.Background(), nftTimeout)
	defer cancel()
	for _, family := range []knftables.Family{knftables.IPv4Family, knftables.IPv6Family} {
		nft, err := table(c, family)
		if err != nil {
			return err
		}
		mine, err := existing(ctx, nft, carries(container))
		if err != nil {
			return err
		}
		if len(mine) == 0 {
			continue
		}
		tx := nft.NewTransaction()
		for _, e := range mine {
			tx.Delete(e)
		}
		if err := nft.Run(ctx, tx); err != nil {
			return fmt.Errorf("remove host ports: %w", err)
		}
	}
	return nil
}

func carries(container string) func(*knftables.Element) bool {
	return func(e *knftables.Element) bool { return e.Comment != nil && *e.Comment == container }
}

func checkPortmap(args *skel.CmdArgs) error {
	c, result, err := loadPortmap(args.StdinData)
	if err != nil {
		return err
	}
	if result == nil {
		return errors.New("CHECK needs prevResult")
	}
	if len(c.RuntimeConfig.PortMaps) == 0 {
		return nil
	}
	return checkForwarded(c, args, result)
}

// checkForwarded wants all entries of the pod in our table.
func checkForwarded(c *portmapConf, args *skel.CmdArgs, result *current.Result) error {
	ctx, cancel := context.WithTimeout(context.Background(), nftTimeout)
	defer cancel()
	for _, pod := range podAddresses(result, args.IfName) {
		nft, err := table(c, familyOf(pod))
		if err != nil {
			return err
		}
		have, err := existing(ctx, nft, carries(args.ContainerID))
		if err != nil {
			return err
		}
		if want := elements(c, args.ContainerID, pod); len(have) < len(want) {
			return fmt.Errorf("host ports of container %s: %d of %d entries are missing in nftables table %s",
				args.ContainerID, len(want)-len(have), len(want), c.Table)
		}
	}
	return nil
}

// forgetConnections drops what conntrack remembers of the UDP ports: a client that
// keeps sending would go on being sent to where the port led before.
func forgetConnections(c *portmapConf, pod netip.Addr) {
	family := netlink.InetFamily(netlink.FAMILY_V4)
	if !pod.Is4() {
		family = netlink.FAMILY_V6
	}
	for _, m := range c.RuntimeConfig.PortMaps {
		if m.Protocol != "udp" {
			continue
		}
		filter := &netlink.ConntrackFilter{}
		if filter.AddProtocol(17) == nil && filter.AddPort(netlink.ConntrackOrigDstPort, uint16(m.HostPort)) == nil {
			_, _ = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter) // informative only
		}
	}
}

// routeLocalnet lets packets of 127.0.0.0/8 leave towards the pod, which is what a
// client on the host at localhost sends; the link towards the pod only.
func routeLocalnet(pod netip.Addr) error {
	routes, err := netlink.RouteGet(pod.AsSlice())
	if err != nil || len(routes) == 0 {
		return nil //nolint:nilerr // host ports work without, except from localhost
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return fmt.Errorf("find the link towards %s: %w", pod, err)
	}
	setSysctl("ipv4/conf/"+link.Attrs().Name+"/route_localnet", "1")
	return nil
}
