// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/wasmplane/wasmplane/test/conformance/internal/result"
	"github.com/wasmplane/wasmplane/test/conformance/internal/suite"
)

// job is one run.
type job struct {
	o     options
	out   io.Writer
	build string
	// version is what the program calls itself.
	version string
	tests   []suite.Test
	book    *result.Book
	suite   suite.Suite
}

// conformance is in the name of every test that counts.
const conformance = `\[Conformance\]`

func prepare(ctx context.Context, o options, out io.Writer) (*job, error) {
	b := builder{cache: o.cache, out: out}
	if err := b.programs(ctx); err != nil {
		return nil, err
	}
	j := &job{o: o, out: out, suite: suite.Suite{Program: b.path("e2e.test"), Dir: filepath.Join(o.cache, "runs"), Patience: o.patience}}
	var err error
	if j.build, err = buildOf(o.wasmplane); err != nil {
		return nil, err
	}
	version, err := command(ctx, o.wasmplane, "version")
	if err != nil {
		return nil, err
	}
	j.version = strings.TrimSpace(version)
	build := j.build
	if o.anyBuild {
		build = ""
	}
	if j.book, err = result.Open(filepath.Join(o.cache, "results.jsonl"), build); err != nil {
		return nil, err
	}
	all, err := j.suite.List(ctx, conformance)
	if err != nil {
		return nil, err
	}
	j.tests, err = matching(all, o.focus, o.except)
	return j, err
}

// pending are the tests that have to run: not those that have passed.
func (j *job) pending() []suite.Test {
	var list []suite.Test
	for _, t := range j.tests {
		if r, ok := j.book.Of(t.Name); !ok || !r.Passed || j.o.again {
			list = append(list, t)
		}
	}
	return list
}

// withCluster runs tests against a cluster that is there, or is started and ended for it.
func (j *job) withCluster(ctx context.Context, pending []suite.Test) (err error) {
	c := &cluster{wasmplane: j.o.wasmplane, dir: j.o.dataDir}
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
		if second, err = c.addNode(ctx, images.url); err != nil {
			return err
		}
		if err := second.load(ctx, archive); err != nil {
			return err
		}
	}
	j.suite.Kubeconfig = c.kubeconfig()
	if j.suite.Kubectl, err = c.kubectl(j.o.cache); err != nil {
		return err
	}
	h := health{ready: c.nodesReady, every: 15 * time.Second, patience: 3 * time.Minute}
	if c.server != nil {
		h.parts = append(h.parts, c.server)
	}
	if second != nil {
		h.parts = append(h.parts, second.parts...)
	}
	return h.guard(ctx, func(ctx context.Context) error { return j.runAll(ctx, pending) })
}

// runAll runs what may run side by side, then the rest, one after the other.
func (j *job) runAll(ctx context.Context, pending []suite.Test) error {
	var together, alone []suite.Test
	for _, t := range pending {
		if t.Alone {
			alone = append(alone, t)
		} else {
			together = append(together, t)
		}
	}
	fmt.Fprintf(j.out, "%d tests to run, %d of them alone; %d have passed before\n", len(pending), len(alone), len(j.tests)-len(pending))
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
		if err := j.book.Add(r); err != nil {
			return err
		}
		word := "ok    "
		if !r.Passed {
			word = "FAILED"
		}
		fmt.Fprintf(j.out, "%s %6.1fs %s\n", word, r.Took.Seconds(), r.Test)
		if !r.Passed {
			fmt.Fprintf(j.out, "        %s (%s)\n", result.Why(r.Message, 1), called)
		}
	}
	return nil
}

// report prints and writes what is known of the tests. Not everything passed is an error.
func (j *job) report() error {
	sigs := map[string]string{}
	for _, t := range j.tests {
		sigs[t.Name] = t.SIG
	}
	lines := j.book.Summary(sigs)
	fmt.Fprint(j.out, result.Text(lines))
	how := intro + "All figures are of one build: " + j.version + ".\n\n"
	if j.o.anyBuild {
		how = intro + "The figures are of several builds: a test that had passed with one was not run again with the next.\n\n"
	}
	again := j.book.Again(sigs)
	if err := os.WriteFile(j.o.out, []byte(how+result.Markdown(lines)+secondTry(again)), 0o644); err != nil {
		return err
	}
	fmt.Fprintln(j.out, "report:", j.o.out)
	if t := result.Total(lines); t.Failed+t.NotRun > 0 {
		return fmt.Errorf("%d tests failed, %d did not run", t.Failed, t.NotRun)
	}
	return nil
}

// secondTry names the tests that passed only when they ran again.
func secondTry(names []string) string {
	if len(names) == 0 {
		return "\nNo test had to be run again to pass.\n"
	}
	var out strings.Builder
	fmt.Fprintf(&out, "\n## Passed only when run again: %d\n\n", len(names))
	for _, n := range names {
		fmt.Fprintf(&out, "- %s\n", n)
	}
	return out.String()
}

// intro begins the report as a document.
const intro = `# Conformance

The upstream conformance suite of Kubernetes ` + kubernetesVersion + `, run against wasmplane with real nodes. This file is the report.

` + "```" + `
make conformance                                   # all of it; what has passed with this build is not run again
make conformance FOCUS='sig-cli|sig-auth'          # a part, by regular expression on the tests' names
make conformance EXCEPT='\[Slow\]' LIMIT=30m        # without some, for a while; the next run carries on
` + "```" + `

The first time builds the suite (half an hour on two cores) and makes its images. Everything lies in the user's cache directory
(~/.cache/wasmplane/conformance), with each run's log and JUnit report in runs/. It needs root, as a real node does, and Debian's
apt and a C compiler for the images: programs that the suite brings (agnhost, sample-apiserver and so on) are built from the
published modules, busybox from its authors' source (which Debian's archive has) with their default configuration, and the rest
(dig, curl, nginx) comes from Debian's packages, under the names that the suite asks for. Images are made again when what they are
made of changes. The disk under the cache should be less than 80 % full, since the node removes unused images when it fills up.

The cluster has two nodes: this machine, and this machine once more in a network namespace of its own, with its own kubelet,
containerd, pod network and service proxy. Tests that must run alone ([Serial], [Disruptive]) do. A skip counts as a failure.

One test cannot pass with images that are made like this:

- "ImageVolume should succeed with pod and pull policy of Always" reads two files in a volume that is an image: one that the image
  itself brings, which is there, and /etc/os-release of what it is built on, in which it looks for "Alpine Linux". Original images
  are built on Alpine Linux; ours are built on Debian's packages, and their /etc/os-release, which the test reads through the
  volume, says so. To write another system's name there would only show that the test can be deceived.

`
