package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/kubelet/containerd"
	"github.com/wasmplane/wasmplane/core/kubelet/machine"
)

const (
	readyWithin = 2 * time.Minute
	patience    = 5 * time.Minute
	nobody      = 65534
	helloImage  = "wasmplane.local/hello:1"
)

// built is what TestMain prepares.
var built struct {
	dir, wasmplane, root, hello string
	profiles                    string // empty: none are taken
}

func TestMain(m *testing.M) {
	os.Exit(prepareAndRun(m))
}

func prepareAndRun(m *testing.M) int {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "prepare the benchmarks:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(built.dir) }()
	return m.Run()
}

func prepare() (err error) {
	if os.Geteuid() != 0 {
		return errors.New("the benchmarks have real nodes and need root; `make bench` asks for it")
	}
	if built.root, err = filepath.Abs("../.."); err != nil {
		return err
	}
	if built.dir, err = os.MkdirTemp("", "wpbench"); err != nil {
		return err
	}
	// Closed to others is each data directory; the binary is for nobody too.
	if err := os.Chmod(built.dir, 0o755); err != nil {
		return err
	}
	if err := execute("make", "-s", "-C", built.root, "examples", "hello-image"); err != nil {
		return err
	}
	built.hello = filepath.Join(built.root, "bin", "images", "hello.tar")
	built.wasmplane = filepath.Join(built.dir, "wasmplane")
	source, err := binary()
	if err != nil {
		return err
	}
	// A copy: whoever builds meanwhile doesn't change what is measured.
	return execute("cp", source, built.wasmplane)
}

// binary is the path of the one to measure.
func binary() (string, error) {
	if built.profiles = os.Getenv("WASMPLANE_BENCH_PROFILE"); built.profiles != "" {
		to := filepath.Join(built.dir, "profiled")
		return to, execute("go", "build", "-o", to, "./profiled")
	}
	if given := os.Getenv("WASMPLANE_BIN"); given != "" {
		return given, nil
	}
	return filepath.Join(built.root, "bin", "wasmplane"), execute("make", "-s", "-C", built.root, "build")
}

func execute(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// cluster is one cluster under measurement: its names on this host and its process.
type cluster struct {
	t                       testing.TB
	name, dir, data, listen string
	asNobody, purged        bool
	flags                   []string
	profiles                string // where its profiles go

	cmd  *exec.Cmd
	out  *output
	done chan struct{}
}

// newCluster gives a cluster its name, directory and port, and removes it from the
// host when the measurement ends. It does not start it.
func newCluster(tb testing.TB, flags ...string) *cluster {
	tb.Helper()
	c := &cluster{t: tb, flags: flags}
	var err error
	if c.dir, err = os.MkdirTemp(built.dir, "c"); err != nil {
		tb.Fatal(err)
	}
	if err := os.Chmod(c.dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	c.data = filepath.Join(c.dir, "data")
	if c.listen, err = freeAddress(); err != nil {
		tb.Fatal(err)
	}
	if c.name, err = clusterName(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.purge)
	return c
}

// names that were given out by this run.
var names struct {
	sync.Mutex
	networks map[string]bool
	next     int
}

// clusterName is one whose networks no other cluster of this host has.
func clusterName() (string, error) {
	names.Lock()
	defer names.Unlock()
	if names.networks == nil {
		names.networks = map[string]bool{}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for range 500 {
		names.next++
		c := config.Default()
		c.Cluster.Name = fmt.Sprintf("b%dx%d", os.Getpid()%100000, names.next)
		if err := c.Complete(); err != nil {
			return "", err
		}
		_, pods, err := net.ParseCIDR(c.Cluster.PodCIDR)
		if err != nil {
			return "", err
		}
		taken := names.networks[c.Cluster.PodCIDR]
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && pods.Contains(n.IP) {
				taken = true
			}
		}
		if !taken {
			names.networks[c.Cluster.PodCIDR] = true
			return c.Cluster.Name, nil
		}
	}
	return "", errors.New("every network that a cluster's name can give is in use on this host")
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// start runs `wasmplane up` and answers how long it took to be ready.
func (c *cluster) start() time.Duration {
	c.t.Helper()
	args := append([]string{"up", "--data-dir", c.data, "--cluster-name", c.name, "--listen", c.listen}, c.flags...)
	c.cmd = exec.Command(built.wasmplane, args...)
	c.cmd.Dir = c.dir
	c.cmd.Env = []string{"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin", "HOME=" + c.dir}
	if built.profiles != "" {
		c.profiles = filepath.Join(built.profiles, fmt.Sprintf("%s-%d", strings.ReplaceAll(c.t.Name(), "/", "_"), names.next))
		c.cmd.Env = append(c.cmd.Env, "WASMPLANE_BENCH_PROFILE="+c.profiles)
	}
	c.out, c.done = &output{}, make(chan struct{})
	c.cmd.Stdout, c.cmd.Stderr = c.out, c.out
	// A group of its own, so that a signal to the test doesn't reach it first.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.asNobody {
		c.becomeNobody()
	}
	c.cmd.WaitDelay = 2 * time.Second
	began := time.Now()
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func(cmd *exec.Cmd, done chan struct{}) { // ends with the process
		defer close(done)
		_ = cmd.Wait()
	}(c.cmd, c.done)
	if err := c.awaitLine(regexp.MustCompile(`(?m)^Ready in .*$`)); err != nil {
		c.t.Fatalf("wasmplane up: %v", err)
	}
	return time.Since(began)
}

func (c *cluster) becomeNobody() {
	err := errors.Join(os.MkdirAll(c.data, 0o700), os.Chown(c.data, nobody, nobody))
	if err != nil {
		c.t.Fatal(err)
	}
	c.cmd.Env = append(c.cmd.Env, "HOME="+c.data)
	c.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
}

func (c *cluster) awaitLine(pattern *regexp.Regexp) error {
	deadline := time.NewTimer(readyWithin)
	defer deadline.Stop()
	for {
		text, more := c.out.next()
		if pattern.MatchString(text) {
			return nil
		}
		select {
		case <-more:
		case <-c.done:
			return fmt.Errorf("it ended, and had printed:\n%s", c.out.String())
		case <-deadline.C:
			return fmt.Errorf("no line matches %s within %s; it printed:\n%s", pattern, readyWithin, text)
		}
	}
}

// parts are the lines that tell when each part was ready.
func (c *cluster) parts() string {
	var b strings.Builder
	for l := range strings.Lines(c.out.String()) {
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
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Signal(os.Interrupt)
	timer := time.NewTimer(40 * time.Second)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		c.t.Error("the process did not end within 40s of Ctrl-C and is killed")
		_ = c.cmd.Process.Kill()
		<-c.done
	}
	c.cmd = nil
}

// purge leaves the host as it was.
func (c *cluster) purge() {
	if c.purged {
		return
	}
	c.purged = true
	if c.t.Failed() && c.out != nil {
		c.t.Logf("[wasmplane up printed]\n%s", c.out.String())
	}
	c.stop()
	if out, err := exec.Command(built.wasmplane, "down", "--purge", "--data-dir", c.data).CombinedOutput(); err != nil {
		c.t.Errorf("wasmplane down --purge: %v\n%s", err, out)
	}
	_ = os.RemoveAll(c.dir)
}

// kube is a client of the administrator's, over TLS like everybody's.
func (c *cluster) kube() kubernetes.Interface {
	c.t.Helper()
	cfg, err := client.FromKubeconfig(filepath.Join(c.data, "kubeconfig"), "bench")
	if err != nil {
		c.t.Fatal(err)
	}
	set, err := client.New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	return set.Kube
}

// socket is that of the node's containerd.
func (c *cluster) socket() string {
	return containerd.Config{Dir: datadir.Dir(c.data).Node(), Names: machine.NamesOf(c.name)}.Socket()
}

func (c *cluster) importHello() {
	c.t.Helper()
	if err := execute(built.wasmplane, "image", "import", built.hello, "--data-dir", c.data); err != nil {
		c.t.Fatal(err)
	}
}

// writeConfig writes a configuration for the cluster and has it used.
func (c *cluster) writeConfig(text string) {
	c.t.Helper()
	file := filepath.Join(c.dir, "config.yaml")
	text = strings.ReplaceAll(text, "$WASM", filepath.Join(built.root, "build", "wasm"))
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
	text, err := os.ReadFile(filepath.Join(built.root, "configs", "demo", "config.yaml"))
	if err != nil {
		tb.Fatal(err)
	}
	return plugins{"the demo's 4 plugins", strings.ReplaceAll(string(text), "../../build/wasm", "$WASM")}
}

// output keeps what a process prints, and wakes who waits for more.
type output struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{}
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more != nil {
		close(o.more)
		o.more = nil
	}
	return o.buf.Write(b)
}

// String is everything so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func (o *output) next() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = make(chan struct{})
	}
	return o.buf.String(), o.more
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
