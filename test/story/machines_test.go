// SPDX-License-Identifier: Apache-2.0

package story

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// machines MACHINE... makes network namespaces that stand for machines beside this one, on
// one link: IN_a is what runs a program in machine a, DATA_a its data directory, NAME_a what
// it may call what it takes on the kernel that all share; ADDRESS is this machine's address
// on the link, ADDRESS6 that of IPv6, PORT the one that is free for its API. All is taken away
// at the end, however that comes.
//
// machines -ipv6 MACHINE... gives the link no IPv4.
//
// machines -disks MACHINE... gives each a disk of its own for its data directory, in memory, and a default route.
//
// machines -apart MACHINE... gives each a link of its own (MTU 1400) to a router, and this machine too.
func (s *stage) machines(ts *testscript.TestScript, neg bool, names []string) {
	apart, only6 := len(names) > 0 && names[0] == "-apart", len(names) > 0 && names[0] == "-ipv6"
	disks := len(names) > 0 && names[0] == "-disks"
	if apart || only6 || disks {
		names = names[1:]
	}
	if neg || len(names) == 0 || len(names) > 9 {
		ts.Fatalf("usage: machines [-apart | -ipv6 | -disks] MACHINE...")
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(s.Name))
	// Of the networks for measuring (RFC 2544) one that no other script has.
	network := fmt.Sprintf("198.%d.%d", 18+h.Sum32()>>8&1, h.Sum32()&0xff)
	network6 := fmt.Sprintf("fd5a:%x:%x::", h.Sum32()>>16, h.Sum32()&0xffff)
	link := fmt.Sprintf("st%x", h.Sum32())
	ts.Defer(func() { s.dismantle(ts, link, names, apart) })
	ip := func(args ...string) { ts.Check(run("ip", args...)) }
	if disks {
		for _, name := range names {
			ts.Check(os.Mkdir(s.diskOf(name), 0o755))
			ts.Check(run("mount", "-t", "tmpfs", "-o", "mode=0755,size=2g", "tmpfs", s.diskOf(name)))
		}
	}
	_, port, err := net.SplitHostPort(s.Listen)
	ts.Check(err)
	ts.Setenv("ADDRESS", network+".1")
	ts.Setenv("ADDRESS6", network6+"1")
	ts.Setenv("PORT", port)
	for i, name := range names {
		ip("netns", "add", link+name)
		ip("-n", link+name, "link", "set", "lo", "up")
		address := fmt.Sprintf("%s.%d", network, i+2)
		if apart {
			address = fmt.Sprintf("%s.%d", network, 16*(i+1)+1)
		}
		ts.Setenv("ADDRESS_"+name, address)
		ts.Setenv("ADDRESS6_"+name, fmt.Sprintf("%s%d", network6, i+2))
		ts.Setenv("IN_"+name, "--net=/run/netns/"+link+name)
		ts.Setenv("DATA_"+name, s.dataOf(name))
		ts.Setenv("NAME_"+name, s.Name+name)
	}
	if apart {
		routed(ip, link, network, names)
		return
	}
	ip("link", "add", link, "type", "bridge")
	if !only6 {
		ip("address", "add", network+".1/24", "dev", link)
	}
	ip("address", "add", network6+"1/64", "dev", link, "nodad")
	ip("link", "set", link, "up")
	for i, name := range names {
		end := fmt.Sprintf("%s%d", link, i)
		ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", link+name)
		ip("link", "set", end, "master", link, "up")
		if !only6 {
			ip("-n", link+name, "address", "add", fmt.Sprintf("%s.%d/24", network, i+2), "dev", "eth0")
		}
		ip("-n", link+name, "address", "add", fmt.Sprintf("%s%d/64", network6, i+2), "dev", "eth0", "nodad")
		ip("-n", link+name, "link", "set", "eth0", "up")
		if disks { // whole machines: they have a default route, too
			ip("-n", link+name, "route", "add", "default", "via", network+".1")
		}
	}
}

// routed connects this machine and each of the others to a router, by /28s of the network
// in which they have the first address, and the router the last.
func routed(ip func(...string), link, network string, names []string) {
	router := link + "router"
	ip("netns", "add", router)
	ip("netns", "exec", router, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
	ip("link", "add", link, "mtu", "1400", "type", "veth", "peer", "name", "m0", "mtu", "1400", "netns", router)
	ip("address", "add", network+".1/28", "dev", link)
	ip("link", "set", link, "up")
	for i, name := range append([]string{""}, names...) {
		way, end := fmt.Sprintf("%s.%d", network, 16*i+14), fmt.Sprintf("m%d", i)
		if i > 0 {
			ip("-n", router, "link", "add", end, "mtu", "1400", "type", "veth", "peer", "name", "eth0", "mtu", "1400", "netns", link+name)
			ip("-n", link+name, "address", "add", fmt.Sprintf("%s.%d/28", network, 16*i+1), "dev", "eth0")
			ip("-n", link+name, "link", "set", "eth0", "up")
			ip("-n", link+name, "route", "add", "default", "via", way)
		}
		ip("-n", router, "address", "add", way+"/28", "dev", end)
		ip("-n", router, "link", "set", end, "up")
	}
	ip("route", "add", network+".0/24", "via", network+".14")
}

// dataOf is the data directory of a machine, on the machine's disk where it has one.
func (s *stage) dataOf(machine string) string {
	if _, err := os.Stat(s.diskOf(machine)); err == nil {
		return filepath.Join(s.diskOf(machine), "data")
	}
	return filepath.Join(s.Dir, "data-"+machine)
}

func (s *stage) diskOf(machine string) string { return filepath.Join(s.Dir, "disk-"+machine) }

// dismantle takes machines away. What they run ends with them.
func (s *stage) dismantle(ts *testscript.TestScript, link string, names []string, apart bool) {
	for _, name := range names {
		if _, err := os.Stat(s.dataOf(name)); err == nil {
			// Servers that others wait for don't leave by themselves: --force.
			if err := run("nsenter", "--net=/run/netns/"+link+name, built.Binary, "down", "--purge", "--force", "--data-dir",
				s.dataOf(name)); err != nil {
				ts.Logf("machine %s: %v", name, err)
			}
		}
		if err := run("ip", "netns", "delete", link+name); err != nil {
			ts.Logf("machine %s: %v", name, err)
		}
		if _, err := os.Stat(s.diskOf(name)); err == nil {
			if err := errors.Join(run("umount", s.diskOf(name)), os.Remove(s.diskOf(name))); err != nil {
				ts.Logf("the disk of machine %s: %v", name, err)
			}
		}
	}
	if apart {
		if err := run("ip", "netns", "delete", link+"router"); err != nil {
			ts.Logf("the router: %v", err)
		}
	}
	if err := run("ip", "link", "delete", link); err != nil {
		ts.Logf("the machines' link: %v", err)
	}
}

func run(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, out)
	}
	return nil
}
