// SPDX-License-Identifier: Apache-2.0

package story

import (
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
// on the link, PORT the one that is free for its API. All is taken away at the end, however that comes.
func (s *stage) machines(ts *testscript.TestScript, neg bool, names []string) {
	if neg || len(names) == 0 || len(names) > 9 {
		ts.Fatalf("usage: machines MACHINE...")
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(s.Name))
	// Of the networks for measuring (RFC 2544) one that no other script has.
	network := fmt.Sprintf("198.%d.%d", 18+h.Sum32()>>8&1, h.Sum32()&0xff)
	link := fmt.Sprintf("st%x", h.Sum32())
	ts.Defer(func() { s.dismantle(ts, link, names) })
	ip := func(args ...string) { ts.Check(run("ip", args...)) }
	ip("link", "add", link, "type", "bridge")
	ip("address", "add", network+".1/24", "dev", link)
	ip("link", "set", link, "up")
	_, port, err := net.SplitHostPort(s.Listen)
	ts.Check(err)
	ts.Setenv("ADDRESS", network+".1")
	ts.Setenv("PORT", port)
	for i, name := range names {
		space, end := link+name, fmt.Sprintf("%s%d", link, i)
		ip("netns", "add", space)
		ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
		ip("link", "set", end, "master", link, "up")
		ip("-n", space, "address", "add", fmt.Sprintf("%s.%d/24", network, i+2), "dev", "eth0")
		ip("-n", space, "link", "set", "eth0", "up")
		ip("-n", space, "link", "set", "lo", "up")
		ts.Setenv("ADDRESS_"+name, fmt.Sprintf("%s.%d", network, i+2))
		ts.Setenv("IN_"+name, "--net=/run/netns/"+space)
		ts.Setenv("DATA_"+name, s.dataOf(name))
		ts.Setenv("NAME_"+name, s.Name+name)
	}
}

func (s *stage) dataOf(machine string) string { return filepath.Join(s.Dir, "data-"+machine) }

// dismantle takes machines away. What they run ends with them.
func (s *stage) dismantle(ts *testscript.TestScript, link string, names []string) {
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
