package story

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

const (
	// readyWithin bounds a start, patience everything else that a script awaits.
	readyWithin = 90 * time.Second
	patience    = 90 * time.Second
	pause       = 200 * time.Millisecond
	nobody      = 65534
)

// stage is one script's cluster: its names on this host, and the processes that
// the script started.
type stage struct {
	cluster, dir, data, listen string

	mu        sync.Mutex
	processes map[string]*process
}

// newStage gives a script its directory, name and port, and cleans up behind it.
func newStage(e *testscript.Env) error {
	s := &stage{processes: map[string]*process{}}
	var err error
	if s.dir, err = os.MkdirTemp(built.dir, "s"); err != nil {
		return err
	}
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return err
	}
	s.data = filepath.Join(s.dir, "data")
	if s.listen, err = freeAddress(); err != nil {
		return err
	}
	if s.cluster, err = clusterName(); err != nil {
		return err
	}
	second, err := freeAddress()
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"DATA2": filepath.Join(s.dir, "data2"), "SOCKETS": s.dir, "CONFIGS": filepath.Join(built.root, "configs"),
		"DATA": s.data, "CLUSTER": s.cluster, "LISTEN": s.listen, "LISTEN2": second,
		"KUBECONFIG": filepath.Join(s.data, "kubeconfig"), "HOME": e.WorkDir, "WASMPLANE": built.wasmplane,
		"WASM": filepath.Join(built.root, "build", "wasm"), "HELLO": built.hello, "TOOLBOX": built.toolbox,
		// Which pods there are, with which containers, since when.
		"WHO":  `{range .items[*]}{.metadata.name} {.metadata.uid} {.status.podIP} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].state.running.startedAt}{"\n"}{end}`,
		"PATH": os.Getenv("PATH") + ":/usr/sbin:/sbin",
	} {
		e.Setenv(name, value)
	}
	e.Values[stageKey{}] = s
	e.Defer(func() { s.leave(e.T()) })
	return nil
}

// names that were given out to the scripts of this run.
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
		c.Cluster.Name = fmt.Sprintf("s%dx%d", os.Getpid()%100000, names.next)
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

// leave ends what the script left running, and checks that the host is clean.
func (s *stage) leave(t testscript.T) {
	failed := t.(interface{ Failed() bool }).Failed()
	s.mu.Lock()
	running := s.processes
	s.mu.Unlock()
	if failed {
		for name, p := range running {
			t.Log(fmt.Sprintf("[%s printed]\n%s", name, tail(p.out.String(), 60)))
		}
		if log, err := os.ReadFile(filepath.Join(s.data, "wasmplane.log")); err == nil {
			t.Log("[wasmplane.log ends]\n" + tail(string(log), 80))
		}
	}
	for _, p := range running {
		p.end(os.Interrupt, 20*time.Second)
	}
	var problems []error
	if _, err := os.Stat(filepath.Join(s.data, "state.json")); err == nil {
		if out, err := exec.Command(built.wasmplane, "down", "--purge", "--data-dir", s.data).CombinedOutput(); err != nil {
			problems = append(problems, fmt.Errorf("wasmplane down --purge: %w\n%s", err, out))
		}
	}
	problems = append(problems, leftovers(s.cluster, s.dir))
	if err := errors.Join(problems...); err != nil {
		t.Log("[the host is not as it was]\n" + err.Error())
		sweep(s.cluster, s.dir)
		if !failed {
			t.FailNow()
		}
	}
	_ = os.RemoveAll(s.dir)
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// process is one that a script started.
type process struct {
	cmd  *exec.Cmd
	out  output
	done chan struct{}
	err  error
}

// output keeps what a process prints, and wakes who waits for a line.
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

// next is what there is, and a channel that is closed when there is more.
func (o *output) next() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = make(chan struct{})
	}
	return o.buf.String(), o.more
}

func (s *stage) launch(ts *testscript.TestScript, asNobody bool, name string, program string, args ...string) *process {
	cmd := exec.Command(program, args...)
	cmd.Dir = ts.MkAbs(".")
	for _, name := range []string{"HOME", "KUBECONFIG", "PATH", "WORK", "DATA"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	// A group of its own, so that a signal to the test doesn't reach it first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if asNobody {
		ts.Check(os.MkdirAll(s.data, 0o700))
		ts.Check(os.Chown(s.data, nobody, nobody))
		cmd.Dir = s.dir
		cmd.Env = append(cmd.Env, "HOME="+s.data)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	cmd.WaitDelay = 2 * time.Second
	ts.Check(cmd.Start())
	go func() { // ends with the process
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes[name] = p
	return p
}

// awaitLine waits for a line, or for the end of the process.
func (p *process) awaitLine(pattern *regexp.Regexp, within time.Duration) ([]string, error) {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for {
		text, more := p.out.next()
		if found := pattern.FindStringSubmatch(text); found != nil {
			return found, nil
		}
		select {
		case <-more:
		case <-p.done:
			if found := pattern.FindStringSubmatch(p.out.String()); found != nil {
				return found, nil
			}
			return nil, errors.Join(fmt.Errorf("it ended and had printed:\n%s", p.out.String()), p.err)
		case <-deadline.C:
			return nil, fmt.Errorf("no line matches %s within %s; it printed:\n%s", pattern, within, text)
		}
	}
}

// end signals the process, and kills it when it takes too long.
func (p *process) end(sig os.Signal, within time.Duration) error {
	_ = p.cmd.Process.Signal(sig)
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("it did not end within %s of %s", within, sig)
	}
}

func (s *stage) up(ts *testscript.TestScript, neg bool, args []string) {
	asNobody := len(args) > 0 && args[0] == "--as-nobody"
	if asNobody {
		args = args[1:]
	}
	flags := []string{"up", "--data-dir", s.data, "--cluster-name", s.cluster, "--listen", s.listen, "--log-level", "debug"}
	p := s.launch(ts, asNobody, "up", built.wasmplane, append(flags, args...)...)
	_, err := p.awaitLine(regexp.MustCompile(`(?m)^Ready in .*$`), readyWithin)
	said := p.out.String()
	switch {
	case neg && err == nil:
		ts.Fatalf("it runs, and should have refused")
	case neg:
		_, _ = io.WriteString(ts.Stderr(), said)
	case err != nil:
		ts.Fatalf("wasmplane up: %v", err)
	default:
		_, _ = io.WriteString(ts.Stdout(), said)
	}
}

func (s *stage) start(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: start NAME 'READY' PROGRAM [ARGS]")
	}
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	program := args[2]
	if program == "wasmplane" {
		program = built.wasmplane
	}
	p := s.launch(ts, false, args[0], program, args[3:]...)
	found, err := p.awaitLine(pattern, readyWithin)
	if err != nil {
		ts.Fatalf("%s: %v", args[0], err)
	}
	for i, name := range pattern.SubexpNames() {
		if name != "" {
			ts.Setenv(name, found[i])
		}
	}
}

func (s *stage) process(ts *testscript.TestScript, args []string) *process {
	if len(args) != 1 {
		ts.Fatalf("expected the name of a process")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.processes[args[0]]
	if p == nil {
		ts.Fatalf("no process %q was started", args[0])
	}
	return p
}

func (s *stage) crash(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(s.process(ts, args).end(os.Kill, patience))
}

func (s *stage) interrupt(ts *testscript.TestScript, _ bool, args []string) {
	p := s.process(ts, args)
	ts.Check(p.end(os.Interrupt, 40*time.Second))
	_, _ = io.WriteString(ts.Stdout(), p.out.String())
	if p.err != nil {
		ts.Fatalf("%s: %v", args[0], p.err)
	}
}

func (s *stage) run(ts *testscript.TestScript, neg bool, args []string) {
	err := ts.Exec(built.wasmplane, args...)
	switch {
	case err == nil && neg:
		ts.Fatalf("it succeeded, and should have failed")
	case err != nil && !neg:
		ts.Fatalf("wasmplane %s: %v", strings.Join(args, " "), err)
	}
}

func (s *stage) kubectl(ts *testscript.TestScript, neg bool, args []string) {
	s.run(ts, neg, append([]string{"kubectl"}, args...))
}

func (s *stage) wasmplane(ts *testscript.TestScript, neg bool, args []string) { s.run(ts, neg, args) }

func (s *stage) apply(ts *testscript.TestScript, neg bool, args []string) {
	s.fill(ts, false, args)
	for _, file := range args {
		s.run(ts, neg, []string{"kubectl", "apply", "-f", file})
	}
}

// fill replaces the variables in files.
func (s *stage) fill(ts *testscript.TestScript, _ bool, files []string) {
	for _, file := range files {
		text := os.Expand(ts.ReadFile(file), ts.Getenv)
		ts.Check(os.WriteFile(ts.MkAbs(file), []byte(text), 0o600))
	}
}

// replace OLD NEW FILE is how an editor saves: beside, and renamed.
func (s *stage) replace(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: replace OLD NEW FILE")
	}
	text := ts.ReadFile(args[2])
	if !strings.Contains(text, args[0]) {
		ts.Fatalf("%s does not contain %q", args[2], args[0])
	}
	file := ts.MkAbs(args[2])
	ts.Check(os.WriteFile(file+".next", []byte(strings.ReplaceAll(text, args[0], args[1])), 0o600))
	ts.Check(os.Rename(file+".next", file))
}

// assemble makes a module of WebAssembly text.
func (s *stage) assemble(ts *testscript.TestScript, _ bool, args []string) {
	module, err := wat.Assemble(ts.ReadFile(args[0]))
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), module, 0o600))
}

// awaitTrace waits for a step in a trace: components send what they did a little later.
func (s *stage) awaitTrace(ts *testscript.TestScript, neg bool, args []string) {
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	last, ok := until(func() (bool, string) {
		cmd := exec.Command(built.wasmplane, append([]string{"trace", "--kubeconfig", ts.Getenv("KUBECONFIG")}, args[1:]...)...)
		out, _ := cmd.CombinedOutput()
		return pattern.Match(out) != neg, string(out)
	})
	_, _ = io.WriteString(ts.Stdout(), last)
	if !ok {
		ts.Fatalf("waited %s for %s", patience, args[0])
	}
}

func (s *stage) setFromStdout(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: env-from-stdout VARIABLE")
	}
	value := strings.TrimSpace(ts.ReadFile("stdout"))
	if value == "" {
		ts.Fatalf("nothing was printed")
	}
	ts.Setenv(args[0], value)
}

// containers counts the containers of the node's pods, by what containerd runs.
func (s *stage) containers(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	last, ok := until(func() (bool, string) {
		found := containersOf(s.data)
		return len(found) == want, strings.Join(found, "\n")
	})
	if !ok {
		ts.Fatalf("waited for %d containers, there are:\n%s", want, last)
	}
}

// until tries every now and then; what it waits for happens in other processes.
func until(try func() (bool, string)) (string, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		ok, last := try()
		if ok {
			return last, true
		}
		select {
		case <-ctx.Done():
			return last, false
		case <-tick.C:
		}
	}
}

func (s *stage) await(ts *testscript.TestScript, neg bool, args []string) {
	count := -1
	if len(args) > 0 && strings.HasPrefix(args[0], "-count=") {
		var err error
		count, err = strconv.Atoi(strings.TrimPrefix(args[0], "-count="))
		ts.Check(err)
		args = args[1:]
	}
	if len(args) < 2 {
		ts.Fatalf("usage: await [-count=N] 'PATTERN' KUBECTL-ARGS")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	last, ok := until(func() (bool, string) {
		cmd := exec.Command(built.wasmplane, append([]string{"kubectl"}, args[1:]...)...)
		cmd.Env = []string{"HOME=" + ts.Getenv("HOME"), "KUBECONFIG=" + ts.Getenv("KUBECONFIG"), "PATH=" + ts.Getenv("PATH")}
		cmd.Dir = ts.MkAbs(".")
		out, err := cmd.CombinedOutput()
		if neg {
			return err == nil && !pattern.Match(out), string(out)
		}
		if count >= 0 {
			return err == nil && len(pattern.FindAll(out, -1)) == count, string(out)
		}
		return pattern.Match(out), string(out)
	})
	_, _ = io.WriteString(ts.Stdout(), last)
	if !ok {
		ts.Fatalf("kubectl %s: waited %s for %s", strings.Join(args[1:], " "), patience, args[0])
	}
}

func (s *stage) awaitHTTP(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: await-http 'PATTERN' URL")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	client := &http.Client{Timeout: 5 * time.Second}
	last, ok := until(func() (bool, string) {
		said, err := fetch(client, args[1])
		if err != nil {
			said = err.Error()
		}
		return pattern.MatchString(said) != neg, said
	})
	_, _ = io.WriteString(ts.Stdout(), last)
	if !ok {
		ts.Fatalf("%s: waited %s for %s, last: %s", args[1], patience, args[0], last)
	}
}

func fetch(client *http.Client, url string) (string, error) {
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func (s *stage) awaitLog(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: await-log 'PATTERN' [NAME]")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	last, ok := until(func() (bool, string) {
		text := ""
		if len(args) > 1 {
			text = s.process(ts, args[1:]).out.String()
		} else if log, err := os.ReadFile(filepath.Join(s.data, "wasmplane.log")); err == nil {
			text = string(log)
		}
		if at := pattern.FindStringIndex(text); at != nil {
			return true, text[at[0]:at[1]]
		}
		return false, tail(text, 10)
	})
	_, _ = io.WriteString(ts.Stdout(), last)
	if !ok {
		ts.Fatalf("waited %s for %s", patience, args[0])
	}
}

func (s *stage) down(ts *testscript.TestScript, neg bool, args []string) {
	s.run(ts, neg, append([]string{"down", "--purge", "--data-dir", s.data}, args...))
	if _, err := os.Stat(s.data); !errors.Is(err, os.ErrNotExist) {
		ts.Fatalf("the data directory is still there (%v)", err)
	}
	ts.Check(leftovers(s.cluster, s.data))
}
