// SPDX-License-Identifier: Apache-2.0

// Package netdump gets whole lists of links, addresses, routes and neighbours from the kernel.
//
// The kernel hands out a list in pieces. Where anything of its kind changes meanwhile, in this network namespace, it
// marks the list: an entry may lack, or be there twice. On a machine where pods come and go that happens
// every so often, and says nothing about what was asked for: the question is asked again.
package netdump

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// attempts are far more than a machine needs on which links come and go all the time: one takes some 100 microseconds.
const attempts = 100

// Whole is the list that list returns, once nothing changed while it was made. Other errors are returned as they are.
func Whole[T any](list func() ([]T, error)) ([]T, error) {
	for range attempts {
		all, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return nil, fmt.Errorf("links or addresses of this machine changed during each of %d attempts to list them: %w", attempts, netlink.ErrDumpInterrupted)
}

// Links are all links of the network namespace.
func Links() ([]netlink.Link, error) { return Whole(netlink.LinkList) }

// Addresses are those of a link, or, of nil, all; family is one of netlink.FAMILY_*.
func Addresses(of netlink.Link, family int) ([]netlink.Addr, error) {
	return Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(of, family) })
}

// Neighbors are the entries of a link's neighbour table.
func Neighbors(link, family int) ([]netlink.Neigh, error) {
	return Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(link, family) })
}

// Routes are the routes of a family that are like another one in what the mask (netlink.RT_FILTER_*) says.
func Routes(family int, like *netlink.Route, mask uint64) ([]netlink.Route, error) {
	return Whole(func() ([]netlink.Route, error) { return netlink.RouteListFiltered(family, like, mask) })
}
