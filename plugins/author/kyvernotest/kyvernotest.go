// SPDX-License-Identifier: Apache-2.0

// Package kyvernotest runs the tests that are written for Kyverno's policies in CEL: files of kind
// Test, each with policies, resources and what the policies say of each of them.
//
// What is tried is what Read of plugins/policies/kyverno makes of a policy, by the code that judges the
// requests of a cluster. An object is judged as it stands in its file, without the defaults that an API
// would fill in.
package kyvernotest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/wasmplane/wasmplane/plugins/author/suite"
	"github.com/wasmplane/wasmplane/plugins/author/textdiff"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/imagepolicy"
	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

const (
	group = "cli.kyverno.io"
	kind  = "Test"
)

// Test is a file of tests.
type Test struct {
	File  string
	name  string
	given given
	err   error // why it cannot be run
}

// given are the fields of a file that are read.
type given struct {
	APIVersion string         `yaml:"apiVersion"`
	Kind       string         `yaml:"kind"`
	Metadata   map[string]any `yaml:"metadata"`
	Policies   []string       `yaml:"policies"`
	Resources  []string       `yaml:"resources"`
	Variables  string         `yaml:"variables"`
	UserInfo   string         `yaml:"userinfo"`
	Context    string         `yaml:"context"`
	Exceptions []string       `yaml:"exceptions"`
	Results    []expected     `yaml:"results"`

	// What expressions find beyond the requests.
	GlobalContextEntries []globalEntry `yaml:"globalContextEntries"`
	APICallResponses     []apiCall     `yaml:"apiCallResponses"`
}

// expected is what one policy says of some resources.
type expected struct {
	Policy           string   `yaml:"policy"`
	Rule             string   `yaml:"rule"` // a result counts for the whole policy here
	Kind             string   `yaml:"kind"`
	Resource         string   `yaml:"resource"`
	Resources        []string `yaml:"resources"`
	Namespace        string   `yaml:"namespace"`
	Result           string   `yaml:"result"`
	PatchedResource  string   `yaml:"patchedResource"`
	PatchedResources string   `yaml:"patchedResources"`

	// What else says of which kind the policy is, in whatever case.
	More map[string]any `yaml:",inline"`
}

// Find reads the tests of a file, or of all files in a folder and below.
func Find(path string) ([]*Test, error) {
	var out []*Test
	err := filepath.WalkDir(path, func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(file)) {
			return err
		}
		t, err := read(file)
		if err == nil && t != nil {
			out = append(out, t)
		}
		return err
	})
	return out, err
}

// read reads a file; nil for one of another kind.
func read(path string) (*Test, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a test: %w", err)
	}
	t := &Test{File: path}
	if !bytes.Contains(b, []byte(group)) || yaml.Unmarshal(b, &t.given) != nil || t.given.Kind != kind ||
		!strings.HasPrefix(t.given.APIVersion, group+"/") {
		return nil, nil //nolint:nilerr // whatever it is, it is no test
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	strict := given{}
	if t.err = d.Decode(&strict); t.err == nil { // else it fails, and the other tests are run
		t.given = strict
	}
	t.name, _ = t.given.Metadata["name"].(string)
	return t, nil
}

// Run judges the resources, and calls report with each that the test speaks of.
func (t *Test) Run(ctx context.Context, report func(suite.Result)) (failed int, err error) {
	add := func(r suite.Result) {
		if r.File, r.Test = t.File, t.name; !r.Passed && !r.Skipped {
			failed++
		}
		report(r)
	}
	w, err := t.open()
	if t.err != nil && (err != nil || len(w.policies)+len(w.images) > 0) {
		err = t.err
	}
	if err == nil && len(w.policies)+len(w.images) == 0 {
		add(suite.Result{Skipped: true, Problem: fmt.Sprintf("none of its policies is one of %q",
			append(kyverno.Kinds(), kyverno.ImageKinds()...))})
		return failed, nil
	}
	if err != nil {
		add(suite.Result{Problem: err.Error()})
		return failed, ctx.Err()
	}
	for i := range t.given.Results {
		e := &t.given.Results[i]
		names := e.Resources
		if e.Resource != "" {
			names = append([]string{e.Resource}, names...)
		}
		for _, name := range names {
			r := suite.Result{Case: fmt.Sprintf("%s: %s %s", e.Policy, e.Kind, name)}
			if err := w.hold(ctx, e, name); err != nil {
				r.Problem = err.Error()
			}
			r.Passed = r.Problem == ""
			add(r)
		}
		if ctx.Err() != nil {
			return failed, ctx.Err()
		}
	}
	return failed, nil
}

// world is what a test is about.
type world struct {
	dir       string
	judge     *judge
	policies  map[string]*kyverno.Objects
	images    map[string]map[string]any // policies about images, as they are written
	verified  map[string]*imagepolicy.Policy
	kinds     map[string]string // of the policies
	broken    map[string]error
	resources []map[string]any
}

// open reads the files of a test. A policy that cannot be kept fails the results that name it.
func (t *Test) open() (*world, error) {
	w := &world{
		dir: filepath.Dir(t.File), policies: map[string]*kyverno.Objects{}, kinds: map[string]string{}, broken: map[string]error{},
		images: map[string]map[string]any{}, verified: map[string]*imagepolicy.Policy{},
	}
	for _, file := range t.given.Policies {
		documents, err := w.documents(file)
		if err != nil {
			return nil, err
		}
		for _, d := range documents {
			version, _ := d["apiVersion"].(string)
			kind, _ := d["kind"].(string)
			ofImages := slices.Contains(kyverno.ImageKinds(), kind)
			if !strings.HasPrefix(version, kyverno.Group+"/") || !ofImages && !slices.Contains(kyverno.Kinds(), kind) {
				continue
			}
			m, _ := d["metadata"].(map[string]any)
			name, _ := m["name"].(string)
			w.kinds[name] = kind
			if ofImages {
				w.images[name] = d
				continue
			}
			if w.policies[name], err = kyverno.Read(d); err != nil {
				w.broken[name] = fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	if len(w.policies)+len(w.images) == 0 {
		return w, nil
	}
	if err := w.except(t.given.Exceptions); err != nil {
		return nil, err
	}
	for _, file := range t.given.Resources {
		documents, err := w.documents(file)
		if err != nil {
			return nil, err
		}
		w.resources = append(w.resources, documents...)
	}
	var err error
	w.judge, err = newJudge(w.dir, &t.given)
	return w, err
}

// except reads the exceptions of a test, and the policies that they may be about.
func (w *world) except(files []string) error {
	about := map[string][]*kyverno.Exception{}
	for _, file := range files {
		documents, err := w.documents(file)
		if err != nil {
			return err
		}
		for _, d := range documents {
			version, _ := d["apiVersion"].(string)
			if !strings.HasPrefix(version, kyverno.Group+"/") || d["kind"] != kyverno.ExceptionKind {
				continue
			}
			e, err := kyverno.ReadException(d)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			for name := range w.images {
				if e.About(w.kinds[name], "", name, time.Now()) {
					about[name] = append(about[name], e)
				}
			}
			for name, o := range w.policies {
				if o != nil && e.About(w.kinds[name], "", name, time.Now()) {
					o.Except(e.Condition())
				}
			}
		}
	}
	for name, d := range w.images {
		p, err := imagepolicy.Read(d, about[name]...)
		if err != nil {
			w.broken[name] = err
			continue
		}
		w.verified[name] = p
	}
	return nil
}

// documents reads the objects of a file as an API would, with whole numbers.
func (w *world) documents(file string) ([]map[string]any, error) {
	f, err := os.Open(filepath.Join(w.dir, file))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	list, err := tree.Documents(file, f)
	if err != nil {
		return nil, err
	}
	var out []map[string]any
	for _, d := range list {
		text, err := json.Marshal(d)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		var o map[string]any
		if err := utiljson.Unmarshal(text, &o); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if items, list := o["items"].([]any); list {
			for _, i := range items {
				if item, ok := i.(map[string]any); ok {
					out = append(out, item)
				}
			}
			continue
		}
		out = append(out, o)
	}
	return out, nil
}

// find is the resource of a kind and a name, which its namespace may stand before.
func find(list []map[string]any, e *expected, name string) (map[string]any, error) {
	namespace := e.Namespace
	if at := strings.LastIndexByte(name, '/'); at >= 0 {
		namespace, name = name[:at], name[at+1:]
	}
	for _, o := range list {
		m, _ := o["metadata"].(map[string]any)
		in, _ := m["namespace"].(string)
		if o["kind"] == e.Kind && m["name"] == name && (namespace == "" || namespace == in || namespace == "default" && in == "") {
			return o, nil
		}
	}
	return nil, fmt.Errorf("no %s %s is among the resources", e.Kind, name)
}

// hold holds what a policy says of a resource against what is expected.
func (w *world) hold(ctx context.Context, e *expected, name string) error {
	policy := e.Policy
	if at := strings.LastIndexByte(policy, '/'); at >= 0 {
		policy = policy[at+1:]
	}
	if err := w.broken[policy]; err != nil {
		return err
	}
	objects, images := w.policies[policy], w.verified[policy]
	if objects == nil && images == nil {
		return fmt.Errorf("no policy %s is among the policies", e.Policy)
	}
	resource, err := find(w.resources, e, name)
	if err != nil {
		return err
	}
	var found *decision
	if images != nil {
		found, err = w.judge.verify(ctx, policy, images, resource)
	} else {
		found, err = w.judge.decide(ctx, policy, objects, resource)
	}
	if err != nil {
		return err
	}
	patched := e.PatchedResources
	if patched == "" {
		patched = e.PatchedResource
	}
	if patched != "" && found.result == pass {
		if err := w.compare(e, name, patched, found); err != nil && e.Result == pass {
			return err
		} else if err != nil {
			found.result = fail
		}
	}
	if found.result == e.Result {
		return nil
	}
	text := fmt.Sprintf("expected %s, found %s", e.Result, found.result)
	if found.why != "" {
		text += ": " + found.why
	}
	return errors.New(text)
}

// compare holds what became of a resource against the file that shows it.
func (w *world) compare(e *expected, name, file string, found *decision) error {
	list, err := w.documents(file)
	if err != nil {
		return err
	}
	want, err := find(list, e, name)
	if err != nil {
		return nil //nolint:nilerr // a file shows those of its resources that are to be compared
	}
	if m, ok := want["metadata"].(map[string]any); ok && m["namespace"] == nil { // the request has one in any case
		unstructured.RemoveNestedField(found.object, "metadata", "namespace")
	}
	if _, builtIn := w.judge.contract.ByKind((&unstructured.Unstructured{Object: found.object}).GroupVersionKind().GroupKind()); builtIn {
		withoutNulls(found.object) // the API keeps none of its own kinds' fields without a value
	}
	if diff := textdiff.Diff(want, found.object); diff != "" {
		return fmt.Errorf("%s (- expected, + found):\n%s", file, diff)
	}
	return nil
}

// withoutNulls leaves out fields without a value.
func withoutNulls(v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, field := range v {
			if list, is := field.([]any); field == nil || is && list == nil {
				delete(v, key)
			} else {
				withoutNulls(field)
			}
		}
	case []any:
		for _, item := range v {
			withoutNulls(item)
		}
	}
}
