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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/wasmplane/wasmplane/core/config"
)

// options are the command's flags.
type options struct {
	suite, focus, except, profile   string
	cache, out, wasmplane, dataDir  string
	parallel, batch                 int
	again, anyBuild, keep, listOnly bool
	reportOnly, dual                bool
	patience, limit                 time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func parseOptions(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("conformance", flag.ContinueOnError)
	cache, err := os.UserCacheDir()
	if err != nil {
		return o, err
	}
	cache = filepath.Join(cache, "wasmplane", "conformance")
	f.StringVar(&o.suite, "suite", conformance, "which tests: conformance, kind (what upstream runs against any cluster), all (what needs no cloud and no Windows), node (upstream's node e2e tests), network-policy-api (of ClusterNetworkPolicy: all of it, each time)")
	f.StringVar(&o.focus, "focus", "", "regular expression on the names of the tests; empty = all of them")
	f.StringVar(&o.except, "except", "", "regular expression on the names of tests to leave out of this run")
	f.StringVar(&o.profile, "profile", "", "profile of the cluster's configuration: hardened, or nothing; what has passed with one is not taken for passed with the other")
	f.StringVar(&o.cache, "cache", cache, "folder for the suite, its images and the results")
	f.StringVar(&o.out, "report", "", "file for the report as markdown; empty = CACHE/report.md, report-SUITE.md, report-PROFILE.md or report-SUITE-PROFILE.md")
	f.StringVar(&o.wasmplane, "wasmplane", "../../bin/wasmplane", "the program to test")
	f.StringVar(&o.dataDir, "data-dir", "", "data directory of the cluster; empty = CACHE/cluster")
	f.IntVar(&o.parallel, "parallel", 4, "how many tests run at once; those that must run alone, do")
	f.IntVar(&o.batch, "batch", 5, "how many tests one process of the suite runs")
	f.BoolVar(&o.again, "again", false, "run also what has passed or was skipped with this build")
	f.BoolVar(&o.anyBuild, "any-build", false, "what has passed with another build need not run again")
	f.BoolVar(&o.keep, "keep", false, "leave the cluster running, and use one that was left")
	f.BoolVar(&o.listOnly, "list", false, "only list the tests")
	f.BoolVar(&o.reportOnly, "report-only", false, "run nothing; report what is known of this build, or with --any-build of all")
	f.BoolVar(&o.dual, "dual-stack", false, "give the cluster IPv4 and IPv6, for the tests of dual-stack")
	f.DurationVar(&o.patience, "patience", 15*time.Minute, "how long one test may take")
	f.DurationVar(&o.limit, "limit", 0, "how long the whole run may take; the next one carries on; 0 = as long as it takes")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: everything is said by flags, see --help", f.Arg(0))
	}
	if o.parallel < 1 || o.batch < 1 {
		return o, errors.New("--parallel and --batch: expected at least 1")
	}
	if _, err := setOf(o.suite); err != nil && o.suite != policyAPI {
		return o, err
	}
	if o.profile != "" && o.profile != config.Hardened {
		return o, fmt.Errorf("--profile: expected %s, or nothing, found %q", config.Hardened, o.profile)
	}
	if o.out == "" {
		suite := o.suite
		if suite == conformance {
			suite = ""
		}
		o.out = filepath.Join(o.cache, joined("report", suite, o.profile)+".md")
	}
	if o.dataDir == "" {
		o.dataDir = filepath.Join(o.cache, "cluster")
	}
	for _, p := range []*string{&o.cache, &o.out, &o.wasmplane, &o.dataDir} {
		if *p, err = filepath.Abs(*p); err != nil {
			return o, err
		}
	}
	return o, nil
}

// joined puts dashes between those words that there are.
func joined(words ...string) string {
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), "-")
}

// run is the whole command.
func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parseOptions(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if o.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.limit)
		defer cancel()
	}
	j, err := prepare(ctx, o, out)
	if err != nil {
		return err
	}
	if o.suite == policyAPI {
		return j.withCluster(ctx, j.runPolicyAPI)
	}
	if o.listOnly {
		for _, t := range j.tests {
			fmt.Fprintln(out, t.Name)
		}
		return nil
	}
	if pending := j.pending(); len(pending) > 0 && !o.reportOnly {
		if err := j.withCluster(ctx, func(ctx context.Context, _ *cluster) error { return j.runAll(ctx, pending) }); err != nil {
			return err
		}
	}
	return j.report()
}
