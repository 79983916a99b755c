// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wasmplane/wasmplane/test/internal/journal"
)

// job is one run.
type job struct {
	o    options
	out  io.Writer
	tree *tree
	bin  string // folder of the tools; empty until they are needed

	mu   sync.Mutex // of the book and of what is printed
	book *book
}

// runPackages runs the packages that have not ended well with this binary.
func (j *job) runPackages(ctx context.Context, names []string) (err error) {
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return j.book.complete(n) && !j.o.again })
	if len(names) == 0 {
		return nil
	}
	if j.bin, err = j.tree.tools(ctx); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(j.o.jobs)
	for _, n := range names {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return j.runPackage(ctx, n)
		})
	}
	return g.Wait()
}

// runPackage runs the tests of a package that have not ended well with this binary.
func (j *job) runPackage(ctx context.Context, name string) (err error) {
	program, err := j.tree.build(ctx, name)
	defer func() { err = errors.Join(err, removeIfThere(program)) }()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return j.say(result{Package: name, Test: whole, Outcome: failed, Reason: journal.InLine(err.Error(), 4)})
	}
	tests, err := j.tests(ctx, name, program)
	if err != nil {
		return j.say(result{Package: name, Test: whole, Outcome: failed, Reason: journal.InLine(err.Error(), 4)})
	}
	j.mu.Lock()
	pending := slices.DeleteFunc(tests, func(t string) bool { return !j.o.again && j.book.well(name, t) })
	j.mu.Unlock()
	return j.runTests(ctx, name, program, pending)
}

// runTests runs tests until each has a result: a test that ends its process leaves others
// without one.
func (j *job) runTests(ctx context.Context, name, program string, pending []string) error {
	late := time.Now().Add(j.o.patience)
	for len(pending) > 0 {
		left := time.Until(late)
		if left <= 0 {
			for _, t := range pending {
				reason := fmt.Sprintf("not begun: the package's %s were over", j.o.patience)
				if err := j.say(result{Package: name, Test: t, Outcome: failed, Reason: reason}); err != nil {
					return err
				}
			}
			return nil
		}
		results, err := j.runOnce(ctx, name, program, pending, left)
		if ctx.Err() != nil {
			return errors.New("interrupted; the next run carries on")
		}
		if err != nil {
			return err
		}
		if len(results) == 0 {
			return j.say(result{Package: name, Test: whole, Outcome: failed, Reason: "the program printed no result; its log says more"})
		}
		for _, r := range results {
			if err := j.say(r); err != nil {
				return err
			}
			pending = slices.DeleteFunc(pending, func(t string) bool { return t == top(r.Test) })
		}
	}
	if j.o.focus.String() != "" {
		return nil // of the others nothing is known
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.book.add(result{Package: name, Test: whole, Outcome: passed, At: time.Now()})
}

// runOnce runs tests in one process, which ends with all that it has started.
func (j *job) runOnce(ctx context.Context, name, program string, tests []string, patience time.Duration) (_ []result, err error) {
	tmp, err := os.MkdirTemp("", "wi")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	logs := filepath.Join(j.o.cache, "logs")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(logs, strings.ReplaceAll(name, "/", "_")+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, patience+time.Minute)
	defer cancel()
	cmd := j.command(ctx, name, tmp, filepath.Join(j.bin, "test2json"), "-t", program, "-test.v=test2json",
		"-test.run", "^("+strings.Join(tests, "|")+")$", "-test.timeout", patience.String())
	cmd.Stderr = log
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }() // what it left behind
	results, err := read(io.TeeReader(pipe, log), name)
	_ = cmd.Wait() //nolint:errcheck // the results say what failed
	return results, err
}

// command is of a session of its own, and sees little of the user's environment.
func (j *job) command(ctx context.Context, name, tmp string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = filepath.Join(j.tree.dir, "test", "integration", filepath.FromSlash(name))
	cmd.Env = []string{
		"PATH=" + j.bin + ":" + os.Getenv("PATH"), "HOME=" + tmp, "TMPDIR=" + tmp,
		"WASMPLANE_INTEGRATION_BINARY=" + j.o.wasmplane,
		"WASMPLANE_INTEGRATION_LOG=" + filepath.Join(j.o.cache, "logs", strings.ReplaceAll(name, "/", "_")+".server.log"),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// tests are the names of a package's tests that the focus takes.
func (j *job) tests(ctx context.Context, name, program string) ([]string, error) {
	// A TestMain starts an etcd even to list: what it prints besides is no name.
	tmp, err := os.MkdirTemp("", "wi")
	if err != nil {
		return nil, err
	}
	cmd := j.command(ctx, name, tmp, program, "-test.list", ".")
	said, err := cmd.Output()
	if err := errors.Join(err, os.RemoveAll(tmp)); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(testName.FindAllString(string(said), -1), func(t string) bool { return !j.o.focus.MatchString(t) }), nil
}

var testName = regexp.MustCompile(`(?m)^Test\w*$`)

// event is a line of test2json.
type event struct {
	Action, Test, Output string
	Elapsed              float64
}

// read takes the results of the tests that have no subtests, and of those that fail
// although their subtests do not.
func read(from io.Reader, name string) ([]result, error) {
	t := transcript{name: name, output: map[string]*strings.Builder{}, parents: map[string]bool{}}
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if json.Unmarshal(line, &e) == nil && e.Test != "" {
			t.see(e)
		}
		if errors.Is(err, io.EOF) {
			return t.end(), nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// transcript is what is known of the tests of one process.
type transcript struct {
	name    string
	output  map[string]*strings.Builder // of the tests that run
	parents map[string]bool             // and whether a child has failed
	results []result
}

// maxOutput bounds what is kept of a test's output, in bytes.
const maxOutput = 256 << 10

func (t *transcript) see(e event) {
	if parent, ok := parentOf(e.Test); ok {
		t.parents[parent] = t.parents[parent] || e.Action == "fail"
	}
	switch e.Action {
	case "run":
		t.output[e.Test] = &strings.Builder{}
	case "output":
		if b := t.output[e.Test]; b != nil && b.Len() < maxOutput {
			b.WriteString(e.Output)
		}
	case "pass", "fail", "skip":
		said := ""
		if b := t.output[e.Test]; b != nil {
			said = b.String()
		}
		delete(t.output, e.Test)
		if childFailed, parent := t.parents[e.Test]; parent && (e.Action != "fail" || childFailed) {
			return
		}
		t.results = append(t.results, conclude(t.name, e, said))
	}
}

// end are the results; what still ran has failed.
func (t *transcript) end() []result {
	for test, said := range t.output {
		if _, parent := t.parents[test]; !parent {
			t.results = append(t.results, result{
				Package: t.name, Test: test, Outcome: failed, At: time.Now(),
				Reason: "the process ended while it ran: " + cmp.Or(because(said.String()), "it printed nothing"),
			})
		}
	}
	return t.results
}

func parentOf(test string) (string, bool) {
	at := strings.LastIndexByte(test, '/')
	return test[:max(at, 0)], at > 0
}

func top(test string) string {
	name, _, _ := strings.Cut(test, "/")
	return name
}

// say remembers a result and prints it.
func (j *job) say(r result) error {
	if r.At.IsZero() {
		r.At = time.Now()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	fmt.Fprintf(j.out, "%-7s %5.0fs %s %s%s\n", r.Outcome, r.Seconds, r.Package, r.Test, prefixed(": ", r.Reason))
	return j.book.add(r)
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

func removeIfThere(file string) error {
	if err := os.Remove(file); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
