// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/ip"
	"github.com/containernetworking/plugins/pkg/ipam"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostLocal is the IPAM plugin that lives in this binary: it is called, not executed.
const hostLocal = "host-local"

// bridgeConf is the configuration of the bridge plugin.
type bridgeConf struct {
	types.NetConf
	Bridge           string `json:"bridge"`
	IsGateway        bool   `json:"isGateway"`
	IsDefaultGateway bool   `json:"isDefaultGateway"`
	ForceAddress     bool   `json:"forceAddress"`
	MTU              int    `json:"mtu"`
	HairpinMode      bool   `json:"hairpinMode"`
	PortIsolation    bool   `json:"portIsolation"`
	RuntimeConfig    struct {
		MAC      string        `json:"mac"`
		PortMaps []portMapping `json:"portMappings"`
	} `json:"runtimeConfig"`
	// HostPorts is a configuration of the portmap plugin, which is called like the IPAM plugin of this binary,
	// and only for a pod that has host ports. As a plugin of its own in the list it would be executed for every pod.
	HostPorts *portmapConf `json:"hostPorts"`

	// What the reference plugin has and this one does not.
	IPMasq      bool            `json:"ipMasq"`
	PromiscMode bool            `json:"promiscMode"`
	VLAN        int             `json:"vlan"`
	VLANTrunk   json.RawMessage `json:"vlanTrunk"`
	MACSpoofChk bool            `json:"macspoofchk"`
}

// loadBridge reads the configuration and refuses what would be ignored.
func loadBridge(data []byte) (*bridgeConf, error) {
	c := &bridgeConf{Bridge: "cni0"}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, fmt.Errorf("read the network configuration: %w", err)
	}
	if c.IsDefaultGateway {
		c.IsGateway = true
	}
	for name, set := range map[string]bool{
		"ipMasq": c.IPMasq, "promiscMode": c.PromiscMode, "vlan": c.VLAN != 0,
		"vlanTrunk": len(c.VLANTrunk) > 0, "macspoofchk": c.MACSpoofChk,
	} {
		if set {
			return nil, fmt.Errorf("the bridge plugin of wasmplane does not support %q; use the reference plugin for it", name)
		}
	}
	if c.IPAM.Type == "" {
		return nil, errors.New("the bridge plugin of wasmplane needs ipam")
	}
	if c.HostPorts == nil {
		if len(c.RuntimeConfig.PortMaps) > 0 {
			return nil, errors.New("the bridge plugin of wasmplane needs hostPorts for a pod with host ports; " +
				"add it, or put the portmap plugin behind this one and take the capability portMappings away from it")
		}
		return c, nil
	}
	c.HostPorts.RuntimeConfig.PortMaps = c.RuntimeConfig.PortMaps
	return c, c.HostPorts.complete()
}

// hasHostPorts says whether the portmap plugin has anything to do.
func (c *bridgeConf) hasHostPorts() bool { return len(c.RuntimeConfig.PortMaps) > 0 }

func addBridge(args *skel.CmdArgs) error {
	c, err := loadBridge(args.StdinData)
	if err != nil {
		return err
	}
	result, err := attach(args, c)
	if err != nil {
		return err
	}
	return types.PrintResult(result, c.CNIVersion)
}

// attach gives the pod an address, a link to the bridge, and its host ports. What it took it gives
// back when it fails.
func attach(args *skel.CmdArgs, c *bridgeConf) (result *current.Result, err error) {
	if c.hasHostPorts() {
		if err := checkFree(c.HostPorts); err != nil {
			return nil, err
		}
	}
	br, err := ensureBridge(c)
	if err != nil {
		return nil, err
	}
	netns, err := ns.GetNS(args.Netns)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", args.Netns, err)
	}
	defer netns.Close()
	result, err = ipamAdd(args, c)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = ipamDel(args, c)
			_ = removeLink(args)
			_ = removeHostPorts(args, c)
		}
	}()
	gateways := completeAddresses(result, c)
	hostLink, podLink, err := connect(netns, br, args.IfName, c)
	if err != nil {
		return nil, err
	}
	err = netns.Do(func(ns.NetNS) error {
		// Duplicate address detection would keep an address tentative for a second,
		// and host-local gave it to nobody else. Announce it, for those who remember
		// its last owner. Both are absent without IPv6 or in odd kernels.
		setSysctl("ipv6/conf/"+args.IfName+"/accept_dad", "0")
		setSysctl("ipv4/conf/"+args.IfName+"/arp_notify", "1")
		// No pod is a router: addresses and routes are those that it was given, whatever another
		// one on the bridge advertises (CVE-2020-10749), or redirects it to.
		for _, conf := range []string{"accept_ra", "autoconf", "accept_redirects"} {
			setSysctl("ipv6/conf/"+args.IfName+"/"+conf, "0")
		}
		for _, link := range []string{"all", args.IfName} { // either is enough for IPv4
			setSysctl("ipv4/conf/"+link+"/accept_redirects", "0")
		}
		setSysctl("ipv6/conf/"+args.IfName+"/ndisc_notify", "1")
		result.Interfaces = []*current.Interface{{}, {}, podLink}
		return ipam.ConfigureIface(args.IfName, result)
	})
	if err != nil {
		return nil, fmt.Errorf("configure %s: %w", args.IfName, err)
	}
	for i := range gateways {
		if err := ensureAddress(br, &gateways[i], c.ForceAddress); err != nil {
			return nil, err
		}
	}
	result.Interfaces = []*current.Interface{
		{Name: br.Name, Mac: br.HardwareAddr.String()}, hostLink, podLink,
	}
	if c.DNS.Nameservers != nil || c.DNS.Search != nil || c.DNS.Options != nil || c.DNS.Domain != "" {
		result.DNS = c.DNS
	}
	if c.hasHostPorts() {
		if err := forwardAll(c.HostPorts, args, result); err != nil {
			return nil, err
		}
	}
	return result, nil
}

func removeHostPorts(args *skel.CmdArgs, c *bridgeConf) error {
	if !c.hasHostPorts() {
		return nil
	}
	return unforward(c.HostPorts, args.ContainerID)
}

// ensureBridge makes the bridge, or finds it.
func ensureBridge(c *bridgeConf) (*netlink.Bridge, error) {
	br, err := bridgeByName(c.Bridge)
	if err == nil && br.Flags&net.FlagUp != 0 {
		return br, nil // as for every pod but the first
	}
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = c.Bridge, c.MTU
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, syscall.EEXIST) {
		return nil, fmt.Errorf("make bridge %s: %w", c.Bridge, err)
	}
	if br, err = bridgeByName(c.Bridge); err != nil {
		return nil, err
	}
	setSysctl("ipv6/conf/"+c.Bridge+"/accept_ra", "0") // its routes are ours
	// A fixed address of its own: a bridge otherwise takes the lowest of its ports'
	// and changes as pods come and go.
	if err := netlink.LinkSetHardwareAddr(br, br.HardwareAddr); err != nil {
		return nil, fmt.Errorf("fix the hardware address of bridge %s: %w", c.Bridge, err)
	}
	if err := netlink.LinkSetUp(br); err != nil {
		return nil, fmt.Errorf("set bridge %s up: %w", c.Bridge, err)
	}
	return br, nil
}

func bridgeByName(name string) (*netlink.Bridge, error) {
	l, err := netlinksafe.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("look at bridge %s: %w", name, err)
	}
	br, ok := l.(*netlink.Bridge)
	if !ok {
		return nil, fmt.Errorf("%s exists and is a %s, not a bridge; remove or rename it", name, l.Type())
	}
	return br, nil
}

// connect makes the veth pair and hangs its host end on the bridge.
func connect(netns ns.NetNS, br *netlink.Bridge, ifName string, c *bridgeConf) (hostLink, podLink *current.Interface, err error) {
	var hostVeth, podVeth net.Interface
	err = netns.Do(func(hostNS ns.NetNS) error {
		hostVeth, podVeth, err = ip.SetupVeth(ifName, c.MTU, c.RuntimeConfig.MAC, hostNS)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("make the pod's link: %w", err)
	}
	link, err := netlinksafe.LinkByName(hostVeth.Name)
	if err != nil {
		return nil, nil, fmt.Errorf("look at link %s: %w", hostVeth.Name, err)
	}
	if err := netlink.LinkSetMaster(link, br); err != nil {
		return nil, nil, fmt.Errorf("connect %s to bridge %s: %w", hostVeth.Name, br.Name, err)
	}
	if err := netlink.LinkSetHairpin(link, c.HairpinMode); err != nil {
		return nil, nil, fmt.Errorf("set hairpin mode of %s: %w", hostVeth.Name, err)
	}
	if c.PortIsolation {
		if err := netlink.LinkSetIsolated(link, true); err != nil {
			return nil, nil, fmt.Errorf("isolate %s: %w", hostVeth.Name, err)
		}
	}
	if err := fixHardwareAddress(link, podVeth.HardwareAddr); err != nil {
		return nil, nil, err
	}
	return &current.Interface{Name: hostVeth.Name, Mac: link.Attrs().HardwareAddr.String()},
		&current.Interface{Name: podVeth.Name, Mac: podVeth.HardwareAddr.String(), Sandbox: netns.Path()}, nil
}

// fixHardwareAddress tells the bridge which hardware address is behind a pod's link, so that it need not learn it
// from frames: a pod that sends with raw sockets writes another's into them, and would be sent what is
// meant for that one, or millions, which the kernel would keep.
func fixHardwareAddress(link netlink.Link, pod net.HardwareAddr) error {
	name := link.Attrs().Name
	if err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_BRIDGE, State: netlink.NUD_NOARP, Flags: netlink.NTF_MASTER, HardwareAddr: pod,
	}); err != nil {
		return fmt.Errorf("tell the bridge the hardware address behind %s: %w", name, err)
	}
	if err := netlink.LinkSetLearning(link, false); err != nil {
		return fmt.Errorf("have the bridge learn no hardware addresses from %s: %w", name, err)
	}
	return nil
}

// completeAddresses ties the addresses to the pod's interface, adds default routes
// where asked, and answers the bridge's own addresses.
func completeAddresses(result *current.Result, c *bridgeConf) (gateways []net.IPNet) {
	for _, a := range result.IPs {
		a.Interface = current.Int(2) // after the bridge and the host's end
		if !c.IsGateway {
			continue
		}
		if a.Gateway == nil {
			a.Gateway = ip.NextIP(a.Address.IP.Mask(a.Address.Mask))
		}
		gateways = append(gateways, net.IPNet{IP: a.Gateway, Mask: a.Address.Mask})
		if c.IsDefaultGateway {
			addDefaultRoute(result, a.Gateway)
		}
	}
	return gateways
}

func addDefaultRoute(result *current.Result, gateway net.IP) {
	all := net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	if gateway.To4() != nil {
		all = net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	}
	for _, r := range result.Routes {
		if r.GW != nil && r.Dst.String() == all.String() {
			return
		}
	}
	result.Routes = append(result.Routes, &types.Route{Dst: all, GW: gateway})
}

// ensureAddress gives the bridge an address, and forwards between its pods and the
// world in that family.
func ensureAddress(br *netlink.Bridge, want *net.IPNet, force bool) error {
	family := netlink.FAMILY_V6
	if want.IP.To4() != nil {
		family = netlink.FAMILY_V4
	}
	addrs, err := netlinksafe.AddrList(br, family)
	if err != nil {
		return fmt.Errorf("list the addresses of bridge %s: %w", br.Name, err)
	}
	for _, a := range addrs {
		switch {
		case a.IPNet.String() == want.String():
			return nil
		case family == netlink.FAMILY_V6 && !a.Contains(want.IP) && !want.Contains(a.IP):
			continue // such as the link-local one
		case !force:
			return fmt.Errorf("bridge %s has the address %s already, which is not %s", br.Name, a.IPNet, want)
		}
		if err := netlink.AddrDel(br, &a); err != nil {
			return fmt.Errorf("remove address %s of bridge %s: %w", a.IPNet, br.Name, err)
		}
	}
	if err := netlink.AddrAdd(br, &netlink.Addr{IPNet: want}); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("give bridge %s the address %s: %w", br.Name, want, err)
	}
	if family == netlink.FAMILY_V4 {
		err = ip.EnableIP4Forward()
	} else {
		err = ip.EnableIP6Forward()
	}
	if err != nil {
		return fmt.Errorf("forward packets of bridge %s: %w", br.Name, err)
	}
	return nil
}

func ipamAdd(args *skel.CmdArgs, c *bridgeConf) (*current.Result, error) {
	if c.IPAM.Type == hostLocal {
		result, _, err := allocate(args)
		return result, err
	}
	r, err := ipam.ExecAdd(c.IPAM.Type, args.StdinData)
	if err != nil {
		return nil, err
	}
	result, err := current.NewResultFromResult(r)
	if err != nil {
		return nil, fmt.Errorf("read the answer of IPAM plugin %s: %w", c.IPAM.Type, err)
	}
	if len(result.IPs) == 0 {
		return nil, fmt.Errorf("IPAM plugin %s gave no address", c.IPAM.Type)
	}
	return result, nil
}

func ipamDel(args *skel.CmdArgs, c *bridgeConf) error {
	if c.IPAM.Type == hostLocal {
		return release(args)
	}
	return ipam.ExecDel(c.IPAM.Type, args.StdinData)
}

// delBridge removes host ports and the link first: an address is free when nobody has it, and nothing leads to it.
func delBridge(args *skel.CmdArgs) error {
	c, err := loadBridge(args.StdinData)
	if err != nil {
		return err
	}
	if err := removeHostPorts(args, c); err != nil {
		return err
	}
	if err := removeLink(args); err != nil {
		return err
	}
	return ipamDel(args, c)
}

// removeLink removes the pod's end, which takes the host's along. A link or a
// namespace that is gone is no error.
func removeLink(args *skel.CmdArgs) error {
	if args.Netns == "" {
		return nil
	}
	err := ns.WithNetNSPath(args.Netns, func(ns.NetNS) error {
		link, err := netlinksafe.LinkByName(args.IfName)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	})
	var gone ns.NSPathNotExistErr
	if err != nil && !errors.As(err, &gone) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", args.IfName, err)
	}
	return nil
}

// checkBridge compares what ADD answered with what is there.
func checkBridge(args *skel.CmdArgs) error {
	c, err := loadBridge(args.StdinData)
	if err != nil {
		return err
	}
	if c.IPAM.Type == hostLocal {
		err = checkHostLocal(args)
	} else {
		err = ipam.ExecCheck(c.IPAM.Type, args.StdinData)
	}
	if err != nil {
		return err
	}
	if c.RawPrevResult == nil {
		return errors.New("CHECK needs prevResult")
	}
	if err := version.ParsePrevResult(&c.NetConf); err != nil {
		return fmt.Errorf("read prevResult: %w", err)
	}
	result, err := current.NewResultFromResult(c.PrevResult)
	if err != nil {
		return fmt.Errorf("read prevResult: %w", err)
	}
	if err := checkHostSide(c, result); err != nil {
		return err
	}
	if c.hasHostPorts() {
		if err := checkForwarded(c.HostPorts, args, result); err != nil {
			return err
		}
	}
	return ns.WithNetNSPath(args.Netns, func(ns.NetNS) error {
		if _, err := netlinksafe.LinkByName(args.IfName); err != nil {
			return fmt.Errorf("look at %s: %w", args.IfName, err)
		}
		if err := ip.ValidateExpectedInterfaceIPs(args.IfName, result.IPs); err != nil {
			return err
		}
		return ip.ValidateExpectedRoute(result.Routes)
	})
}

// checkHostSide wants the host's end of the pair on the bridge.
func checkHostSide(c *bridgeConf, result *current.Result) error {
	br, err := bridgeByName(c.Bridge)
	if err != nil {
		return err
	}
	for _, i := range result.Interfaces {
		if i.Sandbox != "" || i.Name == c.Bridge {
			continue
		}
		link, err := netlinksafe.LinkByName(i.Name)
		if err != nil {
			return fmt.Errorf("look at %s: %w", i.Name, err)
		}
		if link.Attrs().MasterIndex != br.Index {
			return fmt.Errorf("%s is not connected to bridge %s", i.Name, c.Bridge)
		}
	}
	return nil
}

// statusBridge tells whether ADD could work now.
func statusBridge(args *skel.CmdArgs) error {
	c, err := loadBridge(args.StdinData)
	if err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	if _, err := bridgeByName(c.Bridge); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
		return types.NewError(50, err.Error(), "") // "plugin not available", by the specification
	}
	return nil
}

// setSysctl sets a value of net/, where there is one.
func setSysctl(name, value string) {
	_ = os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644)
}
