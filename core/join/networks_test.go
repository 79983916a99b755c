// SPDX-License-Identifier: Apache-2.0

package join

import (
	"net/netip"
	"strings"
	"testing"
)

// A second family is taken over, another first network is not.
func TestGrown(t *testing.T) {
	for _, c := range [][3]string{
		{"10.1.0.0/16", "10.1.0.0/16,fd00:1::/56", "10.1.0.0/16,fd00:1::/56"},
		{"10.1.0.0/16", "10.2.0.0/16,fd00:1::/56", "10.1.0.0/16"},
		{"10.1.0.0/16", "", "10.1.0.0/16"},
		{"10.1.0.0/16,fd00:1::/56", "10.1.0.0/16", "10.1.0.0/16,fd00:1::/56"},
	} {
		if got := grown(c[0], c[1]); got != c[2] {
			t.Errorf("%s, then %s: %s, want %s", c[0], c[1], got, c[2])
		}
	}
}

// A machine that is itself in one of the networks is refused, whichever family it is of.
func TestAMachineInTheNetworkOfPods(t *testing.T) {
	c := Config{Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("fd00:1:0:7::/64")}}
	m := Member{PodCIDR: "10.1.0.0/16,fd00:1::/56", ServiceCIDR: "10.2.0.0/16,fd00:2::/112"}
	if err := c.checkNetworks(m); err == nil || !strings.Contains(err.Error(),
		"fd00:1:0:7::/64, which overlaps the cluster's network of pods, fd00:1::/56") {
		t.Errorf("error %v", err)
	}
	m.PodCIDR = "10.1.0.0/16,fd00:3::/56"
	if err := c.checkNetworks(m); err != nil {
		t.Error(err)
	}
}
