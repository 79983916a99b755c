// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A machine that cannot have pods with IPv6 says which value is in the way.
func TestIPv6OfTheMachine(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"no IPv6":        {nil, "kernel has no IPv6"},
		"disabled":       {map[string]string{"all/disable_ipv6": "1"}, "net.ipv6.conf.all.disable_ipv6=0"},
		"new links lack": {map[string]string{"all/disable_ipv6": "0", "default/disable_ipv6": "1"}, "net.ipv6.conf.default.disable_ipv6=0"},
		"all is well":    {map[string]string{"all/disable_ipv6": "0", "default/disable_ipv6": "0", "all/forwarding": "0"}, ""},
	} {
		dir := t.TempDir()
		for file, value := range c.files {
			path := filepath.Join(dir, "conf", file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		switch p := checkIPv6(dir); {
		case c.want == "" && p != nil:
			t.Errorf("%s: %s", name, p)
		case c.want != "" && (p == nil || !strings.Contains(p.String(), c.want)):
			t.Errorf("%s: %v, want %q", name, p, c.want)
		}
	}
}

// A node is known by an address that stays, not by one that the kernel prefers for what it begins.
func TestStable(t *testing.T) {
	address := func(link int, ip string, flags int) netlink.Addr {
		return netlink.Addr{LinkIndex: link, Flags: flags, IPNet: &net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(64, 128)}}
	}
	has := []netlink.Addr{
		address(2, "fe80::1", unix.IFA_F_PERMANENT), address(2, "2001:db8:1::aaaa", unix.IFA_F_TEMPORARY),
		address(3, "2001:db8:1::3", 0), address(2, "2001:db8:2::2", 0), address(2, "2001:db8:1::2", 0),
		address(4, "2001:db8:4::aaaa", unix.IFA_F_TEMPORARY),
	}
	for asked, want := range map[string]string{
		"2001:db8:1::aaaa": "2001:db8:1::2", "2001:db8:1::2": "2001:db8:1::2", "2001:db8:4::aaaa": "2001:db8:4::aaaa",
	} {
		if got := stable(netip.MustParseAddr(asked), has); got.String() != want {
			t.Errorf("%s: %s, want %s", asked, got, want)
		}
	}
}
