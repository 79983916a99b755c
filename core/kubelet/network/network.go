// SPDX-License-Identifier: Apache-2.0

// Package network gives a node's pods their network: the CNI configuration of a
// bridge with addresses from the node's pod ranges, and the one nftables rule that
// lets pods reach the world under the node's address.
//
// It is for nodes that use the embedded CNI plugins. A cluster with a network of
// its own (Calico, Cilium) points containerd at that network's configuration, and
// this package is not called.
package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"sigs.k8s.io/knftables"

	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

const (
	cniVersion = "1.0.0"
	confName   = "10-wasmplane.conflist"
	// tablePurpose names our table among those of the cluster.
	tablePurpose  = "node"
	hostportTable = "hostports"
	// leastMTU6 is what a link must carry for IPv6 (RFC 8200, section 5).
	leastMTU6 = 1280
)

// Config is the network of one node.
type Config struct {
	// Names are the host-wide names of the cluster.
	Names linuxhost.Names
	// PodCIDRs are the node's own ranges, from its spec: one of each family at most.
	PodCIDRs []netip.Prefix
	// ClusterCIDRs are the ranges of all pods, PodCIDRs when empty. What goes there
	// keeps the pod's address.
	ClusterCIDRs []netip.Prefix
	// ConfDir is where containerd looks for the CNI configuration; StateDir is where
	// host-local records addresses.
	ConfDir, StateDir string
	// PluginDir has the CNI plugins that Repair calls.
	PluginDir string
	// MTU of the pods' links; the kernel's default (1500) when zero.
	MTU int
	// ReservedTCPPorts and ReservedUDPPorts are ports of the node that no pod gets as its hostPort.
	ReservedTCPPorts, ReservedUDPPorts []int32
}

func (c Config) validate() (Config, error) {
	if c.Names.ID == "" || c.ConfDir == "" || c.StateDir == "" {
		return c, errors.New("the node's network needs Names, ConfDir and StateDir")
	}
	if len(c.PodCIDRs) == 0 {
		return c, errors.New("the node has no pod range yet (spec.podCIDR)")
	}
	seen := map[bool]bool{}
	for _, p := range c.PodCIDRs {
		if p != p.Masked() || seen[p.Addr().Is4()] {
			return c, fmt.Errorf("pod ranges %v: give one range of each family, in canonical form such as %s", c.PodCIDRs, p.Masked())
		}
		if p.Addr().BitLen()-p.Bits() < 2 {
			return c, fmt.Errorf("pod range %s has no room for pods", p)
		}
		seen[p.Addr().Is4()] = true
	}
	if len(c.ClusterCIDRs) == 0 {
		c.ClusterCIDRs = c.PodCIDRs
	}
	return c, nil
}

// Setup writes the CNI configuration, unless it is there already, lets the kernel
// forward packets and filter bridged ones, and puts the masquerade rule in place.
// It may be called again, and must be when a range changes.
func Setup(ctx context.Context, cfg Config) error {
	cfg, err := cfg.validate()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return fmt.Errorf("set the node's network up: %w", err)
	}
	if err := cfg.requireIPv6(); err != nil {
		return err
	}
	hostcheck.LoadBridgeFilter(ctx)
	if err := setSysctls(sysctlRecord, cfg.Names.ID, cfg.wantedSysctls()); err != nil {
		return err
	}
	if err := masquerade(ctx, cfg); err != nil {
		return err
	}
	if err := guard(ctx, cfg); err != nil {
		return err
	}
	if err := setSysctls(sysctlRecord, cfg.Names.ID, wantedOfConnections()); err != nil {
		return err
	}
	if err := ensureBridge(cfg); err != nil {
		return err
	}
	// Last, because containerd calls the network ready when it sees the file.
	return cfg.writeConflist()
}

// requireIPv6 refuses a node with a range of IPv6 on a machine that has none.
func (c Config) requireIPv6() error {
	if !slices.ContainsFunc(c.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		return nil
	}
	if p := linuxhost.CheckIPv6(); p != nil {
		return errors.New(p.String())
	}
	if c.MTU > 0 && c.MTU < leastMTU6 {
		return fmt.Errorf("pods' links carry %d bytes, and IPv6 needs %d: raise the MTU of the machine's link, or node.podNetwork.mtu", c.MTU, leastMTU6)
	}
	return nil
}

type object = map[string]any

// conflist is the configuration: bridge with host-local, which calls portmap for a pod that has host ports.
// A plugin of its own in the list would be executed for every pod.
func (c Config) conflist() ([]byte, error) {
	ranges, routes := []any{}, []any{}
	for _, p := range c.PodCIDRs {
		ranges = append(ranges, []any{object{"subnet": p.String()}})
		all := "0.0.0.0/0"
		if p.Addr().Is6() {
			all = "::/0"
		}
		routes = append(routes, object{"dst": all})
	}
	bridge := object{
		"type": "bridge", "bridge": c.Names.Bridge(), "isGateway": true, "hairpinMode": true,
		// A node whose range changed has a bridge with the old address.
		"forceAddress": true,
		"ipam": object{
			"type": "host-local", "ranges": ranges, "routes": routes,
			"dataDir": filepath.Dir(c.addresses()), // a directory of the network's name is below it
		},
	}
	if c.MTU > 0 {
		bridge["mtu"] = c.MTU
	}
	bridge["capabilities"] = object{portMappings: true}
	portmap := object{"backend": "nftables", "table": c.Names.Table(hostportTable), "snat": true}
	if len(c.ReservedTCPPorts) > 0 {
		portmap["reservedTCPPorts"] = c.ReservedTCPPorts
	}
	if len(c.ReservedUDPPorts) > 0 {
		portmap["reservedUDPPorts"] = c.ReservedUDPPorts
	}
	bridge[hostPorts] = portmap
	data, err := json.MarshalIndent(object{
		"cniVersion": cniVersion, "name": c.Names.Network(), "plugins": []any{bridge},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the CNI configuration: %w", err)
	}
	return append(data, '\n'), nil
}

// writeConflist writes the configuration after libcni, which will read it, has
// accepted it. An unchanged file is left alone: a write makes containerd load anew.
func (c Config) writeConflist() error {
	data, err := c.conflist()
	if err != nil {
		return err
	}
	if _, err := libcni.NetworkConfFromBytes(data); err != nil {
		return fmt.Errorf("check the CNI configuration: %w", err)
	}
	path := filepath.Join(c.ConfDir, confName)
	if old, err := os.ReadFile(path); err == nil && string(old) == string(data) {
		return nil
	}
	if err := os.MkdirAll(c.ConfDir, 0o755); err != nil {
		return fmt.Errorf("write the CNI configuration: %w", err)
	}
	if err := atomicfile.Write(path, data, 0o644); err != nil {
		return fmt.Errorf("write the CNI configuration: %w", err)
	}
	return nil
}

// masquerade replaces our table by one with the rule for each family: what a pod
// of this node sends out of the cluster leaves with the node's address.
func masquerade(ctx context.Context, c Config) error {
	nft, err := knftables.New(knftables.InetFamily, c.Names.Table(tablePurpose))
	if err != nil {
		return fmt.Errorf("use nftables (apt-get install nftables): %w", err)
	}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("addresses of pods on their way out")})
	tx.Add(&knftables.Chain{
		Name: "postrouting", Type: knftables.PtrTo(knftables.NATType),
		Hook: knftables.PtrTo(knftables.PostroutingHook), Priority: knftables.PtrTo(knftables.SNATPriority),
	})
	tx.Flush(&knftables.Chain{Name: "postrouting"})
	for _, p := range c.PodCIDRs {
		ipX, stay := "ip", []string{"224.0.0.0/4"}
		if p.Addr().Is6() {
			ipX, stay = "ip6", []string{"ff00::/8"}
		}
		for _, cluster := range c.ClusterCIDRs {
			if cluster.Addr().Is4() == p.Addr().Is4() {
				stay = append(stay, cluster.String())
			}
		}
		tx.Add(&knftables.Rule{Chain: "postrouting", Rule: knftables.Concat(
			ipX, "saddr", p.String(), ipX, "daddr != {", strings.Join(stay, ", "), "} masquerade")})
	}
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write nftables table %s: %w", c.Names.Table(tablePurpose), err)
	}
	return nil
}
