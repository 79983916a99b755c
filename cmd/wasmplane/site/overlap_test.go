// SPDX-License-Identifier: Apache-2.0

package site

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/join"
)

func TestNetworksThatThisMachineIsIn(t *testing.T) {
	own := []join.Network{
		{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Interface: "eth0"},
		{Prefix: netip.MustParsePrefix("10.1.2.0/24"), Interface: "eth1"},
	}
	for _, c := range []struct {
		name, pods, services string
		change               func(*config.Configuration)
		says                 []string
	}{
		{"apart", "10.2.0.0/16", "10.3.0.0/16", nil, nil},
		{"pods", "10.1.0.0/16", "10.3.0.0/16", nil, []string{"cluster.podCIDR", "10.1.0.0/16", "10.1.2.0/24", "eth1"}},
		{"Services", "10.2.0.0/16", "10.1.2.128/25", nil, []string{"cluster.serviceCIDR", "10.1.2.128/25", "10.1.2.0/24", "eth1"}},
		{"pods of another network", "10.1.0.0/16", "10.3.0.0/16", func(c *config.Configuration) { c.Node.CNIConfigDir = "/etc/cni" }, nil},
		{"pods of another runtime", "10.1.0.0/16", "10.3.0.0/16", func(c *config.Configuration) { c.Node.CRIEndpoint = "unix:///run/cri" }, nil},
		{"another proxy", "10.2.0.0/16", "10.1.2.0/24", func(c *config.Configuration) { c.Proxy.Enabled = false }, nil},
		{"simulated nodes", "10.1.0.0/16", "10.1.2.0/24", func(c *config.Configuration) { c.Node.Mode = config.NodeMode{Simulated: 3} }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := config.Default()
			conf.Cluster.PodCIDR, conf.Cluster.ServiceCIDR = c.pods, c.services
			if c.change != nil {
				c.change(conf)
			}
			err := overlapping(conf, own)
			if (err != nil) != (c.says != nil) {
				t.Fatalf("error %v", err)
			}
			for _, text := range c.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q does not say %q", err, text)
				}
			}
		})
	}
}

// A cluster is not begun in a network that this machine is in, and one that has begun goes on.
func TestAClusterThatHasBegunGoesOnInANetworkOfThisMachine(t *testing.T) {
	own, err := join.Interfaces()
	if err != nil || len(own) == 0 {
		t.Skip("this machine is in no network")
	}
	c := config.Default()
	c.Cluster.PodCIDR = own[0].Prefix.String()
	s := Site{Options: process.Options{Config: c, Dir: datadir.Dir(t.TempDir()), Logger: slog.New(slog.DiscardHandler)}}
	if err := s.checkNetworks(t.Context()); err == nil || !strings.Contains(err.Error(), own[0].Interface) {
		t.Errorf("a new one: %v", err)
	}
	if err := s.Options.Dir.WriteState(datadir.State{Cluster: c.Cluster.Name}); err != nil {
		t.Fatal(err)
	}
	if err := s.checkNetworks(t.Context()); err != nil {
		t.Errorf("one that has begun: %v", err)
	}
}
