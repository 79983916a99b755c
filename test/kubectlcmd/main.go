// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/gotool"
	"github.com/wasmplane/wasmplane/test/internal/journal"
)

// options are the command's flags.
type options struct {
	wasmplane, module, cache, out string
	groups                        *regexp.Regexp
	parallel                      int
	again, list                   bool
	patience                      time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := execute(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "kubectlcmd:", err)
		os.Exit(1)
	}
}

func parseOptions(args []string) (options, error) {
	var o options
	cache, err := os.UserCacheDir()
	if err != nil {
		return o, err
	}
	var groups string
	f := flag.NewFlagSet("kubectlcmd", flag.ContinueOnError)
	f.StringVar(&o.wasmplane, "wasmplane", "bin/wasmplane", "the program to test")
	f.StringVar(&groups, "groups", "", "regular expression on the names of the groups, such as 'run_crd|run_wait'; empty = all of them")
	f.StringVar(&o.module, "module", "test/conformance", "folder of the Go module that says which k8s.io/kubernetes the tests and kubectl come from")
	f.StringVar(&o.cache, "cache", filepath.Join(cache, "wasmplane", "kubectlcmd"), "folder for the kubectl that is built")
	f.StringVar(&o.out, "out", "build/test-cmd", "folder for the results and for what each group printed")
	f.IntVar(&o.parallel, "parallel", 1, "how many groups run at once, each on a server of its own")
	f.BoolVar(&o.again, "again", false, "run also what has passed with this binary")
	f.BoolVar(&o.list, "list", false, "only list the groups")
	f.DurationVar(&o.patience, "patience", 10*time.Minute, "how long one group may take")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: everything is said by flags, see --help", f.Arg(0))
	}
	if o.parallel < 1 {
		return o, fmt.Errorf("--parallel: expected at least 1, found %d", o.parallel)
	}
	if o.patience <= 0 {
		return o, fmt.Errorf("--patience: expected a time such as 10m, found %s", o.patience)
	}
	if o.groups, err = regexp.Compile(groups); err != nil {
		return o, fmt.Errorf("--groups: %w", err)
	}
	for _, p := range []*string{&o.wasmplane, &o.module, &o.cache, &o.out} {
		if *p, err = filepath.Abs(*p); err != nil {
			return o, err
		}
	}
	return o, nil
}

// execute is the whole command.
func execute(ctx context.Context, args []string, out io.Writer) (err error) {
	o, err := parseOptions(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	_, upstream, err := gotool.Module(ctx, o.module, "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	groups, err := chosen(upstream, o.groups)
	if err != nil {
		return err
	}
	if o.list {
		for _, g := range groups {
			fmt.Fprintln(out, g)
		}
		return nil
	}
	j := &job{o: o, out: out, upstream: upstream, groups: groups}
	if j.build, err = journal.Build(o.wasmplane); err != nil {
		return err
	}
	if j.book, err = openBook(filepath.Join(o.out, "results.jsonl"), j.build); err != nil {
		return err
	}
	if err := j.runPending(ctx); err != nil {
		return err
	}
	return j.report()
}

// job is one run.
type job struct {
	o        options
	out      io.Writer
	upstream string // the module's folder
	build    string // the digest of the program that is tested
	groups   []string
	book     *book

	mu sync.Mutex // of out
}

// runPending runs the groups that have not passed with this binary.
func (j *job) runPending(ctx context.Context) error {
	pending := slices.DeleteFunc(slices.Clone(j.groups), func(g string) bool {
		r, ok := j.book.of(g)
		return ok && r.Passed && !j.o.again
	})
	j.printf("%d groups, %d to run\n", len(j.groups), len(pending))
	if len(pending) == 0 {
		return nil
	}
	tools, err := buildTools(ctx, j.o)
	if err != nil {
		return err
	}
	logs := filepath.Join(j.o.out, "logs")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	next := make(chan string, len(pending))
	for _, g := range pending {
		next <- g
	}
	close(next)
	errs := make([]error, min(j.o.parallel, len(pending)))
	var lanes sync.WaitGroup
	for i := range errs {
		lanes.Go(func() { errs[i] = j.runLane(ctx, tools, logs, next) })
	}
	lanes.Wait()
	return errors.Join(errs...)
}

// runLane runs groups one after the other on a server of its own.
func (j *job) runLane(ctx context.Context, tools, logs string, next <-chan string) (err error) {
	s, err := startSite(ctx, j.o.wasmplane, j.upstream, tools)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	for g := range next {
		if err := s.alive(); err != nil {
			return err
		}
		r := s.runGroup(ctx, g, filepath.Join(logs, g+".log"), j.o.patience)
		if ctx.Err() != nil {
			return errors.New("interrupted; the next run carries on")
		}
		r.Build = j.build
		if err := j.book.add(r); err != nil {
			return err
		}
		j.printf("%s\n", r.line())
	}
	return nil
}

func (j *job) printf(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	fmt.Fprintf(j.out, format, args...)
}

// report prints the table. Not everything passed is an error.
func (j *job) report() error {
	width, failed, missing := 0, 0, 0
	for _, g := range j.groups {
		width = max(width, len(g))
	}
	j.printf("\n%-*s  result  seconds  first failed assertion\n", width, "group")
	for _, g := range j.groups {
		r, ok := j.book.of(g)
		word := "passed"
		switch {
		case !ok:
			word = "not run"
			missing++
		case !r.Passed:
			word = "FAILED"
			failed++
		}
		j.printf("%-*s  %-7s %7.0f  %s\n", width, g, word, r.Took.Seconds(), cmp.Or(r.Message, "-"))
	}
	j.printf("\n%d of %d groups passed; what each printed is in %s\n",
		len(j.groups)-failed-missing, len(j.groups), filepath.Join(j.o.out, "logs"))
	if failed+missing > 0 {
		return fmt.Errorf("%d groups failed, %d did not run", failed, missing)
	}
	return nil
}
