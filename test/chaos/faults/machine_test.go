// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/netlab"
	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// readyLine is what a server or a worker prints when it serves.
var readyLine = regexp.MustCompile(`(?m)^Ready in .*$`)

// machine is a network namespace with a disk of its own, in which a server or a worker runs.
type machine struct {
	lab           netlab.Lab
	binary        string
	name, address string
	server        bool
	bare          bool   // a server without pods
	disk          string // where its file system is mounted
	data          string // below it
	port          string // of the API
	node          string // the node's name
	cluster       string // what it calls what it takes on the kernel that all share
	config        string
	kube          *kubernetes.Clientset // to its own API server

	process *harness.Process
}

// mode is the configuration's node.mode.
func (m *machine) mode() string {
	if m.bare {
		return "none"
	}
	return "real"
}

// in is a command that runs in the machine's network.
func (m *machine) in(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/run/netns/" + m.lab.Name(m.name)}, args...)...)
}

// do runs a command on the machine; what it printed is part of its error.
func (m *machine) do(args ...string) error {
	if out, err := m.in(args...).CombinedOutput(); err != nil {
		return fmt.Errorf("on %s, %s: %w\n%s", m.name, strings.Join(args, " "), err, out)
	}
	return nil
}

// launch starts the machine's wasmplane, and does not wait for it.
func (m *machine) launch(args ...string) (err error) {
	if len(args) == 0 {
		args = []string{"agent"}
		if m.server {
			args = []string{"up", "--listen", "0.0.0.0:" + m.port}
		}
	}
	args = append(args, "--config", m.config, "--data-dir", m.data)
	if args[0] != "agent" { // which knows them since it joined
		args = append(args, "--cluster-name", m.cluster, "--node-name", m.node)
	}
	m.process, err = harness.Start(m.in(append([]string{m.binary}, args...)...))
	return err
}

// start is launch until it is ready.
func (m *machine) start(args ...string) error {
	if err := m.launch(args...); err != nil {
		return err
	}
	if _, err := m.process.AwaitLine(readyLine); err != nil {
		return fmt.Errorf("machine %s: %w", m.name, err)
	}
	return nil
}

// kill is SIGKILL, and waits for the end.
func (m *machine) kill() error { return m.process.End(os.Kill) }

// again kills what runs and starts it.
func (m *machine) again() error { return errors.Join(m.kill(), m.start()) }

// refuses starts what must end by itself, and say why.
func (m *machine) refuses(pattern string) error {
	if err := m.launch(); err != nil {
		return err
	}
	timer := time.NewTimer(harness.Patience)
	defer timer.Stop()
	select {
	case <-m.process.Done():
	case <-timer.C:
		return errors.Join(fmt.Errorf("machine %s runs, and should have refused", m.name), m.kill())
	}
	return m.printed(pattern)
}

// printed is an error unless what the machine printed matches: one sentence, and no stack.
func (m *machine) printed(pattern string) error {
	text := m.process.Output.String()
	if !regexp.MustCompile(pattern).MatchString(text) || strings.Contains(text, "goroutine ") {
		return fmt.Errorf("machine %s ended and did not say %q, but\n%s", m.name, pattern, harness.Tail(text, 12))
	}
	return nil
}

// signal is for the process, which nsenter became.
func (m *machine) signal(sig syscall.Signal) error { return syscall.Kill(m.process.PID(), sig) }

// processes are those that name the machine's data directory on their command line or run a program below it, by what they run.
func (m *machine) processes(program string) (pids []int) {
	found, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range found {
		line, err := os.ReadFile(p + "/cmdline")
		if err != nil || len(line) == 0 {
			continue
		}
		words := strings.Split(string(line), "\x00")
		if filepath.Base(words[0]) == program && strings.Contains(string(line), m.data+"/") {
			pid, _ := strconv.Atoi(filepath.Base(p))
			pids = append(pids, pid)
		}
	}
	return pids
}

// children are the processes whose parent is one of pids, but for those of a name.
func children(pids []int, but string) (found []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range all {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		head, tail, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(tail)
		_, name, _ := strings.Cut(head, "(")
		if len(fields) < 2 || name == but {
			continue
		}
		for _, parent := range pids {
			if fields[1] == strconv.Itoa(parent) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
				found = append(found, pid)
			}
		}
	}
	return found
}

// signalAll signals processes, of which there must be one at least.
func signalAll(what string, pids []int, sig syscall.Signal) error {
	if len(pids) == 0 {
		return fmt.Errorf("there is no %s to send %s to", what, sig)
	}
	var problems []error
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// rules puts rules for packets into the machine's network; mend takes them out.
// Each is "HOOK RULE", for all packets that come (in), leave (out) or pass.
func (m *machine) rules(rules ...string) error {
	var b strings.Builder
	b.WriteString("table inet fault { ")
	for _, hook := range []string{"input", "output", "forward"} {
		fmt.Fprintf(&b, "chain %s { type filter hook %s priority -300; ", hook, hook)
		for _, r := range rules {
			if at, rule, _ := strings.Cut(r, " "); at == hook {
				b.WriteString(rule + "; ")
			}
		}
		b.WriteString("}; ")
	}
	return m.do("nft", b.String()+"}")
}

func (m *machine) mend() error { return m.do("nft", "delete", "table", "inet", "fault") }

// incoming and outgoing are the rules that stop what comes from and goes to a link and matches.
func incoming(match string) []string {
	return []string{"input iifname eth0 " + match + " drop", "forward iifname eth0 " + match + " drop"}
}

func outgoing(match string) []string {
	return []string{"output oifname eth0 " + match + " drop", "forward oifname eth0 " + match + " drop"}
}

// mount gives the machine a file system of its own on a file.
func (m *machine) mount(dir string) error {
	file := filepath.Join(dir, "disk-"+m.name+".img")
	m.disk = filepath.Join(dir, "disk-"+m.name)
	m.data = filepath.Join(m.disk, "data")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	// It takes what is written to it.
	if err := errors.Join(f.Truncate(2<<30), f.Close(), os.Mkdir(m.disk, 0o755)); err != nil {
		return err
	}
	return errors.Join(harness.Execute("mkfs.ext4", "-q", "-m", "0", "-N", "16384", file),
		harness.Execute("mount", "-o", "loop", file, m.disk))
}

// remove takes what the machine has off the host.
func (m *machine) remove() error {
	var problems []error
	if m.process != nil {
		_ = m.signal(syscall.SIGCONT)
		problems = append(problems, m.process.End(os.Interrupt))
	}
	if _, err := os.Stat(m.data); err == nil {
		problems = append(problems, m.do(m.binary, "down", "--purge", "--force", "--data-dir", m.data))
	}
	return errors.Join(append(problems, harness.Execute("umount", m.disk))...)
}

// healthy asks the machine's API server.
func (m *machine) healthy(ctx context.Context) error {
	one, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	if err := m.kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(one).Error(); err != nil {
		return fmt.Errorf("server %s: %w", m.name, err)
	}
	return nil
}
