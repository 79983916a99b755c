// SPDX-License-Identifier: Apache-2.0

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

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"sigs.k8s.io/knftables"
)

// portMappings is the capability by which containerd hands host ports to the portmap plugin.
const portMappings = "portMappings"

// hostPorts is where the configuration of the bridge plugin has that of the portmap plugin.
const hostPorts = "hostPorts"

// Repair writes anew what others took out of nftables: the rules of the node's network, and the
// host ports of its pods. A firewall that is started again does that (`nft flush ruleset`). It
// answers the tables that were missing or empty. What is there is left alone, but for the
// missing tables.
func Repair(ctx context.Context, cfg Config) (missing []string, err error) {
	cfg, err = cfg.validate()
	if err != nil {
		return nil, err
	}
	var errs []error
	look := func(family knftables.Family, purpose, chain string, repair func() error) {
		table := cfg.Names.Table(purpose)
		there, err := hasRules(ctx, family, table, chain)
		if err == nil && !there {
			missing = append(missing, string(family)+" "+table)
			err = repair()
		}
		errs = append(errs, err)
	}
	look(knftables.InetFamily, tablePurpose, "postrouting", func() error { return masquerade(ctx, cfg) })
	if slices.ContainsFunc(cfg.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		look(knftables.IPv6Family, guardPurpose, "prerouting", func() error { return guard(ctx, cfg) })
	}
	attached, err := cfg.withHostPorts()
	if err != nil || len(attached) == 0 {
		return missing, errors.Join(append(errs, err)...)
	}
	for _, p := range cfg.PodCIDRs {
		family := knftables.IPv4Family
		if p.Addr().Is6() {
			family = knftables.IPv6Family
		}
		look(family, hostportTable, "forward-hostports", func() error { return cfg.forwardAgain(ctx, attached) })
	}
	return missing, errors.Join(errs...)
}

// hasRules says whether a chain is there and has rules.
func hasRules(ctx context.Context, family knftables.Family, table, chain string) (bool, error) {
	nft, err := knftables.New(family, table)
	if err != nil {
		return false, fmt.Errorf("use nftables: %w", err)
	}
	rules, err := nft.ListRules(ctx, chain)
	if knftables.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at nftables table %s %s: %w", family, table, err)
	}
	return len(rules) > 0, nil
}

// withHostPorts are the pods of this network that have host ports, as libcni remembers them.
func (c Config) withHostPorts() (out []*libcni.NetworkAttachment, err error) {
	all, err := libcni.NewCNIConfig(nil, nil).GetCachedAttachments("")
	if err != nil {
		return nil, fmt.Errorf("list results of CNI: %w", err)
	}
	for _, a := range all {
		if a.Network != c.Names.Network() || a.CapabilityArgs[portMappings] == nil {
			continue
		}
		if _, err := os.Stat(a.NetNS); err == nil { // else its pod is gone
			out = append(out, a)
		}
	}
	return out, nil
}

// forwardAgain asks the portmap plugin for what it was asked for when the pods were made.
func (c Config) forwardAgain(ctx context.Context, attached []*libcni.NetworkAttachment) error {
	var errs []error
	for _, a := range attached {
		if err := c.forward(ctx, a); err != nil {
			errs = append(errs, fmt.Errorf("forward host ports of sandbox %s again: %w", a.ContainerID, err))
		}
	}
	return errors.Join(errs...)
}

func (c Config) forward(ctx context.Context, a *libcni.NetworkAttachment) error {
	list, err := libcni.NetworkConfFromBytes(a.Config)
	if err != nil {
		return err
	}
	result, err := libcni.NewCNIConfig(nil, nil).GetNetworkListCachedResult(list, &libcni.RuntimeConf{
		ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName, Args: a.CniArgs, CapabilityArgs: a.CapabilityArgs,
	})
	if err != nil {
		return err
	}
	for _, plugin := range list.Plugins {
		portmap, err := portmapOf(plugin)
		if err != nil {
			return err
		}
		if portmap == nil {
			continue
		}
		conf, err := libcni.InjectConf(portmap, object{
			"name": list.Name, "cniVersion": list.CNIVersion, "prevResult": result,
			"runtimeConfig": object{portMappings: a.CapabilityArgs[portMappings]},
		})
		if err != nil {
			return err
		}
		args := &invoke.Args{
			Command: "ADD", ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName, PluginArgs: a.CniArgs, Path: c.PluginDir,
		}
		if _, err := invoke.ExecPluginWithResult(ctx, filepath.Join(c.PluginDir, portmapType), conf.Bytes, args, nil); err != nil {
			return err
		}
	}
	return nil
}

const portmapType = "portmap"

// portmapOf is the configuration of the portmap plugin in that of a plugin: of the bridge, or, of a pod that an
// earlier version made, the plugin itself. Nil if it has none.
func portmapOf(plugin *libcni.PluginConfig) (*libcni.PluginConfig, error) {
	if plugin.Network.Type == portmapType {
		return plugin, nil
	}
	var conf struct {
		HostPorts object `json:"hostPorts"`
	}
	if err := json.Unmarshal(plugin.Bytes, &conf); err != nil {
		return nil, fmt.Errorf("read the configuration of plugin %s: %w", plugin.Network.Type, err)
	}
	if conf.HostPorts == nil {
		return nil, nil //nolint:nilnil // as said
	}
	conf.HostPorts["type"] = portmapType
	data, err := json.Marshal(conf.HostPorts)
	if err != nil {
		return nil, fmt.Errorf("write the configuration of the portmap plugin: %w", err)
	}
	return libcni.NetworkPluginConfFromBytes(data)
}
