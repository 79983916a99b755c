// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/kubelet/containerd"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/test/internal/harness"
)

const (
	patience   = 5 * time.Minute
	helloImage = "wasmplane.local/hello:1"
)

// built is what TestMain prepares.
var built struct {
	*harness.Build
	profiles string // empty: none are taken
}

func TestMain(m *testing.M) {
	os.Exit(prepareAndRun(m))
}

func prepareAndRun(m *testing.M) int {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "prepare the benchmarks:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(built.Dir) }()
	return m.Run()
}

func prepare() (err error) {
	if built.Build, err = harness.Prepare("wpbench"); err != nil {
		return err
	}
	if built.profiles = os.Getenv("WASMPLANE_BENCH_PROFILE"); built.profiles == "" {
		return nil
	}
	built.Binary = filepath.Join(built.Dir, "profiled")
	return harness.Execute("go", "build", "-o", built.Binary, "./profiled")
}

// cluster is one cluster under measurement.
type cluster struct {
	*harness.Cluster
	t        testing.TB
	flags    []string
	profiles string // where its profiles go
	starts   int
}

// newCluster gives a cluster its name, directory and port, and removes it from the
// host when the measurement ends. It does not start it.
func newCluster(tb testing.TB, flags ...string) *cluster {
	tb.Helper()
	c := &cluster{Cluster: harness.NewFor(tb, built.Binary, built.Dir), t: tb, flags: flags}
	c.Env = []string{"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin", "HOME=" + c.Dir}
	return c
}

// start runs `wasmplane up` and answers how long it took to be ready.
func (c *cluster) start() time.Duration {
	c.t.Helper()
	c.profileStart()
	took, err := c.Up(c.flags...)
	if err != nil {
		c.t.Fatal(err)
	}
	return took
}

// launch runs `wasmplane up` and does not wait for it.
func (c *cluster) launch() *harness.Process {
	c.t.Helper()
	c.profileStart()
	p, err := c.Launch(c.flags...)
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

// profileStart has the process that is started next write its profiles to a folder of its own, where they are asked for.
func (c *cluster) profileStart() {
	if built.profiles != "" {
		c.starts++
		c.profiles = filepath.Join(built.profiles, fmt.Sprintf("%s-%s-%d", strings.ReplaceAll(c.t.Name(), "/", "_"), c.Name, c.starts))
		c.Env = append(c.Env, "WASMPLANE_BENCH_PROFILE="+c.profiles) // the last one counts
	}
}

// pid is that of the control plane.
func (c *cluster) pid() int { return c.Process("up").PID() }

// parts are the lines that tell when each part was ready.
func (c *cluster) parts() string {
	var b strings.Builder
	for l := range strings.Lines(c.Process("up").Output.String()) {
		if after, ok := strings.CutPrefix(strings.TrimSpace(l), "ready: "); ok {
			f := strings.Fields(after)
			if b.Len() > 0 {
				b.WriteString(", ")
			}
			b.WriteString(strings.Join(f, " "))
		}
	}
	return b.String()
}

// stop ends the control plane and leaves a node's containerd running.
func (c *cluster) stop() {
	c.t.Helper()
	if err := c.Stop(); err != nil {
		c.t.Error(err)
	}
}

// purge leaves the host as it was.
func (c *cluster) purge() {
	c.t.Helper()
	if err := c.Remove(); err != nil {
		c.t.Errorf("the host is not as it was: %v", err)
	}
}

// kube is a client of the administrator's, over TLS like everybody's.
func (c *cluster) kube() kubernetes.Interface {
	c.t.Helper()
	kube, err := c.Client()
	if err != nil {
		c.t.Fatal(err)
	}
	return kube
}

// socket is that of the node's containerd.
func (c *cluster) socket() string {
	return containerd.Config{Dir: datadir.Dir(c.Data).Node(), Names: linuxhost.NamesOf(c.Name)}.Socket()
}

func (c *cluster) importHello() {
	c.t.Helper()
	if err := harness.Execute(built.Binary, "image", "import", built.Hello, "--data-dir", c.Data); err != nil {
		c.t.Fatal(err)
	}
}

// writeConfig writes a configuration for the cluster and has it used.
func (c *cluster) writeConfig(text string) {
	c.t.Helper()
	file := filepath.Join(c.Dir, "config.yaml")
	text = strings.ReplaceAll(text, "$WASM", filepath.Join(built.Root, "build", "wasm"))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
	c.flags = append(c.flags, "--config", file)
}

// plugins are a configuration that loads some; $WASM is the folder of their modules.
type plugins struct{ what, config string }

// demoPlugins are those of `make run`.
func demoPlugins(tb testing.TB) plugins {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(built.Root, "configs", "demo", "config.yaml"))
	if err != nil {
		tb.Fatal(err)
	}
	return plugins{"the demo's 4 plugins", strings.ReplaceAll(string(text), "../../build/wasm", "$WASM")}
}

// pause waits for work in other processes to settle.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
