// SPDX-License-Identifier: Apache-2.0

package site

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
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

// A lease leads to no other machine than the cluster's servers.
func TestOnlyServersAreConnectedTo(t *testing.T) {
	var lc net.ListenConfig
	server, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	other, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	f := former{servers: func() []string { return []string{server.Addr().String()} }}
	if err := f.connect(t.Context(), other.Addr().String()); err == nil || !strings.Contains(err.Error(), "is no server of this cluster") {
		t.Errorf("error %v", err)
	}
	if _, recent := f.recent(); recent {
		t.Error("a server was seen where there was none")
	}
	if err := f.connect(t.Context(), server.Addr().String()); err != nil {
		t.Error(err)
	}
	if host, recent := f.recent(); !recent || host != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("seen at %s: %t", host, recent)
	}
	_ = server.Close()
	if err := f.connect(t.Context(), server.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a process that has ended: %v", err)
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
