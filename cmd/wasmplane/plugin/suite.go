// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/author/kyvernotest"
	"github.com/wasmplane/wasmplane/plugins/author/regotest"
	"github.com/wasmplane/wasmplane/plugins/author/suite"
)

// tests are files of tests that were written for other projects.
type tests interface {
	Run(ctx context.Context, report func(suite.Result)) (failed int, err error)
}

// gator is a suite of Gatekeeper on an engine.
type gator struct {
	*suite.Suite
	engine string
}

func (g gator) Run(ctx context.Context, report func(suite.Result)) (int, error) {
	return g.Suite.Run(ctx, g.engine, report)
}

// testsAt are the suites of Gatekeeper, the tests of Kyverno and those in Rego at PLUGIN: none where a plugin is.
func testsAt(path, engine string) ([]tests, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil //nolint:nilerr // whoever reads the plugin says it
	}
	if _, err := os.Stat(filepath.Join(path, author.EntryFile)); info.IsDir() && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []tests
	kyverno, err := kyvernotest.Find(path)
	for _, t := range kyverno {
		out = append(out, t)
	}
	inRego, regoErr := regotest.Find(path)
	for _, u := range inRego {
		out = append(out, u)
	}
	if err = errors.Join(err, regoErr); err != nil || !info.IsDir() && !suite.Is(path) {
		return out, err
	}
	suites, err := suite.Find(path)
	for _, s := range suites {
		out = append(out, gator{s, engine})
	}
	return out, err
}

// runTests runs tests of other projects, and shows each result.
func (a commands) runTests(ctx context.Context, list []tests, output string) (failed int, err error) {
	var results []suite.Result
	for _, s := range list {
		n, err := s.Run(ctx, func(r suite.Result) {
			results = append(results, r)
			if output == "" {
				a.showSuiteResult(r)
			}
		})
		if err != nil {
			return failed, err
		}
		failed += n
	}
	skipped := 0
	for _, r := range results {
		if r.Skipped {
			skipped++
		}
	}
	passed := len(results) - failed - skipped
	if output == "json" {
		return failed, a.Show(map[string]any{"suites": len(list), "passed": passed, "failed": failed, "skipped": skipped, "results": results},
			output)
	}
	fmt.Fprintf(a.Out, "%d suites: %d passed, %d failed, %d skipped\n", len(list), passed, failed, skipped)
	return failed, nil
}

func (a commands) showSuiteResult(r suite.Result) {
	word := map[bool]string{true: "pass", false: "FAIL"}[r.Passed]
	if r.Skipped {
		word = "skip"
	}
	fmt.Fprintf(a.Out, "%s  %s: %s", word, r.File, r.Test)
	if r.Case != "" {
		fmt.Fprintf(a.Out, ": %s", r.Case)
	}
	fmt.Fprintln(a.Out)
	if !r.Passed && r.Problem != "" {
		fmt.Fprintln(a.Out, "      "+strings.ReplaceAll(r.Problem, "\n", "\n      "))
	}
}
