// SPDX-License-Identifier: Apache-2.0

package gatekeeper

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

// Source says where an object comes from.
type Source string

// Objects are those of requests (original), or those that an ExpansionTemplate makes of them (generated).
const (
	All       Source = "All"
	Original  Source = "Original"
	Generated Source = "Generated"
)

// Target is an object that is matched.
type Target struct {
	Object map[string]any
	Kind   schema.GroupVersionKind
	// Namespace in which the object is; "" = it belongs to the cluster.
	Namespace string
	// Labels are those of the namespace. They are asked for where a match depends on them.
	Labels func(namespace string) (map[string]string, error)
	// User who makes the request.
	User   string
	Source Source
	// External asks a provider of external data about keys, for a mutator (by its ID). nil = nobody is asked: fields keep their values.
	External func(mutator, provider string, keys []string) Answers
}

// Answers are what a provider says of a key, or why it doesn't.
type Answers func(key string) (string, error)

// Match is the match of a mutator: the fields of a constraint's.
type Match struct {
	match
	object, namespace labels.Selector // nil: all
}

// ReadMatch reads spec.match; an empty one matches everything.
func ReadMatch(text json.RawMessage) (*Match, error) {
	m := &Match{}
	if len(text) == 0 {
		return m, nil
	}
	if err := tree.Strict(text, &m.match, "spec.match"); err != nil {
		return nil, err
	}
	switch m.Scope {
	case "", "*", "Cluster", "Namespaced":
	default:
		return nil, fmt.Errorf("spec.match.scope: expected *, Cluster or Namespaced, found %q", m.Scope)
	}
	if err := checkSource(m.match.Source); err != nil {
		return nil, err
	}
	if err := globs(slices.Concat(m.Namespaces, m.ExcludedNamespaces, []string{m.Name})); err != nil {
		return nil, fmt.Errorf("spec.match: %w", err)
	}
	var err error
	if m.object, err = selectorOf(m.LabelSelector); err != nil {
		return nil, fmt.Errorf("spec.match.labelSelector: %w", err)
	}
	if m.namespace, err = selectorOf(m.NamespaceSelector); err != nil {
		return nil, fmt.Errorf("spec.match.namespaceSelector: %w", err)
	}
	return m, nil
}

func checkSource(source string) error {
	switch Source(source) {
	case "", All, Original, Generated:
		return nil
	}
	return fmt.Errorf("spec.match.source: expected All, Original or Generated, found %q", source)
}

func selectorOf(s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return nil, nil
	}
	return metav1.LabelSelectorAsSelector(s)
}

// Kinds are the API groups and kinds that are named; "*" and none = all.
func (m *Match) Kinds() (out []schema.GroupKind) {
	for _, k := range m.match.Kinds {
		for _, group := range orAll(k.APIGroups) {
			for _, kind := range orAll(k.Kinds) {
				out = append(out, schema.GroupKind{Group: group, Kind: kind})
			}
		}
	}
	return out
}

func orAll(list []string) []string {
	if len(list) == 0 {
		return []string{"*"}
	}
	return list
}

// Matches says whether the target is meant. A Namespace counts as being in itself; what belongs to
// the cluster is in all namespaces.
func (m *Match) Matches(t *Target) (bool, error) {
	o := unstructured.Unstructured{Object: t.Object}
	itself := t.Kind.Group == "" && t.Kind.Kind == "Namespace"
	in := t.Namespace
	if itself {
		in = o.GetName()
	}
	switch {
	case !m.MatchesKind(t.Kind), !m.matchesSource(t.Source):
		return false, nil
	case m.Scope == "Cluster" && t.Namespace != "" && !itself, m.Scope == "Namespaced" && (t.Namespace == "" || itself):
		return false, nil
	case in != "" && len(m.Namespaces) > 0 && !anyMatches(m.Namespaces, in), in != "" && anyMatches(m.ExcludedNamespaces, in):
		return false, nil
	case m.object != nil && !m.object.Matches(labels.Set(o.GetLabels())):
		return false, nil
	case m.Name != "" && !matchesGlob(m.Name, o.GetName()) && !(strings.HasSuffix(m.Name, "*") && matchesGlob(m.Name, o.GetGenerateName())):
		return false, nil
	}
	return m.matchesNamespace(t, in, itself, o.GetLabels())
}

// MatchesKind says whether objects of a kind may be meant.
func (m *Match) MatchesKind(k schema.GroupVersionKind) bool {
	if len(m.match.Kinds) == 0 {
		return true
	}
	return slices.ContainsFunc(m.match.Kinds, func(one kinds) bool {
		groups, names := orAll(one.APIGroups), orAll(one.Kinds)
		return (slices.Contains(groups, "*") || slices.Contains(groups, k.Group)) &&
			(slices.Contains(names, "*") || slices.Contains(names, k.Kind))
	})
}

func (m *Match) matchesSource(s Source) bool {
	wanted := Source(m.match.Source)
	return wanted == "" || wanted == All || wanted == s
}

func (m *Match) matchesNamespace(t *Target, in string, itself bool, own map[string]string) (bool, error) {
	if m.namespace == nil || in == "" {
		return true, nil
	}
	set := own
	if !itself {
		var err error
		if set, err = t.Labels(in); err != nil {
			return false, err
		}
	}
	return m.namespace.Matches(labels.Set(set)), nil
}

func anyMatches(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matchesGlob(p, text) })
}

// matchesGlob holds a text against a pattern with a star at its beginning, at its end, or at both.
func matchesGlob(pattern, text string) bool {
	begins, ends := strings.HasSuffix(pattern, "*"), strings.HasPrefix(pattern, "*")
	fixed := strings.Trim(pattern, "*")
	switch {
	case begins && ends:
		return strings.Contains(text, fixed)
	case begins:
		return strings.HasPrefix(text, fixed)
	case ends:
		return strings.HasSuffix(text, fixed)
	}
	return text == fixed
}
