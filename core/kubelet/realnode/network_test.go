// SPDX-License-Identifier: Apache-2.0

package realnode_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode/nodetest"
	"github.com/wasmplane/wasmplane/core/run"
)

// Pods reach each other and the node reaches them, each seen under its own address.
func TestPodNetwork(t *testing.T) {
	node := nodetest.Start(t)
	web, _ := node.Run(t, "web", "serve", ":80")
	client, container := node.Run(t, "client", "serve", ":80")
	webIP, clientIP := node.IP(t, web), node.IP(t, client)
	if webIP == clientIP {
		t.Fatalf("both pods have the address %s", webIP)
	}
	waitServed(t, fmt.Sprintf("http://%s/", webIP))
	out, code := node.Exec(t, container, "fetch", fmt.Sprintf("http://%s/from-pod", webIP))
	if code != 0 || !strings.HasPrefix(out, "web /from-pod "+clientIP.String()+":") {
		t.Errorf("pod to pod: exit code %d, %q; the client's address should be %s", code, out, clientIP)
	}
	// An address is given back and may be had again.
	if err := node.Engine().StopSandbox(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	if err := node.Engine().StopSandbox(t.Context(), web); err != nil {
		t.Errorf("stopping twice: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(node.Config.Dir, "net/addresses/*/10.*"))
	if err != nil || len(left) != 1 {
		t.Errorf("addresses on record: %q (%v), want the client's alone", left, err)
	}
}

// What leaves the cluster carries the node's address.
func TestMasquerade(t *testing.T) {
	node := nodetest.Start(t)
	_, container := node.Run(t, "client", "serve", ":80")
	// A network beyond the node: a namespace on a link of its own, which knows no
	// route back to pods.
	outside := beyond(t)
	out, code := node.Exec(t, container, "fetch", "http://"+outside.address+"/")
	if code != 0 || !strings.Contains(out, " "+outside.nodeAddress+":") {
		t.Errorf("the world sees %q (exit code %d), want the node's address %s", out, code, outside.nodeAddress)
	}
}

type world struct{ address, nodeAddress string }

// beyond makes a network namespace with a web server, on a link to this machine.
func beyond(t *testing.T) world {
	t.Helper()
	name := fmt.Sprintf("wpw%d", os.Getpid()%100000)
	w := world{address: "198.51.100.2", nodeAddress: "198.51.100.1"}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	run("netns", "add", name)
	run("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", name).Run() })
	run("addr", "add", w.nodeAddress+"/24", "dev", name)
	run("link", "set", name, "up")
	run("-n", name, "addr", "add", w.address+"/24", "dev", "eth0")
	run("-n", name, "link", "set", "eth0", "up")
	server := exec.Command("ip", "netns", "exec", name, nodetest.Program(t), "serve", ":80")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	waitServed(t, "http://"+w.address+"/")
	return w
}

// A host port leads to the pod from the node's address, from localhost, and from
// the pod itself; it is free again when the pod is gone.
func TestHostPort(t *testing.T) {
	node := nodetest.Start(t)
	port := freePort(t)
	s := node.Sandbox("web")
	s.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 80, HostPort: port}}
	sandbox, container := node.RunWith(t, s, nodetest.Container("main", "serve", ":80"))
	bridge := bridgeAddress(t, node.Names())
	waitServed(t, fmt.Sprintf("http://%s/", node.IP(t, sandbox)))
	for _, from := range []string{"127.0.0.1", bridge} {
		if body, err := get(t, fmt.Sprintf("http://%s:%d/x", from, port)); err != nil || !strings.HasPrefix(body, "web /x") {
			t.Errorf("host port at %s: %q (%v)", from, body, err)
		}
	}
	if out, code := node.Exec(t, container, "fetch", fmt.Sprintf("http://%s:%d/self", bridge, port)); code != 0 || !strings.HasPrefix(out,
		"web /self") {
		t.Errorf("a pod at its own host port: exit code %d, %q", code, out)
	}
	// The next pod with that port, while the first one's rules may still be there.
	if err := node.Engine().StopSandbox(t.Context(), sandbox); err != nil {
		t.Fatal(err)
	}
	if _, err := get(t, fmt.Sprintf("http://127.0.0.1:%d/", port)); err == nil {
		t.Error("the host port leads somewhere after its pod is gone")
	}
	s = node.Sandbox("web2")
	s.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 80, HostPort: port, HostIp: "127.0.0.1"}}
	second, _ := node.RunWith(t, s, nodetest.Container("main", "serve", ":80"))
	waitServed(t, fmt.Sprintf("http://%s/", node.IP(t, second)))
	if body, err := get(t, fmt.Sprintf("http://127.0.0.1:%d/", port)); err != nil || !strings.HasPrefix(body, "web2 /") {
		t.Errorf("host port of the next pod: %q (%v)", body, err)
	}
	if _, err := get(t, fmt.Sprintf("http://%s:%d/", bridge, port)); err == nil {
		t.Error("a host port with a hostIP answers at another address")
	}
}

// A firewall that is started again takes all rules of the machine away. Ours come back, and
// with them host ports of pods that run on.
func TestRulesThatOthersTakeAwayComeBack(t *testing.T) {
	cfg := nodetest.Config(t)
	cfg.CheckNetwork = 50 * time.Millisecond
	node := nodetest.StartWith(t, cfg)
	port := freePort(t)
	s := node.Sandbox("web")
	s.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 80, HostPort: port}}
	sandbox, _ := node.RunWith(t, s, nodetest.Container("main", "serve", ":80"))
	waitServed(t, fmt.Sprintf("http://%s/", node.IP(t, sandbox)))
	tables := [][]string{{"inet", node.Names().Table("node")}, {"ip", node.Names().Table("hostports")}}
	for _, table := range tables {
		if out, err := exec.Command("nft", "delete", "table", table[0], table[1]).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	at := fmt.Sprintf("http://127.0.0.1:%d/", port)
	if body, err := get(t, at); err == nil {
		t.Fatalf("without rules the host port answers %q", body)
	}
	ctx, cancel := context.WithCancel(t.Context())
	supervised := run.Go("node", func() error { return node.Node.Run(ctx) })
	defer func() { cancel(); <-supervised }()
	nodetest.Eventually(t, "the host port leads to its pod again", func() bool {
		body, err := get(t, at)
		return err == nil && strings.HasPrefix(body, "web /")
	})
	out, err := exec.Command("nft", "list", "table", tables[0][0], tables[0][1]).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "masquerade") {
		t.Errorf("pods' way out (%v):\n%s", err, out)
	}
}

// Both families at once.
func TestDualStack(t *testing.T) {
	cfg := nodetest.Config(t)
	node, err := realnode.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(node.Close)
	if err := node.Engine().Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "NetworkReady=false") {
		t.Errorf("before it has a pod range the node says: %v", err)
	}
	six := netip.MustParsePrefix("fd00:77:1::/112")
	if err := node.SetPodCIDRs(t.Context(), []netip.Prefix{nodetest.PodCIDR(cfg.Cluster), six}, nil); err != nil {
		t.Fatal(err)
	}
	n := nodetest.Adopt(t, node, cfg)
	nodetest.Eventually(t, "the network is ready", func() bool { return node.Engine().Ready(t.Context()) == nil })
	sandbox, _ := n.Run(t, "web", "serve", ":80")
	st, err := node.Engine().SandboxStatus(t.Context(), sandbox)
	if err != nil {
		t.Fatal(err)
	}
	more := st.GetNetwork().GetAdditionalIps()
	if len(more) != 1 || !six.Contains(netip.MustParseAddr(more[0].Ip)) {
		t.Fatalf("additional addresses: %v, want one of %s", more, six)
	}
	waitServed(t, fmt.Sprintf("http://[%s]/", more[0].Ip))
}

// Removing one cluster leaves no trace of it, and another cluster on the same
// machine as it was.
func TestRemoveLeavesNothingAndNobodyElse(t *testing.T) {
	neighbour := nodetest.Start(t)
	other, _ := neighbour.Run(t, "web", "serve", ":80")
	node := nodetest.Start(t)
	s := node.Sandbox("web")
	s.PortMappings = []*cri.PortMapping{{Protocol: cri.Protocol_TCP, ContainerPort: 80, HostPort: freePort(t)}}
	_, _ = node.RunWith(t, s, nodetest.Container("main", "serve", ":80"))
	_, _ = node.Run(t, "stubborn", "stubborn")
	if traces(t, node) == "" {
		t.Fatal("a running node leaves no traces: the test looks in the wrong places")
	}
	node.Close()
	if err := realnode.Remove(t.Context(), node.Config, 1); err != nil {
		t.Fatal(err)
	}
	if left := traces(t, node); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
	if err := realnode.Remove(t.Context(), node.Config, 1); err != nil {
		t.Errorf("removing twice: %v", err)
	}
	waitServed(t, fmt.Sprintf("http://%s/", neighbour.IP(t, other)))
	// The images are still there, so the next start needs nothing.
	again := nodetest.StartWith(t, node.Config)
	_, _ = again.Run(t, "web", "serve", ":80")
}

// A node whose containerd was killed, with its pods running, is removed all the same.
func TestRemoveWithoutContainerd(t *testing.T) {
	node := nodetest.Start(t)
	s := node.Sandbox("elsewhere")
	s.Linux.CgroupParent = "" // a cgroup that is not below ours
	_, _ = node.RunWith(t, s, nodetest.Container("main", "serve", ":80"))
	node.Close()
	if err := linuxhost.KillBelow(t.Context(), linuxhost.Names{ID: strings.TrimPrefix(node.Names().RuntimeCgroup(), "/")}, nil); err != nil {
		t.Fatal(err)
	}
	if err := realnode.Remove(t.Context(), node.Config, 0); err != nil {
		t.Fatal(err)
	}
	if left := traces(t, node); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// traces names everything on the machine that belongs to a node.
func traces(t *testing.T, n *nodetest.Node) string {
	t.Helper()
	var found []string
	note := func(what string, err error) {
		if err != nil {
			t.Fatal(err)
		}
		if what = strings.TrimSpace(what); what != "" {
			found = append(found, what)
		}
	}
	mounts, err := linuxhost.MountsBelow(n.Config.Dir)
	note(strings.Join(mounts, "\n"), err)
	cgroups, err := filepath.Glob("/sys/fs/cgroup/*" + n.Names().Cgroup())
	note(strings.Join(cgroups, "\n"), err)
	if _, err := netlink.LinkByName(n.Names().Bridge()); err == nil {
		note("link "+n.Names().Bridge(), nil)
	}
	tables, err := exec.Command("nft", "list", "tables").Output()
	if strings.Contains(string(tables), n.Names().ID+"-") {
		note(string(tables), err)
	}
	results, err := filepath.Glob("/var/lib/cni/results/" + n.Names().Network() + "-*")
	note(strings.Join(results, "\n"), err)
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	note("", err)
	for _, p := range procs {
		if line, _ := os.ReadFile(p); strings.Contains(string(line), n.Config.Dir+"/") {
			note(strings.ReplaceAll(string(line), "\x00", " "), nil)
		}
	}
	return strings.Join(found, "\n")
}

func bridgeAddress(t *testing.T, n linuxhost.Names) string {
	t.Helper()
	link, err := netlink.LinkByName(n.Bridge())
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil || len(addrs) != 1 {
		t.Fatalf("the bridge has addresses %v (%v)", addrs, err)
	}
	return addrs[0].IP.String()
}

// freePort is one that nobody listens on now.
func freePort(t *testing.T) int32 {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatal(l.Addr())
	}
	return int32(addr.Port)
}

func get(t *testing.T, url string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	// A connection for each request: what is kept alive would go on working after
	// its rule is gone.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return string(body), err
}

func waitServed(t *testing.T, url string) {
	t.Helper()
	nodetest.Eventually(t, url+" answers", func() bool { _, err := get(t, url); return err == nil })
}
