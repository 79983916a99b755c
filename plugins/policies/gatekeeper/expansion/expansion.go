// SPDX-License-Identifier: Apache-2.0

// Package expansion is Gatekeeper's expansion: an ExpansionTemplate says what objects of one kind are going to
// make, such as the pods of a Deployment, so that policies are asked about these when it is written.
//
// It is pure. What templates make is bounded, and templates that lead back to themselves are left out.
package expansion

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/mutation"
	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

// Group and kind of templates.
const (
	Group = "expansion.gatekeeper.sh"
	Kind  = "ExpansionTemplate"
)

// Versions are those in which templates are served; the first is stored.
func Versions() []string { return []string{"v1beta1", "v1alpha1"} }

// Bounds of what is made of one object.
const (
	longestName = 63
	deepest     = 30
	most        = 100
)

// Template is one that has been read.
type Template struct {
	Name string
	// Action is what violations of what it makes do, in the place of what the constraints say: deny, warn or
	// dryrun; "" = what they say.
	Action string

	generators []schema.GroupVersionKind
	source     []string
	makes      schema.GroupVersionKind
}

type document struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   tree.Metadata   `json:"metadata"`
	Status     json.RawMessage `json:"status"`
	Spec       struct {
		ApplyTo           []mutation.ApplyTo `json:"applyTo"`
		TemplateSource    string             `json:"templateSource"`
		EnforcementAction string             `json:"enforcementAction"`
		GeneratedGVK      struct {
			Group   string `json:"group"`
			Version string `json:"version"`
			Kind    string `json:"kind"`
		} `json:"generatedGVK"`
	} `json:"spec"`
}

// Read reads a template.
func Read(object map[string]any) (*Template, error) {
	var d document
	if err := tree.Decode(object, &d, Kind); err != nil {
		return nil, err
	}
	if err := tree.Expect(Group, d.APIVersion, d.Kind, Kind); err != nil {
		return nil, err
	}
	g := d.Spec.GeneratedGVK
	t := &Template{
		Name: d.Metadata.Name, Action: d.Spec.EnforcementAction, source: strings.Split(d.Spec.TemplateSource, "."),
		makes: schema.GroupVersionKind{Group: g.Group, Version: g.Version, Kind: g.Kind},
	}
	switch {
	case len(t.Name) > longestName:
		return nil, fmt.Errorf("metadata.name: it has %d characters, %d are the most", len(t.Name), longestName)
	case d.Spec.TemplateSource == "":
		return nil, errors.New("spec.templateSource: it is missing: the field that holds what is made, such as spec.template")
	case t.makes.Version == "" || t.makes.Kind == "":
		return nil, errors.New("spec.generatedGVK: version and kind of what is made are missing")
	case !slices.Contains([]string{"", "deny", "warn", "dryrun"}, t.Action):
		return nil, fmt.Errorf("spec.enforcementAction: expected deny, warn or dryrun, found %q", t.Action)
	}
	var err error
	if t.generators, err = mutation.Bindings(d.Spec.ApplyTo); err != nil {
		return nil, err
	}
	if slices.Contains(t.generators, t.makes) {
		return nil, fmt.Errorf("spec.generatedGVK: the template is for objects of kind %s, and makes such again", t.makes.Kind)
	}
	return t, nil
}

// Kinds are those of the objects that the template expands.
func (t *Template) Kinds() (out []schema.GroupKind) {
	for _, g := range t.generators {
		if !slices.Contains(out, g.GroupKind()) {
			out = append(out, g.GroupKind())
		}
	}
	return out
}

// Set is all templates that there are. It is safe for concurrent use.
type Set struct {
	of     map[schema.GroupVersionKind][]*Template
	cycles map[*Template][]string
}

// NewSet makes a set. Templates that lead back to what they began with are not used.
func NewSet(list []*Template) *Set {
	s := &Set{of: map[schema.GroupVersionKind][]*Template{}, cycles: map[*Template][]string{}}
	list = slices.SortedFunc(slices.Values(list), func(a, b *Template) int { return cmp.Compare(a.Name, b.Name) })
	for _, t := range list {
		for _, g := range t.generators {
			s.of[g] = append(s.of[g], t)
		}
	}
	reach := map[*Template]map[*Template]bool{}
	for _, t := range list {
		reach[t] = s.behind(t)
	}
	for _, t := range list {
		for other := range reach[t] {
			if reach[t][t] && reach[other][t] {
				s.cycles[t] = append(s.cycles[t], other.Name)
			}
		}
		slices.Sort(s.cycles[t])
	}
	return s
}

// behind are the templates that what a template makes is expanded by, on and on.
func (s *Set) behind(t *Template) map[*Template]bool {
	out := map[*Template]bool{}
	queue := []*Template{t}
	for len(queue) > 0 {
		next := s.of[queue[0].makes]
		queue = queue[1:]
		for _, n := range next {
			if !out[n] {
				out[n] = true
				queue = append(queue, n)
			}
		}
	}
	return out
}

// Cycle are the templates of a cycle that t is part of; none = t is used.
func (s *Set) Cycle(t *Template) []string { return s.cycles[t] }

// Expands says whether objects of a kind are expanded.
func (s *Set) Expands(k schema.GroupVersionKind) bool { return len(s.of[k]) > 0 }

// Implied is an object that another one is going to make.
type Implied struct {
	*gatekeeper.Target
	Template *Template
}

// Empty says that nothing is expanded.
func (s *Set) Empty() bool { return len(s.of) == 0 }

// Expand makes what an object is going to make, and what that makes, changed by mutators.
func (s *Set) Expand(t *gatekeeper.Target, mutators *mutation.Set) (out []Implied, err error) {
	err = s.expand(t, mutators, &out, 0)
	return out, err
}

func (s *Set) expand(t *gatekeeper.Target, mutators *mutation.Set, out *[]Implied, depth int) error {
	for _, template := range s.of[t.Kind] {
		if len(s.cycles[template]) > 0 {
			continue
		}
		if depth == deepest || len(*out) == most {
			return fmt.Errorf("%s %s: more than %d objects, or more than %d one behind the other, are made of one", Kind, template.Name, most, deepest)
		}
		made, err := template.expand(t)
		if err != nil {
			return fmt.Errorf("%s %s: %w", Kind, template.Name, err)
		}
		if mutators != nil {
			if _, err := mutators.Mutate(made); err != nil {
				return fmt.Errorf("%s %s: %w", Kind, template.Name, err)
			}
		}
		*out = append(*out, Implied{made, template})
		if err := s.expand(made, mutators, out, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// expand makes one object. Its name is that of its generator, with its kind.
func (t *Template) expand(of *gatekeeper.Target) (*gatekeeper.Target, error) {
	source, there, err := unstructured.NestedMap(of.Object, t.source...)
	at := strings.Join(t.source, ".")
	if err != nil {
		return nil, fmt.Errorf("spec.templateSource: what stands at %s is no object: %w", at, err)
	}
	if !there {
		return nil, fmt.Errorf("spec.templateSource: the object has no %s", at)
	}
	generator := unstructured.Unstructured{Object: of.Object}
	o := unstructured.Unstructured{Object: source}
	o.SetGroupVersionKind(t.makes)
	o.SetNamespace(of.Namespace)
	o.SetName(strings.ToLower(generator.GetName() + "-" + t.makes.Kind))
	return &gatekeeper.Target{
		Object: source, Kind: t.makes, Namespace: of.Namespace, Labels: of.Labels, User: of.User, Source: gatekeeper.Generated,
		External: of.External,
	}, nil
}

// Message is what a violation by an implied object says.
func (i *Implied) Message(text string) string { return "[Implied by " + i.Template.Name + "] " + text }
