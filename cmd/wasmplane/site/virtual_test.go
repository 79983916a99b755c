// SPDX-License-Identifier: Apache-2.0

package site

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/config"
)

// What a machine cannot have is refused with what to do, before anything is asked.
func TestVirtualAddressesThatAServerCouldNotHave(t *testing.T) {
	for _, c := range []struct{ listen, pods, services, virtual, host, want string }{
		{":6443", "10.1.0.0/16", "10.2.0.0/16", "", "192.0.2.1", ""},
		{"127.0.0.1:6443", "10.1.0.0/16", "10.2.0.0/16", "192.0.2.7", "192.0.2.1", "the API listens at 127.0.0.1:6443 alone"},
		{"0.0.0.0:6443", "fd00:1::/56", "fd00:2::/112", "fd00:9::7", "fd00:9::1", "the API listens at 0.0.0.0:6443 alone"},
		{":6443", "10.1.0.0/16", "10.2.0.0/16", "10.1.0.7", "192.0.2.1", "10.1.0.7 lies in the cluster's network of pods, 10.1.0.0/16"},
		{":6443", "10.1.0.0/16", "10.2.0.0/16", "10.2.0.7", "192.0.2.1", "10.2.0.7 lies in the cluster's network of Services"},
		{":6443", "10.1.0.0/16", "10.2.0.0/16", "192.0.2.1", "192.0.2.1", "192.0.2.1 is this machine's own address"},
		{"[::]:6443", "10.1.0.0/16", "10.2.0.0/16", "203.0.113.77", "192.0.2.1", "203.0.113.77 is in no network of this machine"},
	} {
		conf := config.Default()
		conf.APIServer.Listen, conf.APIServer.VirtualAddress = c.listen, c.virtual
		conf.Cluster.PodCIDR, conf.Cluster.ServiceCIDR = c.pods, c.services
		err := VirtualFits(conf, c.host)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), "apiserver.virtualAddress: ") ||
			!strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestTheNodeThatHasAnAddress(t *testing.T) {
	a, b := corev1.Node{}, corev1.Node{}
	a.Name, b.Name = "a", "b"
	b.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "b"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.7"}}
	for ip, want := range map[string]string{"192.0.2.7": "b", "192.0.2.8": ""} {
		if got := nodeWith([]corev1.Node{a, b}, netip.MustParseAddr(ip)); got != want {
			t.Errorf("%s: %q, want %q", ip, got, want)
		}
	}
}
