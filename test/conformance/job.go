// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/test/conformance/internal/result"
	"github.com/wasmplane/wasmplane/test/conformance/internal/suite"
	"github.com/wasmplane/wasmplane/test/internal/journal"
)

// job is one run.
type job struct {
	o     options
	out   io.Writer
	build string
	// version is what the program calls itself.
	version string
	set     set
	tests   []suite.Test
	book    *result.Book
	suite   suite.Suite
}

func prepare(ctx context.Context, o options, out io.Writer) (*job, error) {
	b := builder{cache: o.cache, suite: o.suite, out: out}
	if err := b.programs(ctx); err != nil {
		return nil, err
	}
	j := &job{o: o, out: out, suite: suite.Suite{Program: b.path("e2e.test"), Dir: filepath.Join(o.cache, "runs"), Patience: o.patience}}
	var err error
	if j.build, err = journal.Build(o.wasmplane); err != nil {
		return nil, err
	}
	version, err := command(ctx, o.wasmplane, "version")
	if err != nil {
		return nil, err
	}
	j.version = strings.TrimSpace(version)
	if o.suite == policyAPI {
		return j, nil
	}
	build, own := j.build, ""
	if o.anyBuild {
		build = ""
	}
	if o.suite == nodeSuite {
		j.suite.Program, j.suite.Args, own = b.path(nodeProgram), nodeFlags(), nodeSuite
	}
	results := filepath.Join(o.cache, joined("results", own, o.profile)+".jsonl")
	if j.book, err = result.Open(results, build); err != nil {
		return nil, err
	}
	if j.set, err = setOf(o.suite); err != nil {
		return nil, err
	}
	all, err := j.suite.List(ctx, ".")
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(t suite.Test) bool { return !j.set.takes(t.Name) })
	j.tests, err = matching(all, o.focus, o.except)
	return j, err
}

// pending are the tests that have to run: not those that have passed, or would be
// skipped again, and whose chain has no other.
func (j *job) pending() []suite.Test {
	due, chains := map[string]bool{}, map[string]bool{}
	for _, t := range j.tests {
		if r, ok := j.book.Of(t.Name); !ok || r.Failed() || j.o.again {
			due[t.Name], chains[t.Chain] = true, true
		}
	}
	delete(chains, "")
	return slices.DeleteFunc(slices.Clone(j.tests), func(t suite.Test) bool { return !due[t.Name] && !chains[t.Chain] })
}

// withCluster does work with a cluster that is there, or is started and ended for it.
func (j *job) withCluster(ctx context.Context, work func(context.Context, *cluster) error) (err error) {
	release, err := lockMachine(machineLock)
	if err != nil {
		return err
	}
	defer release()
	advice, err := adviseMachine()
	if err != nil {
		return err
	}
	fmt.Fprint(j.out, advice)
	c := &cluster{wasmplane: j.o.wasmplane, dir: j.o.dataDir, dual: j.o.dual, profile: j.o.profile, nodes: 2}
	if j.o.suite == nodeSuite {
		c.nodes = 1 // its tests expect no other
	}
	var second *secondNode
	if !j.o.keep {
		defer func() {
			if second != nil {
				err = errors.Join(err, second.stop(ctx))
			}
			err = errors.Join(err, c.stop(ctx))
		}()
	}
	archive, err := (builder{cache: j.o.cache, out: j.out}).images(ctx)
	if err != nil {
		return err
	}
	images, err := startMirror(ctx, j.o.cache, archive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, images.stop()) }()
	if !j.o.keep || !c.answers(ctx) {
		fmt.Fprintln(j.out, "starting a cluster")
		if err := c.start(ctx, images.url); err != nil {
			return err
		}
		if err := c.load(ctx, archive); err != nil {
			return err
		}
		if c.nodes > 1 {
			if second, err = c.addNode(ctx, images.url); err != nil {
				return err
			}
			if err := second.load(ctx, archive); err != nil {
				return err
			}
		}
	}
	if j.o.suite == nodeSuite {
		if j.suite.Args, err = c.nodeArgs(ctx); err != nil {
			return err
		}
	}
	j.suite.Kubeconfig = c.kubeconfig()
	if j.suite.Kubectl, err = c.link(ctx, j.o.cache, "kubectl"); err != nil {
		return err
	}
	h := health{ready: c.nodesReady, every: 15 * time.Second, patience: 3 * time.Minute}
	if c.server != nil {
		h.parts = append(h.parts, c.server)
	}
	if second != nil {
		h.parts = append(h.parts, second.parts...)
	}
	return h.guard(ctx, func(ctx context.Context) error { return work(ctx, c) })
}

// runAll runs what may run side by side, then the rest, one after the other.
func (j *job) runAll(ctx context.Context, pending []suite.Test) error {
	var together, alone []suite.Test
	fit, err := j.fitting(ctx, pending)
	if err != nil {
		return err
	}
	for _, t := range fit {
		if t.Alone {
			alone = append(alone, t)
		} else {
			together = append(together, t)
		}
	}
	fmt.Fprintf(j.out, "%d tests to run, %d of them alone; %d have run before\n", len(pending), len(alone), len(j.tests)-len(pending))
	if err := j.runBatches(ctx, batches(together, j.o.batch), j.o.parallel); err != nil {
		return err
	}
	return j.runBatches(ctx, batches(alone, 1), 1)
}

func (j *job) runBatches(ctx context.Context, list [][]suite.Test, parallel int) error {
	next := make(chan []suite.Test)
	errs := make(chan error, parallel)
	var workers sync.WaitGroup
	for i := range parallel {
		workers.Go(func() {
			for tests := range next {
				if err := j.runBatch(ctx, fmt.Sprintf("worker-%d-%d", i, time.Now().UnixMilli()), tests); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	defer workers.Wait()
	defer close(next)
	for _, tests := range list {
		select {
		case next <- tests:
		case err := <-errs:
			return err
		case <-ctx.Done():
			return nil // out of time; the next run carries on
		}
	}
	return nil
}

func (j *job) runBatch(ctx context.Context, called string, tests []suite.Test) error {
	names := make([]string, len(tests))
	sigs := map[string]string{}
	for i, t := range tests {
		names[i], sigs[t.Name] = t.Name, t.SIG
	}
	for _, o := range j.suite.Run(ctx, called, names) {
		if ctx.Err() != nil && !o.Passed() {
			continue // it was interrupted by us
		}
		r := result.Result{
			Test: o.Name, SIG: sigs[o.Name], Passed: o.Passed(), State: o.State, Message: o.Message, Took: o.Took, Build: j.build,
			At: time.Now(),
		}
		if err := j.record(r, called); err != nil {
			return err
		}
	}
	return nil
}

// record keeps and prints a result, with the name of what it comes from.
func (j *job) record(r result.Result, from string) error {
	if err := j.book.Add(r); err != nil {
		return err
	}
	word := "ok    "
	if r.Failed() {
		word = "FAILED"
	} else if r.Skipped() {
		word = "skip  "
	}
	fmt.Fprintf(j.out, "%s %6.1fs %s\n", word, r.Took.Seconds(), r.Test)
	if !r.Passed {
		fmt.Fprintf(j.out, "        %s (%s)\n", result.Why(r.Message, 1), from)
	}
	return nil
}
