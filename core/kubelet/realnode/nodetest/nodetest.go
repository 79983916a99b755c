// SPDX-License-Identifier: Apache-2.0

// Package nodetest gives tests a real node: containerd, CNI and runc under names
// of the test's own, beside whatever else the machine runs, and taken down again
// however the test ends. It needs root, runc and nft, as a real node does.
//
// A test's binary is also its node's containerd, so its TestMain calls Main.
package nodetest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/containerd"
	"github.com/wasmplane/wasmplane/core/kubelet/images"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode"
)

// Image holds one program, /testprogram; see its usage.
const Image = "wasmplane.local/testprogram:1"

const module = "github.com/wasmplane/wasmplane"

// Main is for TestMain: it becomes containerd where the process was started as
// that, and runs the tests otherwise.
func Main(m *testing.M) int {
	if containerd.MaybeRun() {
		return 0
	}
	code := m.Run()
	if dir, err := binaries(); err == nil {
		os.RemoveAll(dir)
	}
	return code
}

// binaries builds the node's helpers and the test program, once for a process.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "wp-bin-")
	if err != nil {
		return "", err
	}
	for name, build := range map[string][]string{
		"containerd-shim-runc-v2": {"-tags=no_grpc", module + "/cmd/wasmplane-shim"},
		"cni":                     {module + "/cmd/wasmplane-cni"},
		"wasm":                    {module + "/cmd/wasmplane-wasm"},
		"testprogram":             {module + "/core/kubelet/realnode/nodetest/testprogram"},
	} {
		args := append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, name)}, build...)
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			return dir, fmt.Errorf("build %s: %w: %s", name, err, out)
		}
	}
	return dir, nil
})

// Node is a real node for the time of a test.
type Node struct {
	*realnode.Node
	Config realnode.Config
}

// Config answers the configuration of a node for this test: a directory with a
// short path, names that nobody else has, and the node's removal at the end.
func Config(tb testing.TB) realnode.Config {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Fatal("a real node needs root; run these tests as root, on a machine with runc and nftables")
	}
	bin, err := binaries()
	if err != nil {
		tb.Fatal(err)
	}
	var id [4]byte
	if _, err := rand.Read(id[:]); err != nil {
		tb.Fatal(err)
	}
	// Not t.TempDir: sockets below it must have paths of at most 107 bytes.
	dir, err := os.MkdirTemp("", "wp-") //nolint:usetesting // see above
	if err != nil {
		tb.Fatal(err)
	}
	cfg := realnode.Config{
		Cluster: "t" + hex.EncodeToString(id[:]), Dir: dir,
		Containerd: containerd.Config{Helpers: os.DirFS(bin)},
		Log:        slog.New(slog.NewTextHandler(tb.Output(), nil)),
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("containerd's log ends:\n%s", tail(filepath.Join(dir, "log/containerd.log")))
		}
		// The test's context has ended by now, and the node must go all the same.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 2*time.Minute)
		defer cancel()
		if err := realnode.Remove(ctx, cfg, 0); err != nil {
			tb.Errorf("remove the node: %v", err)
			return // its directory may hold mounts
		}
		if err := os.RemoveAll(dir); err != nil {
			tb.Errorf("remove the node's directory: %v", err)
		}
	})
	return cfg
}

// Start starts a node with a network and the test image.
func Start(tb testing.TB) *Node {
	tb.Helper()
	return StartWith(tb, Config(tb))
}

// StartWith starts a node as configured.
func StartWith(tb testing.TB, cfg realnode.Config) *Node {
	tb.Helper()
	node, err := realnode.Start(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(node.Close)
	if err := node.SetPodCIDRs(tb.Context(), []netip.Prefix{PodCIDR(cfg.Cluster)}, nil); err != nil {
		tb.Fatal(err)
	}
	return Adopt(tb, node, cfg)
}

// Adopt makes a test's node of one that runs, and imports the test image.
func Adopt(tb testing.TB, node *realnode.Node, cfg realnode.Config) *Node {
	tb.Helper()
	n := &Node{Node: node, Config: cfg}
	n.importTestImage(tb)
	return n
}

// Program is the path of the test program on this machine.
func Program(tb testing.TB) string {
	tb.Helper()
	bin, err := binaries()
	if err != nil {
		tb.Fatal(err)
	}
	return filepath.Join(bin, "testprogram")
}

// PodCIDR is a range for a cluster, within 10.200.0.0/13: several tests at once
// rarely meet there.
func PodCIDR(cluster string) netip.Prefix {
	var h uint16
	for _, b := range []byte(cluster) {
		h = h*31 + uint16(b)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200 + byte(h>>8)%8, byte(h), 0}), 24)
}

func (n *Node) importTestImage(tb testing.TB) {
	tb.Helper()
	bin, err := binaries()
	if err != nil {
		tb.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(bin, "testprogram"))
	if err != nil {
		tb.Fatal(err)
	}
	archive, err := images.Program{
		Name: Image, Path: "/testprogram", Content: content, Arch: runtime.GOARCH,
	}.Archive()
	if err != nil {
		tb.Fatal(err)
	}
	file := filepath.Join(n.Config.Dir, "testprogram.tar")
	if err := os.WriteFile(file, archive, 0o600); err != nil {
		tb.Fatal(err)
	}
	store, err := images.Open(n.Socket(), "")
	if err != nil {
		tb.Fatal(err)
	}
	_, err = store.Import(tb.Context(), images.Source{File: file}, nil)
	if err := errors.Join(err, store.Close()); err != nil {
		tb.Fatal(err)
	}
}

// Sandbox is the configuration of a pod of that name, with its logs in the node's
// directory and its cgroup where the kubelet would put it.
func (n *Node) Sandbox(name string) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "test", Uid: name + "-uid"},
		Hostname:     name,
		LogDirectory: filepath.Join(n.Config.Dir, "pods", name),
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: n.Names().PodsCgroup() + "/" + name,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
			},
		},
	}
}

// Container is the configuration of a container that runs the test program.
func Container(name string, args ...string) *cri.ContainerConfig {
	return &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Image:    &cri.ImageSpec{Image: Image},
		Args:     args,
		LogPath:  name + ".log",
		Linux: &cri.LinuxContainerConfig{
			SecurityContext: &cri.LinuxContainerSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
				Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
			},
		},
	}
}

// Run starts a pod with one container that runs the test program.
func (n *Node) Run(tb testing.TB, name string, args ...string) (sandbox, container string) {
	tb.Helper()
	return n.RunWith(tb, n.Sandbox(name), Container("main", args...))
}

// RunWith starts a pod with one container as configured.
func (n *Node) RunWith(tb testing.TB, s *cri.PodSandboxConfig, c *cri.ContainerConfig) (sandbox, container string) {
	tb.Helper()
	ctx, e := tb.Context(), n.Engine()
	sandbox, err := e.RunSandbox(ctx, s, "")
	if err != nil {
		tb.Fatal(err)
	}
	container, err = e.CreateContainer(ctx, sandbox, c, s)
	if err != nil {
		tb.Fatal(err)
	}
	if err := e.StartContainer(ctx, container); err != nil {
		tb.Fatal(err)
	}
	return sandbox, container
}

// IP is the address of a sandbox.
func (n *Node) IP(tb testing.TB, sandbox string) netip.Addr {
	tb.Helper()
	st, err := n.Engine().SandboxStatus(tb.Context(), sandbox)
	if err != nil {
		tb.Fatal(err)
	}
	ip, err := netip.ParseAddr(st.GetNetwork().GetIp())
	if err != nil {
		tb.Fatalf("the address of the sandbox: %v", err)
	}
	return ip
}

// Exec runs the test program in a container and answers what it printed.
func (n *Node) Exec(tb testing.TB, container string, args ...string) (string, int32) {
	tb.Helper()
	out, stderr, code, err := n.Engine().ExecSync(tb.Context(), container, append([]string{"/testprogram"}, args...), 20)
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(string(out) + string(stderr)), code
}

// Eventually waits, on the machine's clock, for what other processes do.
func Eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-patience.C:
			tb.Fatalf("waited for a minute: %s", what)
		}
	}
}

func tail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 4096 {
		_, _ = f.Seek(-4096, io.SeekEnd)
	}
	data, _ := io.ReadAll(f)
	return string(data)
}
