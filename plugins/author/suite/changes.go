// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/wasmplane/wasmplane/plugins/author/cases"
	"github.com/wasmplane/wasmplane/plugins/author/textdiff"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/expansion"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/mutation"
)

// changes are the mutators and expansion templates of a test.
type changes struct {
	mutators  *mutation.Set
	templates *expansion.Set
}

// changes reads the mutators and expansion templates; nil = there are none.
func (t *test) changes(dir string) (*changes, error) {
	files := t.Mutators
	if t.Expansion != "" {
		files = append(files[:len(files):len(files)], t.Expansion)
	}
	if len(files) == 0 {
		return nil, nil
	}
	var mutators []*mutation.Mutator
	var templates []*expansion.Template
	for _, file := range files {
		trees, err := readObjects(filepath.Join(dir, file))
		if err != nil {
			return nil, err
		}
		for _, tree := range trees {
			if kind, _ := tree["kind"].(string); kind == expansion.Kind {
				one, err := expansion.Read(tree)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", file, err)
				}
				templates = append(templates, one)
				continue
			}
			one, err := mutation.Read(tree)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			mutators = append(mutators, one)
		}
	}
	c := &changes{mutation.NewSet(mutators), expansion.NewSet(templates)}
	for _, m := range mutators {
		if in := c.mutators.Conflicts(m); len(in) > 0 {
			return nil, fmt.Errorf("these imply different schemas of one field: %s", strings.Join(in, ", "))
		}
	}
	for _, one := range templates {
		if in := c.templates.Cycle(one); len(in) > 0 {
			return nil, fmt.Errorf("these lead back to what they begin with: %s", strings.Join(in, ", "))
		}
	}
	return c, nil
}

// target is an object as mutators see it. A suite has no namespaces, so that none has labels.
func target(object map[string]any) (*gatekeeper.Target, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	own := map[string]any{}
	if err := utiljson.Unmarshal(text, &own); err != nil { // whole numbers as objects of the API have them
		return nil, err
	}
	o := unstructured.Unstructured{Object: own}
	return &gatekeeper.Target{
		Object: own, Kind: o.GroupVersionKind(), Namespace: o.GetNamespace(), Source: gatekeeper.Original,
		Labels: func(string) (map[string]string, error) { return nil, nil },
		External: func(_, provider string, _ []string) gatekeeper.Answers {
			return func(string) (string, error) { return "", fmt.Errorf("a suite has no Provider %q", provider) }
		},
	}, nil
}

// imply changes the object of a case, and makes cases of what it implies.
func (q *question) imply(dir string, changes *changes, c *cases.Case) (out []cases.Case, err error) {
	switch {
	case changes == nil && q.Mutated != "":
		return nil, errors.New("mutated: the test names no mutators, so that nothing becomes of the object")
	case changes == nil:
		return nil, nil
	}
	if kind, _ := c.Object["kind"].(string); kind == "AdmissionReview" {
		return nil, errors.New("an AdmissionReview is neither changed nor expanded: give the object itself")
	}
	t, err := q.change(dir, changes, c.Object)
	if err != nil {
		return nil, err
	}
	c.Object = t.Object
	implied, err := changes.templates.Expand(t, changes.mutators)
	if err != nil {
		return nil, err
	}
	q.of = nil
	for i := range implied {
		q.of = append(q.of, &implied[i])
		next := *c
		next.Name, next.Object, next.Implied = implied[i].Message(c.Name), implied[i].Object, true
		out = append(out, next)
	}
	return out, nil
}

// change has the mutators change an object, and holds it against what is expected of it.
func (q *question) change(dir string, changes *changes, object map[string]any) (*gatekeeper.Target, error) {
	t, err := target(object)
	if err != nil {
		return nil, err
	}
	if _, err := changes.mutators.Mutate(t); err != nil {
		return nil, err
	}
	if q.Mutated == "" {
		return t, nil
	}
	want, err := readObject(dir, q.Mutated)
	if err != nil {
		return nil, err
	}
	if diff := textdiff.Diff(want, t.Object); diff != "" {
		return nil, fmt.Errorf("%s: the object becomes another one (- expected, + found):\n%s", q.Mutated, diff)
	}
	return t, nil
}

// mutate runs a test without a constraint.
func (t *test) mutate(dir string, changes *changes, report func(Result)) {
	for i := range t.Cases {
		q := &t.Cases[i]
		out := Result{Case: q.Name, Skipped: q.Skip}
		if !q.Skip {
			if err := q.mutate(dir, changes); err != nil {
				out.Problem = err.Error()
			}
			out.Passed = out.Problem == ""
		}
		report(out)
	}
}

func (q *question) mutate(dir string, changes *changes) error {
	if q.Mutated == "" || len(q.Assertions) > 0 {
		return errors.New("mutated: without a constraint it has to say what becomes of the object, and no assertions")
	}
	o, err := readObject(dir, q.Object)
	if err != nil {
		return err
	}
	_, err = q.change(dir, changes, o)
	return err
}
