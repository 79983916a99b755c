// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// addHostLocal is the plugin; allocate is its work, which bridge calls without
// executing anything.
func addHostLocal(args *skel.CmdArgs) error {
	result, confVersion, err := allocate(args)
	if err != nil {
		return err
	}
	return types.PrintResult(result, confVersion)
}

func delHostLocal(args *skel.CmdArgs) error { return release(args) }

func checkHostLocal(args *skel.CmdArgs) error {
	return withStore(args, func(_ *allocator.IPAMConfig, store *disk.Store) error {
		if !store.FindByID(args.ContainerID, args.IfName) {
			return fmt.Errorf("no address is recorded for container %s", args.ContainerID)
		}
		return nil
	})
}

// withStore opens the records of addresses, which locks them.
func withStore(args *skel.CmdArgs, do func(*allocator.IPAMConfig, *disk.Store) error) error {
	conf, _, err := allocator.LoadIPAMConfig(args.StdinData, args.Args)
	if err != nil {
		return fmt.Errorf("read the address configuration: %w", err)
	}
	store, err := disk.New(conf.Name, conf.DataDir)
	if err != nil {
		return fmt.Errorf("open the records of addresses in %s: %w", conf.DataDir, err)
	}
	defer store.Close()
	return do(conf, store)
}

// allocate takes one address of each range set. All or none: what was taken is
// given back when a later one fails.
func allocate(args *skel.CmdArgs) (*current.Result, string, error) {
	_, confVersion, err := allocator.LoadIPAMConfig(args.StdinData, args.Args)
	if err != nil {
		return nil, "", fmt.Errorf("read the address configuration: %w", err)
	}
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion}
	err = withStore(args, func(conf *allocator.IPAMConfig, store *disk.Store) (err error) {
		if conf.ResolvConf != "" {
			return errors.New("ipam.resolvConf is not supported: the kubelet writes a pod's resolv.conf")
		}
		var taken []*allocator.IPAllocator
		defer func() {
			if err == nil {
				return
			}
			for _, a := range taken {
				_ = a.Release(args.ContainerID, args.IfName)
			}
		}()
		wanted := map[string]net.IP{}
		for _, ip := range conf.IPArgs {
			wanted[ip.String()] = ip
		}
		for i := range conf.Ranges {
			set := &conf.Ranges[i]
			a := allocator.NewIPAllocator(set, store, i)
			ip, err := a.Get(args.ContainerID, args.IfName, takeWanted(wanted, set))
			if err != nil {
				return fmt.Errorf("allocate an address in %s: %w", set.String(), err)
			}
			taken = append(taken, a)
			result.IPs = append(result.IPs, ip)
		}
		for ip := range wanted {
			return fmt.Errorf("the requested address %s is in none of the ranges", ip)
		}
		result.Routes = conf.Routes
		return nil
	})
	return result, confVersion, err
}

// takeWanted removes and answers the requested address that lies in the set.
func takeWanted(wanted map[string]net.IP, set *allocator.RangeSet) net.IP {
	for key, ip := range wanted {
		if set.Contains(ip) {
			delete(wanted, key)
			return ip
		}
	}
	return nil
}

// release gives back all addresses of the container.
func release(args *skel.CmdArgs) error {
	return withStore(args, func(conf *allocator.IPAMConfig, store *disk.Store) error {
		var errs []error
		for i := range conf.Ranges {
			a := allocator.NewIPAllocator(&conf.Ranges[i], store, i)
			errs = append(errs, a.Release(args.ContainerID, args.IfName))
		}
		return errors.Join(errs...)
	})
}
