// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
)

func testConfig(t *testing.T, cidrs ...string) Config {
	t.Helper()
	c := Config{Names: linuxhost.NamesOf("nettest"), ConfDir: filepath.Join(t.TempDir(), "cni"), StateDir: filepath.Join(t.TempDir(), "net")}
	for _, s := range cidrs {
		c.PodCIDRs = append(c.PodCIDRs, netip.MustParsePrefix(s))
	}
	return c
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []struct {
		cidrs []string
		want  string
	}{
		{nil, "no pod range"},
		{[]string{"10.0.0.1/24"}, "10.0.0.0/24"},
		{[]string{"10.0.0.0/24", "10.0.1.0/24"}, "one range of each family"},
		{[]string{"10.0.0.0/31"}, "no room"},
		{[]string{"fd00::/128"}, "no room"},
	} {
		if _, err := testConfig(t, c.cidrs...).validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want an error with %q", c.cidrs, err, c.want)
		}
	}
}

// libcni reads what we write, and finds the range, the gateway and a table of the
// cluster's own in it; and one plugin, which is one execution a pod.
func TestConflist(t *testing.T) {
	c, err := testConfig(t, "10.1.2.0/24", "fd00:1::/64").validate()
	if err != nil {
		t.Fatal(err)
	}
	c.ReservedTCPPorts = []int32{22, 6443}
	for range 2 {
		if err := c.writeConflist(); err != nil {
			t.Fatal(err)
		}
	}
	list, err := libcni.LoadNetworkConf(c.ConfDir, "wp-nettest")
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Plugins) != 1 || list.Plugins[0].Network.Type != "bridge" || !list.Plugins[0].Network.Capabilities[portMappings] {
		t.Errorf("plugins %+v", list.Plugins)
	}
	var doc any
	if err := json.Unmarshal(list.Bytes, &doc); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"10.1.2.0/24"`, `"fd00:1::/64"`, `"::/0"`, `"wp-nettest"`, `"wp-nettest-hostports"`, `"reservedTCPPorts"`,
		"6443",
	} {
		if !strings.Contains(string(list.Bytes), want) {
			t.Errorf("the configuration has no %s:\n%s", want, list.Bytes)
		}
	}
	files, err := os.ReadDir(c.ConfDir)
	if err != nil || len(files) != 1 {
		t.Errorf("files %v (%v)", files, err)
	}
}

// The rule is one for each family, is replaced and not added to, and spares what
// stays in the cluster. All in a network namespace of its own.
func TestMasqueradeRule(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	c := testConfig(t, "10.1.2.0/24", "fd00:1::/64")
	c.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/32")}
	for range 2 {
		if err := masquerade(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rules := string(out)
	for _, want := range []string{
		"ip saddr 10.1.2.0/24 ip daddr != { 10.1.0.0/16, 224.0.0.0/4 } masquerade",
		"ip6 saddr fd00:1::/64 ip6 daddr != { fd00::/32, ff00::/8 } masquerade",
	} {
		if strings.Count(rules, want) != 1 {
			t.Errorf("%q is not there once:\n%s", want, rules)
		}
	}
	if err := linuxhost.RemoveTables(t.Context(), linuxhost.NamesOf("nettest2")); err != nil {
		t.Fatal(err)
	}
	if err := linuxhost.RemoveTables(t.Context(), c.Names); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("rules are left (%v):\n%s", err, out)
	}
}

// The first cluster's old values are set back by the last to leave, in whatever
// order they come and go. On a value that exists and that nobody minds.
func TestSysctlsAreSetBack(t *testing.T) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	const name = "net/ipv4/ip_forward"
	value := func() string {
		// /proc/sys/net shows the network namespace of the thread that opens it.
		data, err := os.ReadFile(sysctlRoot + name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(data))
	}
	path := filepath.Join(t.TempDir(), "record")
	wanted := func() map[string]string { return map[string]string{name: "1", "net/bridge/absent": "1"} }
	before := value()
	if before != "0" {
		if err := os.WriteFile(sysctlRoot+name, []byte("0"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, cluster := range []string{"one", "two", "one"} {
		if err := setSysctls(path, cluster, wanted()); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct{ leaves, want string }{{"one", "1"}, {"stranger", "1"}, {"two", "0"}, {"two", "0"}} {
		if err := restoreSysctls(path, step.leaves); err != nil {
			t.Fatal(err)
		}
		if v := value(); v != step.want {
			t.Errorf("after %s left, the value is %s, want %s", step.leaves, v, step.want)
		}
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the record is still there: %v", err)
	}
	if err := os.WriteFile(path, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := setSysctls(path, "one", wanted()); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged record: %v", err)
	}
}

// The kernel remembers half-closed connections longer once the node's rules are there, and no longer
// when the node is gone; a machine that has more keeps it.
func TestHalfClosedConnectionsAreRemembered(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("nft", "add table ip x; add chain ip x y { type nat hook postrouting priority 100; }; add rule ip x y masquerade").CombinedOutput(); err != nil {
		t.Fatalf("have the kernel follow connections: %v\n%s", err, out)
	}
	set := func(v string) {
		if err := os.WriteFile(sysctlRoot+halfClosed, []byte(v), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ before, with string }{{"60", "3600"}, {"7200", "7200"}} {
		set(c.before)
		path := filepath.Join(t.TempDir(), "record")
		for range 2 {
			if err := setSysctls(path, "one", wantedOfConnections()); err != nil {
				t.Fatal(err)
			}
		}
		if v := value(sysctlRoot + halfClosed); v != c.with {
			t.Errorf("%s s before are %s s with a node, want %s", c.before, v, c.with)
		}
		if err := restoreSysctls(path, "one"); err != nil {
			t.Fatal(err)
		}
		if v := value(sysctlRoot + halfClosed); v != c.before {
			t.Errorf("%s s before are %s s after the node", c.before, v)
		}
	}
}

// A bridge of before takes over the MTU that pods get now.
func TestMTUOfABridgeThatIsThere(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	c, err := testConfig(t, "10.1.2.0/24").validate()
	if err != nil {
		t.Fatal(err)
	}
	for _, mtu := range []int{0, 1450, 1350} {
		if c.MTU = mtu; ensureBridge(c) != nil {
			t.Fatal(ensureBridge(c))
		}
		l, err := netlink.LinkByName(c.Names.Bridge())
		if err != nil {
			t.Fatal(err)
		}
		if want := cmp.Or(mtu, 1500); l.Attrs().MTU != want {
			t.Errorf("the bridge's MTU is %d, want %d", l.Attrs().MTU, want)
		}
	}
}

// Addresses and host ports of sandboxes that nobody knows are given back; those of
// known ones, and those that were made meanwhile, stay.
func TestRecordsOfTheUnknown(t *testing.T) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	c := testConfig(t, "10.1.2.0/24")
	if err := os.MkdirAll(c.addresses(), 0o700); err != nil {
		t.Fatal(err)
	}
	put := func(ip, holder string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(c.addresses(), ip), []byte(holder), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("10.1.2.2", "known\r\neth0")
	put("10.1.2.3", "gone\r\neth0")
	put("10.1.2.4", "moved\r\neth0")
	put("last_reserved_ip.0", "10.1.2.4")
	put("lock", "")
	ports := `table ip wp-nettest-hostports {
		map hostports {
			type inet_proto . inet_service : ipv4_addr . inet_service
			elements = { tcp . 80 comment "known" : 10.1.2.2 . 80, tcp . 81 comment "gone" : 10.1.2.3 . 80 }
		}
		set hairpins { type ipv4_addr . ipv4_addr; elements = { 10.1.2.3 . 10.1.2.3 comment "gone" }; }
	}`
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(ports)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	release := FindRecords(c)
	put("10.1.2.4", "new\r\neth0") // its holder is gone, and the address somebody else's
	put("10.1.2.5", "newer\r\neth0")
	if err := release(t.Context(), func(id string) bool { return id == "known" }); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(c.addresses(), "10.*"))
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range files {
		files[i] = filepath.Base(f)
	}
	if got := strings.Join(files, " "); got != "10.1.2.2 10.1.2.4 10.1.2.5" {
		t.Errorf("addresses on record: %s", got)
	}
	out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
	if err != nil || strings.Contains(string(out), `"gone"`) || !strings.Contains(string(out), `"known"`) {
		t.Errorf("host ports (%v):\n%s", err, out)
	}
	// Nothing on record, and no table: nothing to do.
	if err := FindRecords(testConfig(t, "10.1.3.0/24"))(t.Context(), func(string) bool { return false }); err != nil {
		t.Error(err)
	}
}

// A pod's host ports are found in the configuration by which it was made: that of the bridge, or, of an earlier version, of a plugin
// of its own.
func TestHostPortsAreFoundInBothFormsOfTheConfiguration(t *testing.T) {
	c, err := testConfig(t, "10.1.2.0/24").validate()
	if err != nil {
		t.Fatal(err)
	}
	now, err := c.conflist()
	if err != nil {
		t.Fatal(err)
	}
	const before = `{"cniVersion":"1.0.0","name":"wp-nettest","plugins":[{"type":"bridge","ipam":{"type":"host-local"}},` +
		`{"type":"portmap","backend":"nftables","table":"wp-nettest-hostports","snat":true,"capabilities":{"portMappings":true}}]}`
	for _, data := range [][]byte{now, []byte(before)} {
		list, err := libcni.NetworkConfFromBytes(data)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, plugin := range list.Plugins {
			portmap, err := portmapOf(plugin)
			if err != nil {
				t.Fatal(err)
			}
			if portmap != nil {
				found = append(found, portmap.Network.Type+" "+string(portmap.Bytes))
			}
		}
		if len(found) != 1 || !strings.HasPrefix(found[0], "portmap ") || !strings.Contains(found[0], `"table":"wp-nettest-hostports"`) {
			t.Errorf("in %s\nhost ports are found as %q", data, found)
		}
	}
}
