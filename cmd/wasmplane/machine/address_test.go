// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"net/netip"
	"testing"
)

func TestAddressWithoutADefaultRoute(t *testing.T) {
	addrs := func(list ...string) (out []netip.Addr) {
		for _, a := range list {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	lo := link{"lo", addrs("127.0.0.1", "::1")}
	for name, c := range map[string]struct {
		links []link
		ip4   bool
		want  string
	}{
		"no network":             {[]link{lo}, true, "invalid IP"},
		"a network":              {[]link{lo, {"eth0", addrs("fe80::1", "10.1.2.3")}}, true, "10.1.2.3"},
		"a bridge of containers": {[]link{lo, {"docker0", addrs("172.17.0.1")}, {"eth1", addrs("10.1.2.3")}}, true, "10.1.2.3"},
		"nothing else":           {[]link{lo, {"docker0", addrs("172.17.0.1")}}, true, "172.17.0.1"},
		"link-local only":        {[]link{lo, {"eth0", addrs("169.254.3.4")}}, true, "invalid IP"},
		"no IPv6":                {[]link{lo, {"eth0", addrs("fe80::1", "10.1.2.3")}}, false, "invalid IP"},
		"both families":          {[]link{lo, {"eth0", addrs("10.1.2.3", "fe80::1", "2001:db8::3")}}, false, "2001:db8::3"},
	} {
		if got := addressOf(c.links, c.ip4); got.String() != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
