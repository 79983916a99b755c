// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// stage is one script's cluster, and the processes that the script started.
type stage struct {
	*harness.Cluster
	disk string // a file system of its own, with the data directory; "": the machine's
}

// newStage gives a script its directory, name and port, and cleans up behind it.
func newStage(e *testscript.Env) error {
	c, err := harness.New(built.Binary, built.Dir)
	if err != nil {
		return err
	}
	s := &stage{Cluster: c}
	second, err := harness.FreeAddress()
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"DATA2": filepath.Join(s.Dir, "data2"), "SOCKETS": s.Dir, "CONFIGS": filepath.Join(built.Root, "configs"),
		"DATA": s.Data, "CLUSTER": s.Name, "LISTEN": s.Listen, "LISTEN2": second,
		"KUBECONFIG": s.Kubeconfig(), "HOME": e.WorkDir, "WASMPLANE": built.Binary,
		"WASM": filepath.Join(built.Root, "build", "wasm"), "EXAMPLES": filepath.Join(built.Root, "wasm-examples"), "HELLO": built.Hello,
		"TOOLBOX": built.toolbox, "MODULE": built.module,
		// Which pods there are, with which containers, since when.
		"WHO":  `{range .items[*]}{.metadata.name} {.metadata.uid} {.status.podIP} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].state.running.startedAt}{"\n"}{end}`,
		"PATH": os.Getenv("PATH") + ":/usr/sbin:/sbin", "RUNC": built.runc,
	} {
		e.Setenv(name, value)
	}
	s.WorkDir, s.Env = e.WorkDir, environment(e.Getenv)
	e.Values[stageKey{}] = s
	e.Defer(func() { s.leave(e.T()) })
	return nil
}

// environment is that of a script's programs.
func environment(of func(string) string) []string {
	var env []string
	for _, name := range []string{"HOME", "KUBECONFIG", "PATH", "WORK", "DATA"} {
		env = append(env, name+"="+of(name))
	}
	return env
}

// leave ends what the script left running, and checks that the host is clean.
func (s *stage) leave(t testscript.T) {
	failed := t.(interface{ Failed() bool }).Failed()
	if failed {
		t.Log(s.Report())
	}
	if err := errors.Join(s.Remove(), s.removeDisk()); err != nil {
		t.Log("[the host is not as it was]\n" + err.Error())
		if !failed {
			t.FailNow()
		}
	}
}

// smallDisk puts the data directory on a file system of its own, in memory.
func (s *stage) smallDisk(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || s.disk != "" {
		ts.Fatalf("usage, once: disk SIZE INODES")
	}
	dir, err := os.MkdirTemp(built.Dir, "disk")
	ts.Check(err)
	ts.Check(os.Chmod(dir, 0o755))
	ts.Check(harness.Execute("mount", "-t", "tmpfs", "-o", "mode=0755,size="+args[0]+",nr_inodes="+args[1], "tmpfs", dir))
	s.disk, s.Data = dir, filepath.Join(dir, "data")
	ts.Setenv("DATA", s.Data)
	ts.Setenv("KUBECONFIG", s.Kubeconfig())
}

func (s *stage) removeDisk() error {
	if s.disk == "" {
		return nil
	}
	return errors.Join(harness.Execute("umount", s.disk), os.Remove(s.disk))
}

func (s *stage) up(ts *testscript.TestScript, neg bool, args []string) {
	asNobody := len(args) > 0 && args[0] == "--as-nobody"
	if asNobody {
		args = args[1:]
	}
	s.AsNobody, s.Env = asNobody, environment(ts.Getenv)
	_, err := s.Up(append([]string{"--log-level", "debug"}, args...)...)
	said := s.Process("up").Output.String()
	switch {
	case neg && err == nil:
		ts.Fatalf("it runs, and should have refused")
	case neg:
		_, _ = io.WriteString(ts.Stderr(), said)
	case err != nil:
		ts.Fatalf("%v", err)
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
		program = built.Binary
	}
	cmd := exec.Command(program, args[3:]...)
	cmd.Dir, cmd.Env = ts.MkAbs("."), environment(ts.Getenv)
	p, err := s.Start(args[0], cmd)
	ts.Check(err)
	found, err := p.AwaitLine(pattern)
	if err != nil {
		ts.Fatalf("%s: %v", args[0], err)
	}
	for i, name := range pattern.SubexpNames() {
		if name != "" {
			ts.Setenv(name, found[i])
		}
	}
}

func (s *stage) process(ts *testscript.TestScript, args []string) *harness.Process {
	if len(args) != 1 {
		ts.Fatalf("expected the name of a process")
	}
	p := s.Process(args[0])
	if p == nil {
		ts.Fatalf("no process %q was started", args[0])
	}
	return p
}

func (s *stage) crash(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(s.process(ts, args).End(os.Kill))
}

func (s *stage) interrupt(ts *testscript.TestScript, _ bool, args []string) {
	p := s.process(ts, args)
	ts.Check(p.End(os.Interrupt))
	_, _ = io.WriteString(ts.Stdout(), p.Output.String())
	if err := p.Err(); err != nil {
		ts.Fatalf("%s: %v", args[0], err)
	}
}

func (s *stage) run(ts *testscript.TestScript, neg bool, args []string) {
	err := ts.Exec(built.Binary, args...)
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
		cmd := exec.Command(built.Binary, append([]string{"trace", "--kubeconfig", ts.Getenv("KUBECONFIG")}, args[1:]...)...)
		out, _ := cmd.CombinedOutput()
		return pattern.Match(out) != neg, string(out)
	})
	_, _ = io.WriteString(ts.Stdout(), last)
	if !ok {
		ts.Fatalf("waited %s for %s", harness.Patience, args[0])
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
		found := harness.Containers(s.Data)
		return len(found) == want, strings.Join(found, "\n")
	})
	if !ok {
		ts.Fatalf("waited for %d containers, there are:\n%s", want, last)
	}
}

// until tries every now and then, and answers what there was last.
func until(try func() (bool, string)) (last string, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	err := harness.Poll(ctx, 200*time.Millisecond, func() error {
		if ok, last = try(); !ok {
			return errors.New("not yet")
		}
		return nil
	})
	return last, err == nil
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
		cmd := exec.Command(built.Binary, append([]string{"kubectl"}, args[1:]...)...)
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
		ts.Fatalf("kubectl %s: waited %s for %s", strings.Join(args[1:], " "), harness.Patience, args[0])
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
		ts.Fatalf("%s: waited %s for %s, last: %s", args[1], harness.Patience, args[0], last)
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
			text = s.process(ts, args[1:]).Output.String()
		} else if log, err := os.ReadFile(filepath.Join(s.Data, "wasmplane.log")); err == nil {
			text = string(log)
		}
		if at := pattern.FindStringIndex(text); at != nil {
			return true, text[at[0]:at[1]]
		}
		return false, harness.Tail(text, 10)
	})
	_, _ = io.WriteString(ts.Stdout(), last)
	if !ok {
		ts.Fatalf("waited %s for %s", harness.Patience, args[0])
	}
}

func (s *stage) down(ts *testscript.TestScript, neg bool, args []string) {
	s.run(ts, neg, append([]string{"down", "--purge", "--data-dir", s.Data}, args...))
	if _, err := os.Stat(s.Data); !errors.Is(err, os.ErrNotExist) {
		ts.Fatalf("the data directory is still there (%v)", err)
	}
	ts.Check(harness.Leftovers(s.Name, s.Data))
}
