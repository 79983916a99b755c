// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/journal"
)

// options are the command's flags.
type options struct {
	wasmplane, module, cache string
	packages, focus          *regexp.Regexp
	again, list, reportOnly  bool
	patience                 time.Duration
	jobs                     int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := execute(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		os.Exit(1)
	}
}

func parseOptions(args []string) (options, error) {
	var o options
	cache, err := os.UserCacheDir()
	if err != nil {
		return o, err
	}
	var packages, focus string
	f := flag.NewFlagSet("integration", flag.ContinueOnError)
	f.StringVar(&o.wasmplane, "wasmplane", "bin/wasmplane", "the program to test")
	f.StringVar(&packages, "packages", "", "regular expression on packages below test/integration, such as '^(quota|pods)$'; empty = all of them")
	f.StringVar(&focus, "focus", "", "regular expression on the names of tests; empty = all of them")
	f.StringVar(&o.module, "module", "test/conformance", "folder of the Go module that says which k8s.io/kubernetes and etcd are used")
	f.StringVar(&o.cache, "cache", filepath.Join(cache, "wasmplane", "integration"),
		"folder for upstream's tree, results, logs and the report")
	f.BoolVar(&o.again, "again", false, "run also what has passed with this binary")
	f.BoolVar(&o.list, "list", false, "only list the packages")
	f.BoolVar(&o.reportOnly, "report", false, "only write the report of what has run with this binary")
	f.DurationVar(&o.patience, "patience", 20*time.Minute, "how long the tests of one package may take")
	f.IntVar(&o.jobs, "jobs", 1, "how many packages are run at once; most of their time tests wait for something, but each server takes 150 MB")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: everything is said by flags, see --help", f.Arg(0))
	}
	if o.patience <= 0 {
		return o, fmt.Errorf("--patience: expected a time such as 20m, found %s", o.patience)
	}
	if o.jobs < 1 {
		return o, fmt.Errorf("--jobs: expected 1 or more, found %d", o.jobs)
	}
	if o.packages, err = regexp.Compile(packages); err != nil {
		return o, fmt.Errorf("--packages: %w", err)
	}
	if o.focus, err = regexp.Compile(focus); err != nil {
		return o, fmt.Errorf("--focus: %w", err)
	}
	for _, p := range []*string{&o.wasmplane, &o.module, &o.cache} {
		if *p, err = filepath.Abs(*p); err != nil {
			return o, err
		}
	}
	return o, nil
}

// execute is the whole command.
func execute(ctx context.Context, args []string, out io.Writer) error {
	o, err := parseOptions(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	t, err := takeTree(ctx, o)
	if err != nil {
		return err
	}
	packages, err := t.packages(ctx, o.packages)
	if err != nil {
		return err
	}
	if o.list {
		for _, p := range packages {
			fmt.Fprintln(out, p)
		}
		return nil
	}
	build, err := journal.Build(o.wasmplane)
	if err != nil {
		return err
	}
	b, err := openBook(filepath.Join(o.cache, "results.jsonl"), build)
	if err != nil {
		return err
	}
	j := &job{o: o, out: out, tree: t, book: b}
	if !o.reportOnly {
		if err := j.runPackages(ctx, packages); err != nil {
			return err
		}
	}
	return j.report(packages)
}
