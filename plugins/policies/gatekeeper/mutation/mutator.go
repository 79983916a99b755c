// SPDX-License-Identifier: Apache-2.0

// Package mutation is Gatekeeper's mutation: what Assign, AssignMetadata, AssignImage and ModifySet
// make of an object. A Set holds all mutators of a cluster, leaves out those that contradict one another,
// and applies the rest until nothing changes any more.
//
// It is pure: it knows no cluster, and asks nobody but whom the target names. What comes of mutators that are wrong, that
// contradict each other or never come to an end is an error that names them; nothing that they say
// can take more than a bounded amount of time and memory.
package mutation

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/gatekeeper/v3/pkg/mutation/path/parser"
	"github.com/open-policy-agent/gatekeeper/v3/pkg/mutation/path/tester"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

// Group of the kinds of mutators, and the kinds.
const (
	Group          = "mutations.gatekeeper.sh"
	Assign         = "Assign"
	AssignMetadata = "AssignMetadata"
	AssignImage    = "AssignImage"
	ModifySet      = "ModifySet"
)

// Kinds are those of mutators.
func Kinds() []string { return []string{Assign, AssignImage, AssignMetadata, ModifySet} }

// Versions are those in which a kind is served; the first is stored.
func Versions(kind string) []string {
	if kind == AssignImage {
		return []string{"v1alpha1"}
	}
	return []string{"v1", "v1beta1", "v1alpha1"}
}

// Bounds of one mutator.
const (
	longestName     = 63
	longestLocation = 1024
	deepestLocation = 64
	mostBindings    = 1024
)

// ApplyTo names kinds of objects in their versions.
type ApplyTo struct {
	Groups   []string `json:"groups"`
	Versions []string `json:"versions"`
	Kinds    []string `json:"kinds"`
}

// Bindings are all kinds that a list names.
func Bindings(list []ApplyTo) (out []schema.GroupVersionKind, err error) {
	for i, a := range list {
		if len(a.Groups) == 0 || len(a.Versions) == 0 || len(a.Kinds) == 0 {
			return nil, fmt.Errorf("spec.applyTo[%d]: groups, versions and kinds have to be given, all of them", i)
		}
		if len(a.Groups)*len(a.Versions)*len(a.Kinds) > mostBindings {
			return nil, fmt.Errorf("spec.applyTo[%d]: it names more than %d kinds", i, mostBindings)
		}
		for _, group := range a.Groups {
			for _, version := range a.Versions {
				for _, kind := range a.Kinds {
					if k := (schema.GroupVersionKind{Group: group, Version: version, Kind: kind}); !slices.Contains(out, k) {
						out = append(out, k)
					}
				}
			}
		}
		if len(out) > mostBindings {
			return nil, fmt.Errorf("spec.applyTo: it names more than %d kinds", mostBindings)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("spec.applyTo: it has to name the kinds that are changed")
	}
	return out, nil
}

// Mutator is one that has been read.
type Mutator struct {
	Kind, Name string
	// Bindings are the kinds of which it implies a part of the schema; AssignMetadata implies none.
	Bindings []schema.GroupVersionKind

	match    *gatekeeper.Match
	path     []parser.Node
	tests    *tester.Tester
	terminal nodeType // of what stands at the end of the path
	closed   bool     // nothing stands below the end of the path
	setter   setter
}

// ID names the mutator; mutators are applied in the order of their IDs.
func (m *Mutator) ID() string { return m.Kind + " " + m.Name }

// Kinds are the groups and kinds of objects that it changes; "*" = all.
func (m *Mutator) Kinds() (out []schema.GroupKind) {
	for _, b := range m.Bindings {
		if !slices.Contains(out, b.GroupKind()) {
			out = append(out, b.GroupKind())
		}
	}
	if len(out) > 0 {
		return out
	}
	if out = m.match.Kinds(); len(out) > 0 {
		return out
	}
	return []schema.GroupKind{{Group: "*", Kind: "*"}}
}

// appliesTo says whether a kind is among those of spec.applyTo.
func (m *Mutator) appliesTo(k schema.GroupVersionKind) bool {
	return m.Kind == AssignMetadata || slices.Contains(m.Bindings, k)
}

// matches says whether the mutator is about an object.
func (m *Mutator) matches(t *gatekeeper.Target) (bool, error) {
	if !m.appliesTo(t.Kind) {
		return false, nil
	}
	return m.match.Matches(t)
}

// document is a mutator as it is written.
type document struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   tree.Metadata   `json:"metadata"`
	Status     json.RawMessage `json:"status"`
	Spec       struct {
		ApplyTo    []ApplyTo       `json:"applyTo"`
		Match      json.RawMessage `json:"match"`
		Location   string          `json:"location"`
		Parameters json.RawMessage `json:"parameters"`
	} `json:"spec"`
}

// parameters are those of all kinds; each kind knows some.
type parameters struct {
	PathTests    []pathTest      `json:"pathTests"`
	Assign       *assigned       `json:"assign"`
	Operation    *string         `json:"operation"`
	Values       json.RawMessage `json:"values"`
	AssignDomain *string         `json:"assignDomain"`
	AssignPath   *string         `json:"assignPath"`
	AssignTag    *string         `json:"assignTag"`
}

type pathTest struct {
	SubPath   string           `json:"subPath"`
	Condition tester.Condition `json:"condition"`
}

// Read reads a mutator.
func Read(object map[string]any) (*Mutator, error) {
	var d document
	if err := tree.Decode(object, &d, "mutator"); err != nil {
		return nil, err
	}
	if err := tree.Expect(Group, d.APIVersion, d.Kind, Kinds()...); err != nil {
		return nil, err
	}
	switch version := strings.TrimPrefix(d.APIVersion, Group+"/"); {
	case !slices.Contains(Versions(d.Kind), version):
		return nil, fmt.Errorf("apiVersion: %s is of the versions %q, found %q", d.Kind, Versions(d.Kind), version)
	case len(d.Metadata.Name) > longestName:
		return nil, fmt.Errorf("metadata.name: it has %d characters, %d are the most", len(d.Metadata.Name), longestName)
	}
	m := &Mutator{Kind: d.Kind, Name: d.Metadata.Name}
	var err error
	if m.match, err = gatekeeper.ReadMatch(d.Spec.Match); err != nil {
		return nil, err
	}
	if m.Kind != AssignMetadata {
		if m.Bindings, err = Bindings(d.Spec.ApplyTo); err != nil {
			return nil, err
		}
	} else if len(d.Spec.ApplyTo) > 0 {
		return nil, errors.New("spec.applyTo: AssignMetadata has none; say spec.match.kinds")
	}
	if m.path, err = location(d.Spec.Location); err != nil {
		return nil, fmt.Errorf("spec.location: %w", err)
	}
	var p parameters
	if len(d.Spec.Parameters) > 0 {
		if err := tree.Strict(d.Spec.Parameters, &p, "spec.parameters"); err != nil {
			return nil, err
		}
	}
	if err := p.only(m.Kind); err != nil {
		return nil, err
	}
	if err := m.take(&p); err != nil {
		return nil, err
	}
	return m, m.test(&p)
}

// location parses a path.
func location(text string) ([]parser.Node, error) {
	if len(text) > longestLocation {
		return nil, fmt.Errorf("it has %d characters, %d are the most", len(text), longestLocation)
	}
	path, err := parser.Parse(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%q: %w", text, err)
	case len(path.Nodes) == 0:
		return nil, errors.New("it is missing: a path such as spec.containers[name: *].image")
	case len(path.Nodes) > deepestLocation:
		return nil, fmt.Errorf("it has %d parts, %d are the most", len(path.Nodes), deepestLocation)
	}
	return path.Nodes, nil
}

// only refuses parameters of other kinds.
func (p *parameters) only(kind string) error {
	for _, f := range []struct {
		name  string
		given bool
		of    []string
	}{
		{"pathTests", len(p.PathTests) > 0, []string{Assign, AssignImage, ModifySet}},
		{"assign", p.Assign != nil, []string{Assign, AssignMetadata}},
		{"operation", p.Operation != nil, []string{ModifySet}},
		{"values", len(p.Values) > 0, []string{ModifySet}},
		{"assignDomain", p.AssignDomain != nil, []string{AssignImage}},
		{"assignPath", p.AssignPath != nil, []string{AssignImage}},
		{"assignTag", p.AssignTag != nil, []string{AssignImage}},
	} {
		if f.given && !slices.Contains(f.of, kind) {
			return fmt.Errorf("spec.parameters.%s: %s has no such parameter", f.name, kind)
		}
	}
	return nil
}

// take takes what the parameters say is to be done, and holds it against the path.
func (m *Mutator) take(p *parameters) (err error) {
	root := m.path[0].Type() == parser.ObjectNode && reference(m.path[0]) == "metadata"
	if root && m.Kind != AssignMetadata {
		return fmt.Errorf("spec.location: %s does not change metadata; AssignMetadata adds labels and annotations", m.Kind)
	}
	if first := reference(m.path[0]); first == "apiVersion" || first == "kind" {
		return fmt.Errorf("spec.location: %s is not changed: it says what the object is", first)
	}
	switch m.Kind {
	case Assign:
		err = m.takeAssign(p)
	case AssignMetadata:
		err = m.takeMetadata(p)
	case AssignImage:
		err = m.takeImage(p)
	case ModifySet:
		err = m.takeSet(p)
	}
	return err
}

// last is the end of the path, and list the list in which it is an item's field, where it is one.
func (m *Mutator) last() (end parser.Node, list *parser.List) {
	end = m.path[len(m.path)-1]
	if len(m.path) > 1 {
		list, _ = m.path[len(m.path)-2].(*parser.List)
	}
	return end, list
}

// keepsKey refuses a path at which the key of a list's items stands.
func (m *Mutator) keepsKey() error {
	if end, list := m.last(); list != nil && reference(end) == list.KeyField {
		return fmt.Errorf("spec.location: it is the key %q of the list's items, which is not changed", list.KeyField)
	}
	return nil
}

// test takes the tests of the path. AssignMetadata changes nothing that is there.
func (m *Mutator) test(p *parameters) error {
	whole := parser.Path{Nodes: m.path}
	if m.Kind == AssignMetadata {
		var err error
		m.tests, err = tester.New(whole, []tester.Test{{SubPath: whole, Condition: tester.MustNotExist}})
		return err
	}
	var tests []tester.Test
	for i, t := range p.PathTests {
		at := fmt.Sprintf("spec.parameters.pathTests[%d]", i)
		if _, err := tester.StringToCondition(string(t.Condition)); err != nil {
			return fmt.Errorf("%s.condition: expected %s or %s, found %q", at, tester.MustExist, tester.MustNotExist, t.Condition)
		}
		nodes, err := location(t.SubPath)
		if err != nil {
			return fmt.Errorf("%s.subPath: %w", at, err)
		}
		if len(nodes) > len(m.path) || render(nodes) != render(m.path[:len(nodes)]) {
			return fmt.Errorf("%s.subPath: %q is not the beginning of spec.location", at, t.SubPath)
		}
		tests = append(tests, tester.Test{SubPath: parser.Path{Nodes: nodes}, Condition: t.Condition})
	}
	var err error
	if m.tests, err = tester.New(whole, tests); err != nil {
		return fmt.Errorf("spec.parameters.pathTests: %w", err)
	}
	return nil
}

// reference is the field that a node names; "" for a list's items.
func reference(n parser.Node) string {
	if o, ok := n.(*parser.Object); ok {
		return o.Reference
	}
	return ""
}

// render is a path as it would be written.
func render(path []parser.Node) string {
	var b strings.Builder
	for i, n := range path {
		if n.Type() == parser.ObjectNode && i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(n.String())
	}
	return b.String()
}
