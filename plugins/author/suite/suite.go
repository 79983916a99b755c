// SPDX-License-Identifier: Apache-2.0

// Package suite runs the tests that are written for Gatekeeper's policies: files of kind
// Suite, each with templates, constraints, and objects that violate them or do not.
package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/author/cases"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/policies"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/expansion"
	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

const (
	group = "test.gatekeeper.sh"
	kind  = "Suite"
)

// Suite is a file of tests.
type Suite struct {
	File  string `yaml:"-"`
	Tests []test `yaml:"tests"`
	Skip  bool   `yaml:"skip"`
}

type test struct {
	Name       string `yaml:"name"`
	Template   string `yaml:"template"`
	Constraint string `yaml:"constraint"`
	// Expansion is a file of ExpansionTemplates: the constraint is asked about what the objects imply, too.
	Expansion string `yaml:"expansion"`
	// Mutators are files of mutators, which change the objects first. Gatekeeper's own suites have no such
	// field. Without a template and a constraint only what they make of the objects is looked at.
	Mutators []string   `yaml:"mutators"`
	Cases    []question `yaml:"cases"`
	// Invalid: the constraint does not fit its template.
	Invalid bool `yaml:"invalid"`
	Skip    bool `yaml:"skip"`
}

type question struct {
	Name      string   `yaml:"name"`
	Object    string   `yaml:"object"`
	Inventory []string `yaml:"inventory"`
	// Mutated is a file with what mutators make of the object.
	Mutated    string      `yaml:"mutated"`
	Assertions []assertion `yaml:"assertions"`
	Skip       bool        `yaml:"skip"`

	of []*expansion.Implied // what each question after the first one is about
}

type assertion struct {
	Violations yaml.Node `yaml:"violations"`
	Message    string    `yaml:"message"`
}

// Result is how one case came out. A test that could not be run has one, without a case.
type Result struct {
	File    string `json:"file"`
	Test    string `json:"test"`
	Case    string `json:"case,omitempty"`
	Passed  bool   `json:"passed"`
	Skipped bool   `json:"skipped,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// Find reads the suites of a file, or of all files in a folder and below.
func Find(path string) ([]*Suite, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read the suites: %w", err)
	}
	if !info.IsDir() {
		s, err := read(path)
		if err == nil && s == nil {
			err = fmt.Errorf("%s is no %s of %s", path, kind, group)
		}
		return []*Suite{s}, err
	}
	var out []*Suite
	err = filepath.WalkDir(path, func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(file) != ".yaml" && filepath.Ext(file) != ".yml" {
			return err
		}
		s, err := read(file)
		if err == nil && s != nil {
			out = append(out, s)
		}
		return err
	})
	return out, err
}

// Is says whether a file is a suite.
func Is(path string) bool {
	s, err := read(path)
	return s != nil || err != nil && strings.Contains(err.Error(), path)
}

// read reads a suite; nil for another file.
func read(path string) (*Suite, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a suite: %w", err)
	}
	var head struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
	}
	if !bytes.Contains(b, []byte(group)) || yaml.Unmarshal(b, &head) != nil || head.Kind != kind || !strings.HasPrefix(head.APIVersion,
		group+"/") {
		return nil, nil //nolint:nilerr // whatever it is, it is no suite
	}
	all := struct {
		Suite      `yaml:",inline"`
		APIVersion string         `yaml:"apiVersion"`
		Kind       string         `yaml:"kind"`
		Metadata   map[string]any `yaml:"metadata"`
	}{}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&all); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	all.File = path
	return &all.Suite, nil
}

// Run runs a suite on one engine or both, and calls report with each result.
func (s *Suite) Run(ctx context.Context, engine string, report func(Result)) (failed int, err error) {
	for i := range s.Tests {
		t := &s.Tests[i]
		err := t.run(ctx, s, engine, func(r Result) {
			if r.File, r.Test = s.File, t.Name; !r.Passed && !r.Skipped {
				failed++
			}
			report(r)
		})
		if err != nil {
			return failed, err
		}
	}
	return failed, nil
}

func (t *test) run(ctx context.Context, s *Suite, engine string, report func(Result)) error {
	if s.Skip || t.Skip {
		report(Result{Skipped: true})
		return nil
	}
	broken := func(err error) error {
		report(Result{Problem: err.Error()})
		return ctx.Err()
	}
	dir := filepath.Dir(s.File)
	changes, err := t.changes(dir)
	if err != nil {
		return broken(err)
	}
	if t.Template == "" && t.Constraint == "" && changes != nil {
		t.mutate(dir, changes, report)
		return ctx.Err()
	}
	template, constraint, err := t.policy(dir)
	if err != nil {
		return broken(err)
	}
	if err := template.Validate(constraint); t.Invalid {
		if err == nil {
			return broken(errors.New("the constraint fits its template, which was expected not to be so"))
		}
		report(Result{Passed: true})
		return nil
	} else if err != nil {
		return broken(fmt.Errorf("%s: %w", t.Constraint, err))
	}
	list, sync, err := t.questions(dir, changes)
	if err != nil {
		return broken(err)
	}
	c, err := gatekeeper.ReadConstraint(constraint)
	if err != nil {
		return broken(fmt.Errorf("%s: %w", t.Constraint, err))
	}
	fields, err := template.Entry(c, policies.Offline{}, gatekeeper.Settings{Sync: sync})
	if err != nil {
		return broken(err)
	}
	fields["name"] = tree.PluginName(template.Kind, "suite")
	entry, err := manifest.ParseTree(fields)
	if err != nil {
		return broken(err)
	}
	if template.Action(c, gatekeeper.AtTests) == "" { // it is not asked here: nothing violates it
		for i := range t.Cases {
			report(t.Cases[i].judge(nil))
		}
		return ctx.Err()
	}
	at, answers := 0, []cases.Result(nil)
	_, err = cases.Test(ctx, author.Config{Entry: entry, Dir: dir}, list, engine, func(r cases.Result) {
		q := &t.Cases[at]
		if answers = append(answers, r); len(answers) <= len(q.of) {
			return
		}
		at++
		report(q.judge(answers))
		answers = nil
	})
	if err != nil && ctx.Err() == nil {
		return broken(err)
	}
	return err
}

// policy reads the template and the constraint.
func (t *test) policy(dir string) (*gatekeeper.Template, map[string]any, error) {
	one := func(what, file string) (map[string]any, error) {
		if file == "" {
			return nil, fmt.Errorf("%s: it is missing", what)
		}
		return readObject(dir, file)
	}
	tree, err := one("template", t.Template)
	if err != nil {
		return nil, nil, err
	}
	template, err := gatekeeper.ReadTemplate(tree)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", t.Template, err)
	}
	constraint, err := one("constraint", t.Constraint)
	return template, constraint, err
}

// questions reads the objects of the cases, and says of which kinds the others are.
func (t *test) questions(dir string, changes *changes) (list []cases.Case, sync []gatekeeper.SyncKind, err error) {
	for i := range t.Cases {
		q := &t.Cases[i]
		o, err := readObject(dir, q.Object)
		if err != nil {
			return nil, nil, err
		}
		c := cases.Case{Name: q.Name, Object: o, Expect: &cases.Expect{}}
		for _, file := range q.Inventory {
			others, err := readObjects(filepath.Join(dir, file))
			if err != nil {
				return nil, nil, err
			}
			c.Objects = append(c.Objects, others...)
		}
		for _, o := range c.Objects {
			kind, _ := o["kind"].(string)
			version, _ := o["apiVersion"].(string)
			gv, err := schema.ParseGroupVersion(version)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: apiVersion: %w", q.Name, err)
			}
			sync = append(sync, gatekeeper.SyncKind{Groups: []string{gv.Group}, Kinds: []string{kind}})
		}
		implied, err := q.imply(dir, changes, &c)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", q.Name, err)
		}
		list = append(append(list, c), implied...)
	}
	return list, sync, nil
}

// judge holds the decisions about the object and what it implies against the assertions.
func (q *question) judge(answers []cases.Result) Result {
	out := Result{Case: q.Name, Skipped: q.Skip}
	var problems, messages []string
	for i, r := range answers {
		if len(r.Problems) > 0 || r.Decision == nil || r.Decision.Decision == author.Failed {
			problems = append(problems, r.Details()...)
			if r.Decision != nil && r.Decision.Error != "" {
				problems = append(problems, r.Decision.Error)
			}
			continue
		}
		for _, text := range violations(r.Decision) {
			if i > 0 {
				text = q.of[i-1].Message(text)
			}
			messages = append(messages, text)
		}
	}
	if len(problems) == 0 {
		for i := range q.Assertions {
			if err := q.Assertions[i].check(messages); err != nil {
				problems = append(problems, err.Error())
			}
		}
	}
	if len(q.Assertions) == 0 {
		problems = append(problems, "assertions: there are none")
	}
	out.Passed, out.Problem = len(problems) == 0, strings.Join(problems, "\n")
	return out
}

// violations are the messages of a refusal.
func violations(d *author.Decision) []string {
	if d.Decision != author.Deny {
		return nil
	}
	out := []string{d.Message}
	for _, c := range d.Causes {
		text, _ := c["message"].(string)
		out = append(out, text)
	}
	return out
}

// check counts the messages that the assertion is about.
func (a *assertion) check(messages []string) error {
	form, err := regexp.Compile(a.Message)
	if err != nil {
		return fmt.Errorf("message: %w", err)
	}
	n := 0
	for _, m := range messages {
		if form.MatchString(m) {
			n++
		}
	}
	found := fmt.Sprintf("found %d of %q", n, messages)
	if a.Message != "" {
		found = fmt.Sprintf("found %d with %q of %q", n, a.Message, messages)
	}
	switch v := a.Violations.Value; v {
	case "", "yes", "true": // YAML of before 1.2 takes yes for true
		if n == 0 {
			return fmt.Errorf("expected violations, %s", found)
		}
	case "no", "false":
		if n > 0 {
			return fmt.Errorf("expected no violations, %s", found)
		}
	default:
		var want int
		if err := a.Violations.Decode(&want); err != nil || want < 0 {
			return fmt.Errorf("violations: expected a number, yes or no, found %q", v)
		}
		if n != want {
			return fmt.Errorf("expected %d violations, %s", want, found)
		}
	}
	return nil
}

// readObject reads a file that has one object.
func readObject(dir, file string) (map[string]any, error) {
	trees, err := readObjects(filepath.Join(dir, file))
	if err != nil {
		return nil, err
	}
	if len(trees) != 1 {
		return nil, fmt.Errorf("%s: expected one object, found %d", file, len(trees))
	}
	return trees[0], nil
}

// readObjects reads the objects of a file.
func readObjects(path string) ([]map[string]any, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return tree.Documents(path, f)
}
