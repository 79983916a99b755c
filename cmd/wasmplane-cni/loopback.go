// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

const loopback = "lo"

// addLoopback sets lo up; the kernel gives it its addresses.
func addLoopback(args *skel.CmdArgs) error {
	var conf types.NetConf
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return fmt.Errorf("read the network configuration: %w", err)
	}
	result := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{{Name: loopback, Mac: "00:00:00:00:00:00", Sandbox: args.Netns}},
	}
	err := ns.WithNetNSPath(args.Netns, func(ns.NetNS) error {
		link, err := netlinksafe.LinkByName(loopback)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		addrs, err := netlinksafe.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if !a.IP.IsLoopback() {
				return fmt.Errorf("lo has the address %s, which is not a loopback address", a.IP)
			}
			result.IPs = append(result.IPs, &current.IPConfig{Address: *a.IPNet, Interface: current.Int(0)})
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("set lo up in %s: %w", args.Netns, err)
	}
	return types.PrintResult(result, conf.CNIVersion)
}

func checkLoopback(args *skel.CmdArgs) error {
	return ns.WithNetNSPath(args.Netns, func(ns.NetNS) error {
		link, err := netlinksafe.LinkByName(loopback)
		if err != nil {
			return fmt.Errorf("look at lo: %w", err)
		}
		if link.Attrs().Flags&1 == 0 { // IFF_UP
			return errors.New("lo is down")
		}
		return nil
	})
}

// delLoopback sets lo down; a namespace that is gone took it along.
func delLoopback(args *skel.CmdArgs) error {
	if args.Netns == "" {
		return nil
	}
	err := ns.WithNetNSPath(args.Netns, func(ns.NetNS) error {
		link, err := netlinksafe.LinkByName(loopback)
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(link)
	})
	var gone ns.NSPathNotExistErr
	if err != nil && !errors.As(err, &gone) {
		return fmt.Errorf("set lo down in %s: %w", args.Netns, err)
	}
	return nil
}
