// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A test's binary is also the plugins', under their names.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "bridge", "host-local", "loopback", "portmap", "stranger":
		main()
		return
	}
	os.Exit(m.Run())
}

// scene is a machine of its own: a network namespace that plays the host, plugins
// under their names, and a place for records.
type scene struct {
	t     *testing.T
	cni   *libcni.CNIConfig
	state string
	conf  *libcni.NetworkConfigList
	// chained is conf as earlier versions wrote it, and as other networks do: portmap is a plugin of its own.
	chained *libcni.NetworkConfigList
}

type object = map[string]any

// onHost runs do in a fresh "host". The thread stays in it and is thrown away.
func onHost(t *testing.T, bridge object, do func(*scene)) {
	t.Helper()
	host, err := testutils.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, host) })
	bin, state := t.TempDir(), t.TempDir()
	for _, name := range []string{"bridge", "host-local", "loopback", "portmap", "stranger"} {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(self, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	conf := object{
		"type": "bridge", "bridge": "wpt0", "isGateway": true, "hairpinMode": true,
		"ipam": object{
			"type": "host-local", "dataDir": filepath.Join(state, "addresses"),
			"ranges": []any{[]any{object{"subnet": "10.99.0.0/29"}}}, "routes": []any{object{"dst": "0.0.0.0/0"}},
		},
	}
	for k, v := range bridge {
		conf[k] = v
	}
	portmap := func() object {
		return object{
			"type": "portmap", "backend": "nftables", "table": "wpt-hostports", "capabilities": object{"portMappings": true},
			"reservedTCPPorts": []int{6443}, "reservedUDPPorts": []int{4789},
		}
	}
	s := &scene{t: t, cni: libcni.NewCNIConfigWithCacheDir([]string{bin}, filepath.Join(state, "cache"), nil), state: state}
	s.chained = networkOf(t, conf, portmap())
	conf["capabilities"] = object{"portMappings": true}
	if _, given := conf["hostPorts"]; !given {
		conf["hostPorts"] = portmap()
	}
	s.conf = networkOf(t, conf)
	if err := host.Do(func(ns.NetNS) error { do(s); return nil }); err != nil {
		t.Fatal(err)
	}
}

// networkOf is a list of plugins as libcni has it.
func networkOf(t *testing.T, plugins ...any) *libcni.NetworkConfigList {
	t.Helper()
	data, err := json.Marshal(object{"cniVersion": "1.0.0", "name": "test", "plugins": plugins})
	if err != nil {
		t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// pod makes a pod's namespace.
func (s *scene) pod(id string, ports ...object) (*libcni.RuntimeConf, ns.NetNS) {
	s.t.Helper()
	pod, err := testutils.NewNS()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { remove(s.t, pod) })
	rt := &libcni.RuntimeConf{ContainerID: id, NetNS: pod.Path(), IfName: "eth0"}
	if len(ports) > 0 {
		list := make([]any, len(ports))
		for i, p := range ports {
			list[i] = p
		}
		rt.CapabilityArgs = map[string]any{"portMappings": list}
	}
	return rt, pod
}

// remove ends a namespace, once or again.
func remove(t *testing.T, n ns.NetNS) {
	t.Helper()
	_ = n.Close()
	if _, err := os.Stat(n.Path()); err != nil {
		return
	}
	if err := unix.Unmount(n.Path(), unix.MNT_DETACH); err != nil {
		t.Error(err)
	}
	if err := os.Remove(n.Path()); err != nil {
		t.Error(err)
	}
}

func (s *scene) add(rt *libcni.RuntimeConf) (*current.Result, error) {
	r, err := s.cni.AddNetworkList(context.Background(), s.conf, rt)
	if err != nil {
		return nil, err
	}
	return current.NewResultFromResult(r)
}

func (s *scene) mustAdd(rt *libcni.RuntimeConf) *current.Result {
	s.t.Helper()
	r, err := s.add(rt)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *scene) addresses() []string {
	files, _ := filepath.Glob(filepath.Join(s.state, "addresses/test/10.*"))
	for i, f := range files {
		files[i] = filepath.Base(f)
	}
	return files
}

func (s *scene) links() int {
	links, err := netlink.LinkList()
	if err != nil {
		s.t.Fatal(err)
	}
	return len(links)
}

// ADD, CHECK, DEL, and each of them twice.
func TestPodOnBridge(t *testing.T) {
	onHost(t, nil, func(s *scene) {
		rt, pod := s.pod("one")
		r := s.mustAdd(rt)
		if len(r.IPs) != 1 || r.IPs[0].Address.String() != "10.99.0.2/29" || r.IPs[0].Gateway.String() != "10.99.0.1" {
			t.Errorf("addresses %+v", r.IPs)
		}
		if len(r.Interfaces) != 3 || r.Interfaces[0].Name != "wpt0" || r.Interfaces[2].Name != "eth0" || r.Interfaces[2].Sandbox != pod.Path() {
			t.Errorf("interfaces %+v", r.Interfaces)
		}
		if err := pod.Do(func(ns.NetNS) error {
			routes, err := netlink.RouteGet(net.IPv4(192, 0, 2, 1))
			if err != nil || len(routes) != 1 || routes[0].Gw.String() != "10.99.0.1" {
				t.Errorf("the way out: %v (%v)", routes, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		for range 2 {
			if err := s.cni.CheckNetworkList(ctx, s.conf, rt); err != nil {
				t.Errorf("CHECK: %v", err)
			}
		}
		if err := s.cni.GetStatusNetworkList(ctx, s.conf); err != nil && !strings.Contains(err.Error(), "STATUS") {
			t.Errorf("STATUS: %v", err)
		}
		if _, err := s.add(rt); err == nil {
			t.Error("a second ADD of the same interface was done")
		}
		for range 2 {
			if err := s.cni.DelNetworkList(ctx, s.conf, rt); err != nil {
				t.Errorf("DEL: %v", err)
			}
		}
		if err := s.cni.CheckNetworkList(ctx, s.conf, rt); err == nil {
			t.Error("CHECK finds a pod that is gone")
		}
		if left := s.addresses(); len(left) != 0 {
			t.Errorf("addresses are left: %v", left)
		}
		if n := s.links(); n != 2 { // lo and the bridge
			t.Errorf("%d links are left, want lo and the bridge", n)
		}
	})
}

// A range that is used up is an error that gives nothing away, and its addresses
// come back.
func TestRangeUsedUp(t *testing.T) {
	onHost(t, nil, func(s *scene) {
		var last *libcni.RuntimeConf
		for i := range 5 { // .2 to .6 of a /29
			last, _ = s.pod(fmt.Sprint("pod", i))
			s.mustAdd(last)
		}
		links := s.links()
		rt, _ := s.pod("too-many")
		if _, err := s.add(rt); err == nil || !strings.Contains(err.Error(), "10.99.0.0/29") && !strings.Contains(err.Error(), "10.99.0") {
			t.Errorf("the sixth of five addresses: %v", err)
		}
		if n := s.links(); n != links {
			t.Errorf("a failed ADD left %d links", n-links)
		}
		if err := s.cni.DelNetworkList(context.Background(), s.conf, last); err != nil {
			t.Fatal(err)
		}
		s.mustAdd(rt)
	})
}

// When the pod's namespace is gone before DEL, or was never there, the address is
// given back all the same.
func TestNamespaceGone(t *testing.T) {
	onHost(t, nil, func(s *scene) {
		rt, pod := s.pod("one")
		s.mustAdd(rt)
		remove(t, pod)
		for _, path := range []string{rt.NetNS, "", "/var/run/netns/never-was"} {
			rt.NetNS = path
			if err := s.cni.DelNetworkList(context.Background(), s.conf, rt); err != nil {
				t.Errorf("DEL with namespace %q: %v", path, err)
			}
		}
		if left := s.addresses(); len(left) != 0 {
			t.Errorf("addresses are left: %v", left)
		}
		rt.NetNS = "/var/run/netns/never-was"
		if _, err := s.add(rt); err == nil {
			t.Error("ADD into nothing was done")
		}
		if left := s.addresses(); len(left) != 0 {
			t.Errorf("a failed ADD keeps addresses: %v", left)
		}
	})
}

// The node's range changes: the bridge gets its new address only where that is
// asked for.
func TestRangeChanges(t *testing.T) {
	for _, force := range []bool{true, false} {
		onHost(t, object{"forceAddress": force}, func(s *scene) {
			if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "wpt0"}}); err != nil {
				t.Fatal(err)
			}
			br, err := netlink.LinkByName("wpt0")
			if err != nil {
				t.Fatal(err)
			}
			old, err := netlink.ParseAddr("10.98.0.1/29")
			if err != nil {
				t.Fatal(err)
			}
			if err := netlink.AddrAdd(br, old); err != nil {
				t.Fatal(err)
			}
			rt, _ := s.pod("one")
			_, err = s.add(rt)
			if force != (err == nil) {
				t.Errorf("forceAddress %t: %v", force, err)
			}
			if err != nil && len(s.addresses()) != 0 {
				t.Error("a failed ADD keeps an address")
			}
		})
	}
}

func TestNameTaken(t *testing.T) {
	onHost(t, nil, func(s *scene) {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wpt0"}, PeerName: "other"}); err != nil {
			t.Fatal(err)
		}
		rt, _ := s.pod("one")
		if _, err := s.add(rt); err == nil || !strings.Contains(err.Error(), "not a bridge") {
			t.Errorf("a link of that name that is no bridge: %v", err)
		}
	})
}

// What this plugin does not do it refuses.
func TestRefused(t *testing.T) {
	for field, value := range map[string]any{
		"ipMasq": true, "promiscMode": true, "vlan": 7, "vlanTrunk": []any{object{"id": 1}}, "macspoofchk": true, "ipam": object{},
	} {
		onHost(t, object{field: value}, func(s *scene) {
			rt, _ := s.pod("one")
			if _, err := s.add(rt); err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("%s: %v", field, err)
			}
		})
	}
}

// Host ports are entries in maps: taken over from a pod that is gone, removed by
// the container's id, in a table of the cluster's own.
func TestPortmap(t *testing.T) {
	for _, chained := range []bool{false, true} {
		t.Run(fmt.Sprintf("chained=%t", chained), func(t *testing.T) { testPortmap(t, chained) })
	}
}

func testPortmap(t *testing.T, chained bool) {
	onHost(t, nil, func(s *scene) {
		if chained {
			s.conf = s.chained
		}
		ctx := context.Background()
		port := object{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
		one, _ := s.pod("one", port, object{"hostPort": 5353, "containerPort": 53, "protocol": "udp", "hostIP": "10.99.0.1"})
		s.mustAdd(one)
		if err := s.cni.CheckNetworkList(ctx, s.conf, one); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		rules := ruleset(t)
		for _, want := range []string{`tcp . 8080 comment "one" : 10.99.0.2 . 80`, `10.99.0.1 . udp . 5353 comment "one" : 10.99.0.2 . 53`} {
			if !strings.Contains(rules, want) {
				t.Errorf("the table does not have %s:\n%s", want, rules)
			}
		}
		two, _ := s.pod("two", port)
		s.mustAdd(two)
		if rules := ruleset(t); !strings.Contains(rules, `tcp . 8080 comment "two" : 10.99.0.3 . 80`) {
			t.Errorf("the port was not taken over:\n%s", rules)
		}
		// The first pod's late DEL leaves the second one's port alone.
		if err := s.cni.DelNetworkList(ctx, s.conf, one); err != nil {
			t.Fatal(err)
		}
		if rules := ruleset(t); !strings.Contains(rules, `comment "two"`) || strings.Contains(rules, `comment "one"`) {
			t.Errorf("after the first pod's DEL:\n%s", rules)
		}
		for range 2 {
			if err := s.cni.DelNetworkList(ctx, s.conf, two); err != nil {
				t.Fatal(err)
			}
		}
		if rules := ruleset(t); strings.Contains(rules, "comment \"two\"") {
			t.Errorf("after both pods' DEL:\n%s", rules)
		}
		for _, bad := range []object{
			{"hostPort": 0, "containerPort": 80, "protocol": "tcp"},
			{"hostPort": 1, "containerPort": 70000, "protocol": "tcp"},
			{"hostPort": 1, "containerPort": 1, "protocol": "icmp"},
			{"hostPort": 1, "containerPort": 1, "protocol": "tcp", "hostIP": "x; flush ruleset"},
		} {
			rt, _ := s.pod("bad", bad)
			if _, err := s.add(rt); err == nil {
				t.Errorf("%v was taken", bad)
			}
			rt.CapabilityArgs = nil
			if err := s.cni.DelNetworkList(ctx, s.conf, rt); err != nil {
				t.Errorf("DEL after a failed ADD: %v", err)
			}
		}
		if left := s.addresses(); len(left) != 0 {
			t.Errorf("addresses are left: %v", left)
		}
	})
}

// A pod that an earlier version made, with portmap as a plugin of its own, is checked and removed by this one's list.
func TestHostPortsOfAnEarlierVersion(t *testing.T) {
	onHost(t, nil, func(s *scene) {
		ctx := context.Background()
		rt, _ := s.pod("old", object{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"})
		if _, err := s.cni.AddNetworkList(ctx, s.chained, rt); err != nil {
			t.Fatal(err)
		}
		if err := s.cni.CheckNetworkList(ctx, s.conf, rt); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		if out, err := exec.Command("nft", "flush", "map", "ip", "wpt-hostports", anyAddress).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := s.cni.CheckNetworkList(ctx, s.conf, rt); err == nil || !strings.Contains(err.Error(), "1 of 2 entries are missing") {
			t.Errorf("CHECK of a pod without its host port: %v", err)
		}
		if err := s.cni.DelNetworkList(ctx, s.conf, rt); err != nil {
			t.Fatal(err)
		}
		if rules := ruleset(t); strings.Contains(rules, `comment "old"`) {
			t.Errorf("after DEL:\n%s", rules)
		}
		if left := s.addresses(); len(left) != 0 {
			t.Errorf("addresses are left: %v", left)
		}
	})
}

// A pod whose host ports cannot be had has no address and no link either, also before its DEL; one without host ports has no use
// for what cannot be had.
func TestAFailureOfHostPortsLeavesNothing(t *testing.T) {
	for name, hostPorts := range map[string]object{
		"reserved":    {"reservedTCPPorts": []int{8080}},
		"not a table": {"table": "no table"},
		"none":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, object{"hostPorts": hostPorts}, func(s *scene) {
				rt, _ := s.pod("plain")
				s.mustAdd(rt)
				if err := s.cni.DelNetworkList(context.Background(), s.conf, rt); err != nil {
					t.Fatal(err)
				}
				links := s.links()
				rt, _ = s.pod("one", object{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"})
				if _, err := s.add(rt); err == nil {
					t.Fatal("a pod has host ports that cannot be had")
				}
				if left := s.addresses(); len(left) != 0 {
					t.Errorf("addresses are left: %v", left)
				}
				if n := s.links(); n != links {
					t.Errorf("%d links are left", n-links)
				}
			})
		})
	}
}

// A pod gets no port on which the host listens, nor one that is reserved for it;
// the same port at another address or of another protocol it gets.
func TestPortsOfTheHostAreNotGivenAway(t *testing.T) {
	onHost(t, nil, func(s *scene) {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			t.Fatal(err)
		}
		listen := func(network, at string) {
			t.Helper()
			fd, err := openSocket(network, at)
			if err != nil {
				t.Fatalf("%s %s: %v", network, at, err)
			}
			t.Cleanup(func() { _ = unix.Close(fd) })
		}
		listen("tcp", "127.0.0.1:7001")
		listen("tcp", "[::]:7002")
		listen("udp", "0.0.0.0:7003")
		for i, c := range []struct {
			port object
			want string // of the refusal; empty: taken
		}{
			{object{"hostPort": 6443, "containerPort": 80, "protocol": "tcp"}, "hostPort 6443/tcp is reserved"},
			{object{"hostPort": 6443, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"}, "hostPort 6443/tcp is reserved"},
			{object{"hostPort": 6443, "containerPort": 80, "protocol": "tcp", "hostIP": "::"}, "hostPort 6443/tcp is reserved"},
			{object{"hostPort": 4789, "containerPort": 80, "protocol": "udp"}, "hostPort 4789/udp is reserved"},
			{object{"hostPort": 4789, "containerPort": 80, "protocol": "udp", "hostIP": "10.99.0.1"}, "hostPort 4789/udp is reserved"},
			{object{"hostPort": 4789, "containerPort": 80, "protocol": "tcp"}, ""},
			{object{"hostPort": 7003, "containerPort": 80, "protocol": "udp", "hostIP": "10.99.0.1"}, "listens at 0.0.0.0:7003"},
			{object{"hostPort": 7003, "containerPort": 80, "protocol": "sctp"}, ""},
			{object{"hostPort": 6443, "containerPort": 80, "protocol": "udp"}, ""},
			{object{"hostPort": 7001, "containerPort": 80, "protocol": "tcp"}, "listens at 127.0.0.1:7001"},
			{object{"hostPort": 7001, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"}, "listens at 127.0.0.1:7001"},
			{object{"hostPort": 7001, "containerPort": 80, "protocol": "tcp", "hostIP": "10.99.0.1"}, ""},
			{object{"hostPort": 7001, "containerPort": 80, "protocol": "udp"}, ""},
			{object{"hostPort": 7002, "containerPort": 80, "protocol": "tcp", "hostIP": "10.99.0.1"}, "listens at [::]:7002"},
			{object{"hostPort": 7003, "containerPort": 80, "protocol": "udp"}, "listens at 0.0.0.0:7003"},
			{object{"hostPort": 7004, "containerPort": 80, "protocol": "tcp"}, ""},
		} {
			rt, _ := s.pod(fmt.Sprintf("pod%d", i), c.port)
			_, err := s.add(rt)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v: %v, want %q", c.port, err, c.want)
			}
			if err := s.cni.DelNetworkList(context.Background(), s.conf, rt); err != nil {
				t.Errorf("%v: DEL: %v", c.port, err)
			}
		}
		if left := s.addresses(); len(left) != 0 {
			t.Errorf("addresses are left: %v", left)
		}
	})
}

// openSocket listens in the network namespace of this very thread; package net
// would do so from whichever thread it likes.
func openSocket(network, at string) (int, error) {
	addr := netip.MustParseAddrPort(at)
	family, kind := unix.AF_INET, unix.SOCK_STREAM
	var to unix.Sockaddr = &unix.SockaddrInet4{Port: int(addr.Port())}
	if addr.Addr().Is6() {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
	} else {
		to.(*unix.SockaddrInet4).Addr = addr.Addr().As4()
	}
	if network == "udp" {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err = unix.Bind(fd, to); err == nil && kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		_ = unix.Close(fd)
	}
	return fd, err
}

// What the kernel writes, as proc_net(5) describes it.
func TestReadSockets(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:192B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:9C40 0100007F:192B 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
   2: B80D012000000000000000000100000A:0016 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 3
   3: 0000000000000000FFFF00000100007F:0017 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 4
`
	got, err := readSockets(strings.NewReader(table), "tcp", tcpListen)
	var at []string
	for _, l := range got {
		at = append(at, l.at.String())
	}
	if want := "127.0.0.1:6443 [2001:db8::a00:1]:22 127.0.0.1:23"; err != nil || strings.Join(at, " ") != want {
		t.Errorf("%s (%v), want %s", at, err, want)
	}
	if _, err := readSockets(strings.NewReader("heading\n 0: 01:zz 0:0 0A\n"), "tcp", tcpListen); err == nil {
		t.Error("a damaged table was read")
	}
}

// ruleset is what the kernel has. Older versions of nft write protocols in keys of maps as numbers.
func ruleset(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	return strings.NewReplacer(" 6 . ", " tcp . ", " 17 . ", " udp . ").Replace(string(out))
}

func TestLoopback(t *testing.T) {
	onHost(t, nil, func(s *scene) {
		conf, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.0.0","name":"lo","plugins":[{"type":"loopback"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		s.conf = conf
		rt, _ := s.pod("one")
		rt.IfName = "lo"
		r := s.mustAdd(rt)
		if len(r.IPs) == 0 || !r.IPs[0].Address.IP.IsLoopback() {
			t.Errorf("addresses %v", r.IPs)
		}
		ctx := context.Background()
		if err := s.cni.CheckNetworkList(ctx, s.conf, rt); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := s.cni.DelNetworkList(ctx, s.conf, rt); err != nil {
				t.Error(err)
			}
		}
	})
}

// The binary under another name says what it is for.
func TestUnknownName(t *testing.T) {
	onHost(t, nil, func(s *scene) {
		out, err := exec.Command(filepath.Join(s.cni.Path[0], "stranger")).Output()
		if err == nil || !strings.Contains(string(out), "call this program as bridge") {
			t.Errorf("%v: %s", err, out)
		}
	})
}

func FuzzConfigurations(f *testing.F) {
	f.Add([]byte(`{"bridge":"x","ipam":{"type":"host-local"}}`))
	f.Add([]byte(`{"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":1,"protocol":"tcp"}]},"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/8","interface":7}]}}`))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = loadBridge(data)
		if c, result, err := loadPortmap(data); err == nil && result != nil {
			for _, pod := range podAddresses(result, "eth0") {
				_ = elements(c, "id", pod)
			}
		}
	})
}

// Another pod on the bridge may say that it is a router, or knows a better way: nobody listens.
func TestPodsTakeNoAdvertisements(t *testing.T) {
	onHost(t, object{"ipam": object{
		"type": "host-local", "dataDir": t.TempDir(), "routes": []any{object{"dst": "0.0.0.0/0"}, object{"dst": "::/0"}},
		"ranges": []any{[]any{object{"subnet": "10.99.0.0/29"}}, []any{object{"subnet": "fd00:99::/64"}}},
	}}, func(s *scene) {
		rt, pod := s.pod("listener")
		if r := s.mustAdd(rt); len(r.IPs) != 2 {
			t.Errorf("addresses %v, want one of each family", r.IPs)
		}
		err := pod.Do(func(ns.NetNS) error {
			for _, conf := range []string{"accept_ra", "autoconf", "accept_redirects"} {
				data, err := os.ReadFile("/proc/thread-self/root/proc/sys/net/ipv6/conf/eth0/" + conf)
				if err != nil || strings.TrimSpace(string(data)) != "0" {
					return fmt.Errorf("%s of the pod's link is %q (%w)", conf, data, err)
				}
			}
			for _, conf := range []string{"all", "eth0"} {
				data, err := os.ReadFile("/proc/thread-self/root/proc/sys/net/ipv4/conf/" + conf + "/accept_redirects")
				if err != nil || strings.TrimSpace(string(data)) != "0" {
					return fmt.Errorf("accept_redirects of %s is %q for IPv4 (%w)", conf, data, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A pod that writes another's hardware address into its frames, or many, is not taken for the other.
func TestTheBridgeLearnsNothingFromPods(t *testing.T) {
	onHost(t, nil, func(s *scene) {
		rt, _ := s.pod("victim")
		victim := s.mustAdd(rt).Interfaces
		rt, evil := s.pod("evil")
		s.mustAdd(rt)
		mac, err := net.ParseMAC(victim[2].Mac)
		if err != nil {
			t.Fatal(err)
		}
		behind := func(mac net.HardwareAddr) (links []string) {
			known, err := netlink.NeighList(0, unix.AF_BRIDGE)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range known {
				if bytes.Equal(n.HardwareAddr, mac) && n.Flags&netlink.NTF_SELF == 0 {
					link, err := netlink.LinkByIndex(n.LinkIndex)
					if err != nil {
						t.Fatal(err)
					}
					links = append(links, link.Attrs().Name)
				}
			}
			return links
		}
		stranger := net.HardwareAddr{2, 0xba, 0xd, 0xba, 0xd, 1}
		box := frames(t, victim[1].Name)
		for i, from := range []net.HardwareAddr{mac, stranger} {
			mark := fmt.Sprint("frame ", i)
			err := evil.Do(func(ns.NetNS) error { return frame("eth0", from, mark) })
			if err != nil {
				t.Fatal(err)
			}
			if err := box(mark); err != nil { // the bridge has looked at it
				t.Fatal(err)
			}
		}
		if got := behind(mac); !slices.Equal(got, []string{victim[1].Name}) {
			t.Errorf("the victim's hardware address is behind %v, want %s", got, victim[1].Name)
		}
		if got := behind(stranger); len(got) != 0 {
			t.Errorf("the bridge remembers an address that nobody has, behind %v", got)
		}
	})
}

// frame sends a broadcast of an experimental protocol with a sender of one's choice.
func frame(link string, from net.HardwareAddr, text string) error {
	dev, err := net.InterfaceByName(link)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	data := slices.Concat(bytes.Repeat([]byte{0xff}, 6), from, []byte{0x88, 0xb5}, []byte(text))
	return unix.Sendto(fd, data, 0, &unix.SockaddrLinklayer{Ifindex: dev.Index, Halen: 6})
}

// frames answers a function that waits for a text among what leaves by a link.
func frames(t *testing.T, link string) func(text string) error {
	t.Helper()
	dev, err := net.InterfaceByName(link)
	if err != nil {
		t.Fatal(err)
	}
	const all = 0x0300 // ETH_P_ALL, in network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, all)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}); err != nil {
		t.Fatal(err)
	}
	return func(text string) error {
		buf := make([]byte, 2048)
		for {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				return fmt.Errorf("wait for %q: %w", text, err)
			}
			if bytes.Contains(buf[:n], []byte(text)) {
				return nil
			}
		}
	}
}
