// SPDX-License-Identifier: Apache-2.0

package gatekeeper

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

// match is spec.match of a constraint.
type match struct {
	Source             string                `json:"source"`
	Kinds              []kinds               `json:"kinds"`
	Scope              string                `json:"scope"`
	Namespaces         []string              `json:"namespaces"`
	ExcludedNamespaces []string              `json:"excludedNamespaces"`
	LabelSelector      *metav1.LabelSelector `json:"labelSelector"`
	NamespaceSelector  *metav1.LabelSelector `json:"namespaceSelector"`
	Name               string                `json:"name"`
}

type kinds struct {
	APIGroups []string `json:"apiGroups"`
	Kinds     []string `json:"kinds"`
}

// subresources are those that Gatekeeper's own webhook is asked about, by the kind of
// their objects. It is asked about all resources, too.
var subresources = map[string][]string{
	"Pod":      {"pods/ephemeralcontainers"},
	"Eviction": {"pods/eviction"},
	"Binding":  {"pods/binding"},
	"Scale":    {"deployments/scale", "replicasets/scale", "statefulsets/scale", "replicationcontrollers/scale"},
	"Service":  {"services/status"},
}

// resources are what a rule about some kinds, or about all (none are named), has to name.
func resources(kinds []string) []any {
	out := []any{"*"}
	for _, kind := range slices.Sorted(maps.Keys(subresources)) {
		if len(kinds) == 0 || slices.Contains(kinds, "*") || slices.Contains(kinds, kind) {
			out = append(out, tree.Texts(subresources[kind])...)
		}
	}
	return out
}

// Asked says whether Gatekeeper's own webhooks would be asked about writes to a resource or subresource.
func Asked(resource, subresource string) bool {
	if subresource == "" {
		return true
	}
	for _, list := range subresources {
		if slices.Contains(list, resource+"/"+subresource) {
			return true
		}
	}
	return false
}

// operations are those that Gatekeeper's own webhook is asked about.
var operations = []any{"CREATE", "UPDATE"}

// entryMatch is what a constraint's match is in an entry.
func entryMatch(text json.RawMessage) (map[string]any, error) {
	var m match
	if len(text) > 0 {
		if err := tree.Strict(text, &m, "spec.match"); err != nil {
			return nil, err
		}
	}
	if err := checkSource(m.Source); err != nil {
		return nil, err
	}
	out := map[string]any{"rules": m.rules()}
	conditions, err := m.conditions()
	if err != nil {
		return nil, err
	}
	if len(conditions) > 0 {
		out["conditions"] = conditions
	}
	return out, tree.Selectors(out, m.LabelSelector, m.NamespaceSelector)
}

func (m *match) rules() []any {
	if len(m.Kinds) == 0 {
		return []any{map[string]any{"operations": operations, "resources": resources(nil)}}
	}
	var out []any
	for _, k := range m.Kinds {
		rule := map[string]any{"operations": operations, "resources": resources(k.Kinds)}
		if len(k.APIGroups) > 0 {
			rule["apiGroups"] = tree.Texts(k.APIGroups)
		}
		if len(k.Kinds) > 0 {
			rule["kinds"] = tree.Texts(k.Kinds)
		}
		out = append(out, rule)
	}
	return out
}

// Parts of expressions. A Namespace counts as being in itself.
const (
	isNamespace = `(request.kind.group == "" && request.kind.kind == "Namespace")`
	namespace   = `(` + isNamespace + ` ? request.name : request.namespace)`
	meta        = `(object != null ? object : oldObject).metadata`
)

// conditions are what rules and selectors cannot say.
func (m *match) conditions() ([]any, error) {
	var out []any
	add := func(name, expression string) {
		out = append(out, map[string]any{"name": name, "expression": expression})
	}
	if err := globs(slices.Concat(m.Namespaces, m.ExcludedNamespaces, []string{m.Name})); err != nil {
		return nil, fmt.Errorf("spec.match: %w", err)
	}
	if len(m.Namespaces) > 0 {
		add("namespaces", namespace+` == "" || `+anyGlob(namespace, m.Namespaces))
	}
	if len(m.ExcludedNamespaces) > 0 {
		add("excluded-namespaces", namespace+` == "" || !(`+anyGlob(namespace, m.ExcludedNamespaces)+`)`)
	}
	switch m.Scope {
	case "Cluster":
		add("scope", `request.namespace == "" || `+isNamespace)
	case "Namespaced":
		add("scope", `request.namespace != "" && !`+isNamespace)
	case "", "*":
	default:
		return nil, fmt.Errorf("spec.match.scope: expected *, Cluster or Namespaced, found %q", m.Scope)
	}
	if m.Name != "" {
		e := `has(` + meta + `.name) && ` + glob(meta+`.name`, m.Name)
		if strings.HasSuffix(m.Name, "*") { // what comes behind the generated part's beginning is not known yet
			e += ` || has(` + meta + `.generateName) && ` + glob(meta+`.generateName`, m.Name)
		}
		add("name", e)
	}
	switch Source(m.Source) {
	case Original:
		add("source", `!request.implied`)
	case Generated:
		add("source", `request.implied`)
	case All:
	}
	return out, nil
}

func anyGlob(expression string, patterns []string) string {
	var parts []string
	for _, p := range patterns {
		parts = append(parts, glob(expression, p))
	}
	return strings.Join(parts, " || ")
}

// glob is an expression that says whether a text matches a pattern with a star at its
// beginning, at its end, or at both.
func glob(expression, pattern string) string {
	begins, ends := strings.HasSuffix(pattern, "*"), strings.HasPrefix(pattern, "*")
	fixed := strconv.Quote(strings.Trim(pattern, "*"))
	switch {
	case fixed == `""`:
		return "true"
	case begins && ends:
		return expression + `.contains(` + fixed + `)`
	case begins:
		return expression + `.startsWith(` + fixed + `)`
	case ends:
		return expression + `.endsWith(` + fixed + `)`
	}
	return expression + ` == ` + fixed
}
