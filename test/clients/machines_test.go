// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/netlab"
	"github.com/wasmplane/wasmplane/test/internal/harness"
)

var ready = regexp.MustCompile(`(?m)^Ready in .*$`)

// machine is a network namespace in which a worker of the cluster runs, with a data directory of its own.
type machine struct {
	*cluster
	name, data, namespace, server, token string
}

// startHere is a control plane with this machine as its node.
func startHere(t *testing.T) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this has a real node and needs root: `make clients` asks for it")
	}
	c := &cluster{harness.NewFor(t, harness.Binary(t), shortDir(t)), t}
	if _, err := c.Up("--node-name", "here", "--log-level", "warn"); err != nil {
		t.Fatal(err)
	}
	return c
}

// importHere gives an archive of images to this machine's node.
func (c *cluster) importHere(archive string) {
	c.t.Helper()
	if out, err := exec.Command(c.Binary, "image", "import", archive, "--data-dir", c.Data).CombinedOutput(); err != nil {
		c.t.Fatalf("import %s: %v\n%s", archive, err, out)
	}
}

// shortDir is a folder for clusters with nodes: paths of sockets are short.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "wpm") //nolint:usetesting // as said
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// startWithMachines is a control plane without nodes, and workers on machines of their own,
// which share a link with this one.
func startWithMachines(t *testing.T, names ...string) (*cluster, []*machine) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this has real nodes and needs root: `make clients` asks for it")
	}
	parent := shortDir(t)
	// The link outlives the cluster, whose report it carries.
	lab, h := netlab.New(t), fnv.New32a()
	_, _ = h.Write([]byte(lab.Name("")))
	// A network for measuring (RFC 2544) that no other test of this machine is likely to have.
	network, link := fmt.Sprintf("198.18.%d", h.Sum32()&0xff), fmt.Sprintf("cl%x", h.Sum32())
	ip(t, "link", "add", link, "type", "bridge")
	t.Cleanup(func() { ip(t, "link", "delete", link) })
	ip(t, "address", "add", network+".1/24", "dev", link)
	ip(t, "link", "set", link, "up")
	for _, name := range names {
		lab.Namespace(name)
	}
	c := &cluster{harness.NewFor(t, harness.Binary(t), parent), t}
	_, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		t.Fatal(err)
	}
	c.Listen = net.JoinHostPort(network+".1", port)
	if _, err := c.Up("--nodes", "none", "--log-level", "warn"); err != nil {
		t.Fatal(err)
	}
	var all []*machine
	for i, name := range names {
		m := &machine{c, name, filepath.Join(c.Dir, name), lab.Name(name), c.Listen, filepath.Join(c.Dir, "token-"+name)}
		end := fmt.Sprintf("%s%d", link, i)
		ip(t, "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", m.namespace)
		ip(t, "link", "set", end, "master", link, "up")
		ip(t, "-n", m.namespace, "address", "add", fmt.Sprintf("%s.%d/24", network, i+2), "dev", "eth0")
		ip(t, "-n", m.namespace, "link", "set", "eth0", "up")
		m.join()
		all = append(all, m)
	}
	c.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout", harness.Patience.String())
	t.Cleanup(func() { // before the machines leave
		if t.Failed() {
			t.Log(c.Report())
		}
	})
	return c, all
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Errorf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// in is a command that runs on the machine.
func (m *machine) in(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/run/netns/" + m.namespace}, args...)...)
}

// do runs a command on the machine.
func (m *machine) do(args ...string) {
	m.t.Helper()
	if out, err := m.in(args...).CombinedOutput(); err != nil {
		m.t.Fatalf("on %s, %s: %v\n%s", m.name, strings.Join(args, " "), err, out)
	}
}

// join makes the machine a worker; it leaves when the test ends.
func (m *machine) join() {
	m.t.Helper()
	token, err := exec.Command(m.Binary, "token", "create", "-q", "--data-dir", m.Data).Output()
	if err != nil {
		m.t.Fatal(err)
	}
	config := filepath.Join(m.Dir, "worker.yaml")
	for file, data := range map[string]string{
		m.token: string(token),
		config:  "apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\nnode: {logLinkDir: \"\"}\n",
	} {
		if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
			m.t.Fatal(err)
		}
	}
	m.t.Cleanup(func() {
		if err := m.in(m.Binary, "down", "--purge", "--force", "--data-dir", m.data).Run(); err != nil {
			m.t.Logf("machine %s: %v", m.name, err)
		}
	})
	m.launch("join", m.server, "--token-file", m.token, "--cluster-name", m.Name+m.name, "--node-name", m.name)
}

// launch starts the machine's wasmplane and waits until it is ready.
func (m *machine) launch(args ...string) {
	m.t.Helper()
	all := append([]string{m.Binary}, args...)
	p, err := m.Start(m.name, m.in(append(all, "--config", filepath.Join(m.Dir, "worker.yaml"), "--data-dir", m.data)...))
	if err != nil {
		m.t.Fatal(err)
	}
	if _, err := p.AwaitLine(ready); err != nil {
		m.t.Fatalf("machine %s: %v", m.name, err)
	}
}

// vanish cuts the machine off, and kills its wasmplane. Containers that it had go on, and nobody hears of them.
func (m *machine) vanish() {
	m.t.Helper()
	m.do("ip", "link", "set", "eth0", "down")
	if err := m.Process(m.name).End(os.Kill); err != nil {
		m.t.Fatal(err)
	}
	m.kubectl("wait", "--for=condition=Ready=Unknown", "node/"+m.name, "--timeout", harness.Patience.String())
}

// comeBack is the end of vanish.
func (m *machine) comeBack() {
	m.t.Helper()
	m.do("ip", "link", "set", "eth0", "up")
	m.launch("agent")
	m.kubectl("wait", "--for=condition=Ready", "node/"+m.name, "--timeout", harness.Patience.String())
}

func (m *machine) importImage(archive string) {
	m.t.Helper()
	m.do(m.Binary, "image", "import", archive, "--data-dir", m.data)
}
