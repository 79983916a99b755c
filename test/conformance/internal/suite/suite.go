// SPDX-License-Identifier: Apache-2.0

// Package suite runs the upstream end-to-end tests: it lists those that match a
// focus, and runs batches of them as processes of the suite's own program.
package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// Test is one test of the suite.
type Test struct {
	Name string
	SIG  string
	// Alone: it must not run beside others, by its own word ([Serial], [Disruptive]).
	Alone bool
	// Chain is the same for tests that build on each other, "" for all others: they run together, in their order.
	Chain string
}

// Outcome of one test.
type Outcome struct {
	Name    string
	State   string // ginkgo's: passed, failed, skipped, timedout, panicked, interrupted
	Message string // why it did not pass
	Took    time.Duration
	// lost: the suite's process ended without a word of this test.
	lost bool
}

// Passed says whether it passed: anything else counts as a failure, a skip too.
func (o Outcome) Passed() bool { return o.State == "passed" }

// Suite is the program with the cluster that it is run against.
type Suite struct {
	Program    string // e2e.test
	Kubeconfig string
	Kubectl    string
	Dir        string // where it may write
	Patience   time.Duration
	// Args are what the program is told of the cluster, where it does not take a kubeconfig: that of nodes.
	Args []string
}

// report is what is read of ginkgo's JSON report.
type report struct {
	SpecReports []struct {
		ContainerHierarchyTexts []string
		LeafNodeType            string
		LeafNodeText            string
		IsInOrderedContainer    bool
		State                   string
		RunTime                 time.Duration
		Failure                 struct {
			Message string
		}
	}
}

// orderedDepth is how deep ginkgo's ordered containers are at most, of those that have others within: the report does not
// say which of a test's containers is the ordered one.
const orderedDepth = 2

var sigPattern = regexp.MustCompile(`\[(sig-[a-z-]+)\]`)

// List are the tests that match focus, a regular expression on their names, and
// the suite would run.
func (s Suite) List(ctx context.Context, focus string) ([]Test, error) {
	r, err := s.run(ctx, "list", "--ginkgo.dry-run", "--ginkgo.focus="+focus)
	if err != nil {
		return nil, err
	}
	return tests(r), nil
}

func tests(r report) []Test {
	var all []Test
	for _, spec := range r.SpecReports {
		if spec.LeafNodeType != "It" || spec.State != "passed" {
			continue
		}
		t := Test{Name: fullName(spec.ContainerHierarchyTexts, spec.LeafNodeText)}
		if m := sigPattern.FindStringSubmatch(t.Name); m != nil {
			t.SIG = m[1]
		}
		if spec.IsInOrderedContainer {
			t.Chain = strings.Join(spec.ContainerHierarchyTexts[:min(orderedDepth, len(spec.ContainerHierarchyTexts))], " ")
		}
		t.Alone = strings.Contains(t.Name, "[Serial]") || strings.Contains(t.Name, "[Disruptive]")
		all = append(all, t)
	}
	return all
}

func fullName(containers []string, leaf string) string {
	return strings.Join(append(append([]string{}, containers...), leaf), " ")
}

// Focus matches exactly the tests of these names.
func Focus(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = regexp.QuoteMeta(n)
	}
	return "(?:" + strings.Join(quoted, "|") + ")$"
}

// Run runs tests one after the other. A test of which the suite says nothing, since
// it ended before, has failed; where there are several, each is tried alone first,
// as one of them may have ended the process.
func (s Suite) Run(ctx context.Context, called string, names []string) []Outcome {
	all := s.batch(ctx, called, names)
	for i, o := range all {
		if o.lost && len(names) > 1 && ctx.Err() == nil {
			all[i] = s.batch(ctx, fmt.Sprintf("%s-%d", called, i), []string{o.Name})[0]
		}
	}
	return all
}

// batch runs tests by one process of the suite.
func (s Suite) batch(ctx context.Context, called string, names []string) []Outcome {
	began := time.Now()
	r, err := s.run(ctx, called, "--ginkgo.focus="+Focus(names),
		"--ginkgo.timeout="+(time.Duration(len(names))*s.Patience).String(), "--ginkgo.grace-period=20s", "--ginkgo.no-color")
	return outcomes(r, err, names, time.Since(began))
}

func outcomes(r report, err error, names []string, took time.Duration) []Outcome {
	said := map[string]Outcome{}
	for _, spec := range r.SpecReports {
		o := Outcome{
			Name: fullName(spec.ContainerHierarchyTexts, spec.LeafNodeText), State: spec.State, Message: spec.Failure.Message,
			Took: spec.RunTime,
		}
		if spec.LeafNodeType == "It" {
			said[o.Name] = o
		} else if spec.State != "passed" && spec.State != "skipped" && err == nil {
			err = fmt.Errorf("%s %s: %s", spec.LeafNodeType, spec.State, spec.Failure.Message)
		}
	}
	var all []Outcome
	for _, n := range names {
		o, ok := said[n]
		if !ok {
			o = Outcome{Name: n, State: "failed", Message: "the suite did not say how it ended", Took: took / time.Duration(len(names)), lost: true}
		}
		if !o.Passed() && err != nil && (o.Message == "" || !ok) {
			o.Message = strings.TrimSpace(o.Message + ": " + err.Error())
		}
		all = append(all, o)
	}
	return all
}

// run runs the program once and reads its report. That tests failed is no error.
func (s Suite) run(ctx context.Context, called string, args ...string) (report, error) {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return report{}, err
	}
	file := filepath.Join(s.Dir, called+".json")
	_ = os.Remove(file)
	log, err := os.Create(filepath.Join(s.Dir, called+".log"))
	if err != nil {
		return report{}, err
	}
	defer func() { _ = log.Close() }()
	args = append(args, "--ginkgo.json-report="+file, "--ginkgo.junit-report="+filepath.Join(s.Dir, called+".xml"), "--ginkgo.v")
	if len(s.Args) > 0 {
		args = append(args, s.Args...)
	} else {
		args = append(args, "--kubeconfig="+s.Kubeconfig, "--kubectl-path="+s.Kubectl, "--provider=local", "--disable-log-dump")
	}
	cmd := exec.CommandContext(ctx, s.Program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, log, log
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is ours to pass on
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	runErr := cmd.Run()
	data, err := os.ReadFile(file)
	if err != nil {
		return report{}, errors.Join(fmt.Errorf("%s left no report; its output is in %s", filepath.Base(s.Program), log.Name()), runErr)
	}
	r, err := parse(data, runErr)
	if err == nil && runErr == nil {
		// It names every test that was not chosen too: megabytes, for each run.
		err = os.Remove(file)
	}
	return r, err
}

func parse(data []byte, runErr error) (report, error) {
	var suites []report
	if err := json.Unmarshal(data, &suites); err != nil {
		return report{}, fmt.Errorf("read the suite's report: %w", err)
	}
	var all report
	for _, s := range suites {
		all.SpecReports = append(all.SpecReports, s.SpecReports...)
	}
	var exit *exec.ExitError
	if errors.As(runErr, &exit) && exit.Exited() {
		runErr = nil // tests failed, as the report says
	}
	return all, runErr
}
