// SPDX-License-Identifier: Apache-2.0

// Package regotest runs the tests that are written in Rego beside policies: the rules that begin with test_ in
// files named *_test.rego, by Open Policy Agent's own evaluator. Nothing of it is used where policies are in force.
//
// A test reaches neither the network nor the environment, and ends within a bounded time.
package regotest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/tester"

	"github.com/wasmplane/wasmplane/plugins/author/suite"
)

// How the files of tests end, and what data is read beside the policies.
const (
	ending  = "_test.rego"
	archive = ".tar.gz"
)

var data = []string{"data.json", "data.yaml", "data.yml", ".manifest"}

// longest is how long one test may take.
const longest = 5 * time.Second

// Unit is what is tested together: a folder with all below it, a file, or a bundle.
type Unit struct {
	Path   string
	bundle bool
}

// Find finds what is tested at a path. A folder with files in Rego, or with a .manifest, is tested as a whole; of
// any other each folder in it. What holds no tests is none.
func Find(path string) ([]Unit, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read the tests: %w", err)
	}
	if !info.IsDir() {
		switch {
		case strings.HasSuffix(path, archive):
			return []Unit{{path, true}}, nil
		case strings.HasSuffix(path, ending):
			return []Unit{{filepath.Dir(path), false}}, nil
		}
		return nil, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("read the tests: %w", err)
	}
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return !e.IsDir() && (strings.HasSuffix(e.Name(), ".rego") || e.Name() == ".manifest")
	}) {
		return holding(path)
	}
	var out []Unit
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		more, err := Find(filepath.Join(path, e.Name()))
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// holding is a folder as a unit, where it or one below it holds tests.
func holding(path string) ([]Unit, error) {
	found := false
	err := filepath.WalkDir(path, func(file string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && strings.HasSuffix(file, ending) {
			found = true
			return fs.SkipAll
		}
		return err
	})
	if err != nil || !found {
		return nil, err
	}
	return []Unit{{path, false}}, nil
}

// Run runs the tests, and calls report with each result.
func (u Unit) Run(ctx context.Context, report func(suite.Result)) (failed int, err error) {
	results, err := u.results(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		report(suite.Result{File: u.Path, Problem: err.Error()})
		return 1, nil
	}
	slices.SortFunc(results, func(a, b *tester.Result) int {
		return cmp.Or(cmp.Compare(a.Location.File, b.Location.File), cmp.Compare(a.Location.Row, b.Location.Row), cmp.Compare(a.Name, b.Name))
	})
	for _, r := range results {
		out := suite.Result{File: r.Location.File, Test: r.Package, Case: r.Name, Passed: r.Pass(), Skipped: r.Skip}
		switch {
		case r.Skip || out.Passed:
		case r.Error != nil:
			out.Problem = r.Error.Error()
		default:
			out.Problem = problem(r)
		}
		if !out.Passed && !out.Skipped {
			failed++
		}
		report(out)
	}
	return failed, nil
}

// problem words a failure: where, and what the test printed.
func problem(r *tester.Result) string {
	out := fmt.Sprintf("%s:%d: the test is not true", r.Location.File, r.Location.Row)
	if r.FailedAt != nil && r.FailedAt.Location != nil {
		out = fmt.Sprintf("%s:%d: it ends at: %s", r.FailedAt.Location.File, r.FailedAt.Location.Row, r.FailedAt.Location.Text)
	}
	if len(r.Output) > 0 {
		out += "\nit printed:\n" + strings.TrimSpace(string(r.Output))
	}
	return out
}

// results runs the tests in the version of the language in which the files can be read: the present one, else the one before.
func (u Unit) results(ctx context.Context) ([]*tester.Result, error) {
	out, err := u.run(ctx, ast.RegoV1)
	if err == nil || ctx.Err() != nil {
		return out, err
	}
	if older, olderErr := u.run(ctx, ast.RegoV0); olderErr == nil {
		return older, nil
	}
	return nil, err
}

func (u Unit) run(ctx context.Context, version ast.RegoVersion) (out []*tester.Result, err error) {
	defer func() {
		if r := recover(); r != nil {
			out, err = nil, fmt.Errorf("the evaluator for Rego crashed on these tests: %v", r)
		}
	}()
	capabilities := ast.CapabilitiesForThisVersion(ast.CapabilitiesRegoVersion(version))
	capabilities.AllowNet = []string{}
	options := ast.ParserOptions{RegoVersion: version, Capabilities: capabilities, ProcessAnnotation: true}
	compiler := ast.NewCompiler().WithCapabilities(capabilities).WithDefaultRegoVersion(version).WithEnablePrintStatements(true)
	runner := tester.NewRunner().SetDefaultRegoVersion(version).SetCompiler(compiler).CapturePrintOutput(true).SetTimeout(longest).
		SetRuntime(ast.ObjectTerm())
	var store storage.Store
	if u.bundle {
		var bundles map[string]*bundle.Bundle
		if bundles, store, err = tester.LoadBundlesWithParserOptions([]string{u.Path}, nil, options); err != nil {
			return nil, err
		}
		runner = runner.SetBundles(bundles)
	} else {
		var modules map[string]*ast.Module
		if modules, store, err = tester.LoadWithParserOptions([]string{u.Path}, others, options); err != nil {
			return nil, err
		}
		runner = runner.SetModules(modules)
	}
	txn, err := store.NewTransaction(ctx, storage.WriteParams)
	if err != nil {
		return nil, err
	}
	defer store.Abort(ctx, txn)
	results, err := runner.SetStore(store).RunTests(ctx, txn)
	if err != nil {
		return nil, err
	}
	for r := range results {
		out = append(out, r)
	}
	if u.bundle && len(out) == 0 {
		return nil, errors.New("the bundle holds no tests")
	}
	return out, ctx.Err()
}

// others says which files are left out: all but policies and data by the names that bundles give it.
func others(_ string, info fs.FileInfo, _ int) bool {
	return !info.IsDir() && !strings.HasSuffix(info.Name(), ".rego") && !slices.Contains(data, info.Name())
}
