// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// reportsWithin bounds what a report of a failure asks the control plane.
const reportsWithin = 15 * time.Second

// nobody is who runs what needs no rights at all.
const nobody = 65534

var ready = regexp.MustCompile(`(?m)^Ready in .*$`)

// Cluster is one cluster of a test: what is its own on this host, and the
// processes that the test started for it.
type Cluster struct {
	// Name decides on everything that is named on the host. Dir is the test's, Data
	// the data directory below it. The API server listens at Listen.
	Name, Dir, Data, Listen string
	// Binary is the wasmplane that runs.
	Binary string
	// Env is that of `up`: the surroundings' unless something else is set.
	Env []string
	// WorkDir is where `up` runs; "" = Dir.
	WorkDir string
	// AsNobody has `up` run without any rights, in Dir.
	AsNobody bool

	mu        sync.Mutex
	processes map[string]*Process
	up        *Process
	removed   bool
}

// New gives a cluster its name, its directory below parent and its port. It starts
// nothing. Remove it in the end.
func New(binary, parent string) (_ *Cluster, err error) {
	c := &Cluster{Binary: binary, processes: map[string]*Process{}}
	if c.Dir, err = os.MkdirTemp(parent, "c"); err != nil {
		return nil, err
	}
	if err := os.Chmod(c.Dir, 0o755); err != nil {
		return nil, err
	}
	c.Data = filepath.Join(c.Dir, "data")
	if c.Listen, err = FreeAddress(); err != nil {
		return nil, err
	}
	c.Name, err = ClusterName()
	return c, err
}

// NewFor is New for a test, which ends with the cluster removed from the host.
func NewFor(tb testing.TB, binary, parent string) *Cluster {
	tb.Helper()
	c, err := New(binary, parent)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Log(c.Report())
		}
		if err := c.Remove(); err != nil {
			tb.Errorf("the host is not as it was: %v", err)
		}
	})
	return c
}

// Kubeconfig is the administrator's.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Data, "kubeconfig") }

// Start starts a program that ends with the cluster; a name stands for the last
// process that was started under it.
func (c *Cluster) Start(name string, cmd *exec.Cmd) (*Process, error) {
	p, err := Start(cmd)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes[name] = p
	return p, nil
}

// Process is the one that was started under a name; nil = none was.
func (c *Cluster) Process(name string) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[name]
}

// Launch runs `wasmplane up` and does not wait until it is ready.
func (c *Cluster) Launch(flags ...string) (*Process, error) {
	cmd := exec.Command(c.Binary, append([]string{"up", "--data-dir", c.Data, "--cluster-name", c.Name, "--listen", c.Listen}, flags...)...)
	cmd.Dir, cmd.Env = cmp.Or(c.WorkDir, c.Dir), c.Env
	if c.AsNobody {
		cmd.Dir = c.Dir
		if err := errors.Join(os.MkdirAll(c.Data, 0o700), os.Chown(c.Data, nobody, nobody)); err != nil {
			return nil, err
		}
		cmd.Env = append(cmd.Environ(), "HOME="+c.Data)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	p, err := c.Start("up", cmd)
	c.up = p
	return p, err
}

// Up runs `wasmplane up` until it is ready, and answers how long that took.
func (c *Cluster) Up(flags ...string) (time.Duration, error) {
	began := time.Now()
	p, err := c.Launch(flags...)
	if err != nil {
		return 0, err
	}
	if _, err := p.AwaitLine(ready); err != nil {
		return 0, fmt.Errorf("wasmplane up: %w", err)
	}
	return time.Since(began), nil
}

// Stop ends the control plane as Ctrl-C does, and leaves a node's containers running.
func (c *Cluster) Stop() error {
	if c.up == nil {
		return nil
	}
	err := c.up.End(os.Interrupt)
	c.up = nil
	return err
}

// Kubectl runs kubectl as the administrator and answers what it prints. An error
// has what it complains of.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Binary, append([]string{"kubectl", "--kubeconfig", c.Kubeconfig()}, args...)...)
	cmd.Dir = c.Dir
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, complaints.String())
	}
	return out.String(), nil
}

// Config is how clients of the administrator's reach the cluster: over TLS like
// everybody's, and without a limit of their own.
func (c *Cluster) Config() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	return cfg, nil
}

// Client has connections of its own.
func (c *Cluster) Client() (*kubernetes.Clientset, error) {
	cfg, err := c.Config()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(cfg)
}

// Report is how the cluster's objects are, what the processes printed last, and the
// end of the cluster's log.
func (c *Cluster) Report() string {
	objects := c.objects()
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	b.WriteString(objects)
	for _, name := range slices.Sorted(maps.Keys(c.processes)) {
		fmt.Fprintf(&b, "[%s printed last]\n%s\n", name, Tail(c.processes[name].Output.String(), 60))
	}
	if log, err := os.ReadFile(filepath.Join(c.Data, "wasmplane.log")); err == nil {
		fmt.Fprintf(&b, "[wasmplane.log ends]\n%s\n", Tail(string(log), 80))
	}
	return b.String()
}

// objects are nodes and pods with the conditions that are not true, and the last
// events, as long as the control plane answers.
func (c *Cluster) objects() string {
	if c.up == nil {
		return ""
	}
	select {
	case <-c.up.Done():
		return ""
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), reportsWithin) //nolint:forbidigo // the test's context may have ended, which is what is reported
	defer cancel()
	var b strings.Builder
	const conditions = `jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}:{range .status.conditions[?(@.status!="True")]} {.type}={.status} {.reason} {.message};{end}{"\n"}{end}`
	for _, q := range []struct {
		title string
		lines int
		args  []string
	}{
		{"nodes and pods", 40, []string{"get", "nodes,pods", "-A", "-o", "wide"}},
		{"conditions that are not true", 40, []string{"get", "nodes,pods,deployments", "-A", "-o", conditions}},
		{"last events", 25, []string{"get", "events", "-A", "--sort-by=.metadata.creationTimestamp"}},
	} {
		out, err := c.Kubectl(ctx, append(q.args, "--request-timeout=5s")...)
		if err != nil {
			fmt.Fprintf(&b, "[%s: %v]\n", q.title, err)
			break // the others would wait as long
		}
		fmt.Fprintf(&b, "[%s]\n%s\n", q.title, Tail(out, q.lines))
	}
	return b.String()
}

// Remove ends the processes and takes the cluster off the host. What it finds left
// over it removes too, and answers it as an error.
func (c *Cluster) Remove() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.removed {
		return nil
	}
	c.removed = true
	var problems []error
	for name, p := range c.processes {
		if err := p.End(os.Interrupt); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
	}
	if _, err := os.Stat(filepath.Join(c.Data, "state.json")); err == nil {
		problems = append(problems, Execute(c.Binary, "down", "--purge", "--force", "--data-dir", c.Data))
	}
	if left := Leftovers(c.Name, c.Dir); left != nil {
		problems = append(problems, left)
		sweep(c.Name, c.Dir)
	}
	problems = append(problems, os.RemoveAll(c.Dir))
	err := errors.Join(problems...)
	if err == nil {
		ReturnName(c.Name)
	}
	return err
}
