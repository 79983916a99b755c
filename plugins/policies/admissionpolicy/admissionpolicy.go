// SPDX-License-Identifier: Apache-2.0

// Package admissionpolicy reads policies as they are written for Kubewarden: ClusterAdmissionPolicy,
// AdmissionPolicy and the groups of both. Each becomes an entry, by which its module runs
// as a plugin.
//
// What a policy says that has no counterpart here is an error that names the field, unless it
// is about how Kubewarden itself runs its policies.
package admissionpolicy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

// Group is the API group of the policies.
const Group = "policies.kubewarden.io"

// DigestAnnotation on a policy pins its module, where the reference names no digest.
const DigestAnnotation = manifest.APIGroup + "/digest"

// The kinds.
const (
	ClusterPolicy = "ClusterAdmissionPolicy"
	Policy        = "AdmissionPolicy"
	ClusterGroup  = "ClusterAdmissionPolicyGroup"
	PolicyGroup   = "AdmissionPolicyGroup"
)

// Kinds lists them.
func Kinds() []string { return []string{ClusterPolicy, Policy, ClusterGroup, PolicyGroup} }

// document is a policy as it is written.
type document struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   tree.Metadata   `json:"metadata"`
	Status     json.RawMessage `json:"status"`
	Spec       spec            `json:"spec"`
}

type spec struct {
	module
	Mode              string                `json:"mode"`
	Mutating          bool                  `json:"mutating"`
	Rules             []rule                `json:"rules"`
	MatchConditions   []condition           `json:"matchConditions"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector"`
	ObjectSelector    *metav1.LabelSelector `json:"objectSelector"`
	FailurePolicy     string                `json:"failurePolicy"`
	TimeoutSeconds    int32                 `json:"timeoutSeconds"`

	// Of groups.
	Expression string            `json:"expression"`
	Message    string            `json:"message"`
	Policies   map[string]module `json:"policies"`

	// How Kubewarden runs its policies, which is settled otherwise here.
	PolicyServer    string `json:"policyServer"`
	BackgroundAudit *bool  `json:"backgroundAudit"`
	MatchPolicy     string `json:"matchPolicy"`
	SideEffects     string `json:"sideEffects"`
}

// module is a policy's module and what it gets.
type module struct {
	Module                string          `json:"module"`
	Settings              json.RawMessage `json:"settings"`
	ContextAwareResources []struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	} `json:"contextAwareResources"`
	HostCapabilities   []string `json:"hostCapabilities"`
	TimeoutEvalSeconds int32    `json:"timeoutEvalSeconds"`
}

type rule struct {
	Operations  []string `json:"operations"`
	APIGroups   []string `json:"apiGroups"`
	APIVersions []string `json:"apiVersions"`
	Resources   []string `json:"resources"`
	Scope       string   `json:"scope"`
}

type condition struct {
	Name       string `json:"name"`
	Expression string `json:"expression"`
}

// modes are what becomes of a policy's mode.
var modes = map[string]manifest.Mode{"": manifest.Enforce, "protect": manifest.Enforce, "monitor": manifest.Audit}

// Entry is the spec of the plugin that a policy asks for, as an entry's tree without its
// name. A policy of a namespace sees requests of its namespace only: who loads the entry confines
// it.
func Entry(policy map[string]any, m tree.Mapper) (map[string]any, error) {
	var d document
	if err := tree.Decode(policy, &d, "policy"); err != nil {
		return nil, err
	}
	if err := tree.Expect(Group, d.APIVersion, d.Kind, Kinds()...); err != nil {
		return nil, err
	}
	s := &d.Spec
	mode, known := modes[s.Mode]
	if !known {
		return nil, fmt.Errorf("spec.mode: expected protect or monitor, found %q", s.Mode)
	}
	match, err := s.match()
	if err != nil {
		return nil, err
	}
	out := map[string]any{"mode": string(mode), "match": match}
	if digest := d.Metadata.Annotations[DigestAnnotation]; digest != "" {
		out["digest"] = digest
	}
	if s.FailurePolicy != "" {
		out["failurePolicy"] = s.FailurePolicy
	}
	if d.Kind == ClusterGroup || d.Kind == PolicyGroup {
		return out, s.group(out, m)
	}
	return out, s.single(out, m)
}

// single completes the entry of one policy.
func (s *spec) single(out map[string]any, m tree.Mapper) error {
	if s.Expression != "" || len(s.Policies) > 0 || s.Message != "" {
		return errors.New("spec: expression, message and policies belong to a group of policies")
	}
	at, err := s.entry("spec", out["digest"] != nil, m)
	if err != nil {
		return err
	}
	maps.Copy(out, at)
	out["points"] = []any{"admission.validate"}
	if s.Mutating {
		out["points"] = []any{"admission.mutate"}
	}
	if seconds := shorter(s.TimeoutSeconds, s.TimeoutEvalSeconds); seconds > 0 {
		out["limits"] = map[string]any{"deadline": fmt.Sprintf("%ds", seconds)}
	}
	return nil
}

// group completes the entry of a group.
func (s *spec) group(out map[string]any, m tree.Mapper) error {
	if s.Module != "" || s.Mutating {
		return errors.New("spec: a group has no module of its own, and does not mutate; its policies have modules")
	}
	if s.Expression == "" || len(s.Policies) == 0 {
		return errors.New("spec: a group has an expression and policies")
	}
	members := map[string]any{}
	for name, p := range s.Policies {
		member, err := p.entry("spec.policies."+name, false, m)
		if err != nil {
			return err
		}
		if seconds := shorter(s.TimeoutSeconds, p.TimeoutEvalSeconds); seconds > 0 {
			member["limits"] = map[string]any{"deadline": fmt.Sprintf("%ds", seconds)}
		}
		members[name] = member
	}
	out["points"] = []any{"admission.validate"}
	out["group"] = map[string]any{"expression": s.Expression, "message": s.Message, "members": members}
	return nil
}

// shorter is the shorter of two times, of which 0 says nothing.
func shorter(a, b int32) int32 {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// entry is what module, settings and rights are in an entry.
func (p *module) entry(at string, pinned bool, m tree.Mapper) (map[string]any, error) {
	source, err := source(p.Module, pinned)
	if err != nil {
		return nil, fmt.Errorf("%s.module: %w", at, err)
	}
	out := map[string]any{"source": source}
	if len(p.Settings) > 0 && string(p.Settings) != "null" {
		var settings any
		if err := json.Unmarshal(p.Settings, &settings); err != nil {
			return nil, fmt.Errorf("%s.settings: %w", at, err)
		}
		out["settings"] = settings
	}
	grants := map[string]any{}
	var read []any
	for i, r := range p.ContextAwareResources {
		gv, err := schema.ParseGroupVersion(r.APIVersion)
		if err != nil || r.APIVersion == "" || r.Kind == "" {
			return nil, fmt.Errorf("%s.contextAwareResources[%d]: expected an apiVersion and a kind, found %q and %q", at, i, r.APIVersion, r.Kind)
		}
		resource, ok := m.Resource(gv.WithKind(r.Kind).GroupKind())
		if !ok {
			return nil, fmt.Errorf("%s.contextAwareResources[%d]: this cluster does not serve the kind %s of %s", at, i, r.Kind, r.APIVersion)
		}
		read = append(read, map[string]any{"apiGroups": []any{gv.Group}, "resources": []any{resource}})
	}
	if len(read) > 0 {
		grants["read"] = read
	}
	if len(p.HostCapabilities) > 0 {
		grants["capabilities"] = tree.Texts(p.HostCapabilities)
	}
	if len(grants) > 0 {
		out["grants"] = grants
	}
	return out, nil
}

// source is where a policy's module comes from. What a tag points to may change, so the
// reference has to name a digest, unless the policy is pinned otherwise.
func source(module string, pinned bool) (string, error) {
	out := module
	switch scheme, rest, found := strings.Cut(module, "://"); {
	case module == "":
		return "", errors.New("it is missing")
	case !found:
		out = "oci://" + module
	case scheme == "registry":
		out = "oci://" + rest
	case scheme == "https", scheme == "oci", scheme == "file":
	default:
		return "", fmt.Errorf("expected registry://, https:// or file://, found %q", module)
	}
	if path, file := strings.CutPrefix(out, "file://"); file {
		return "file:" + path, nil
	}
	if !pinned && !strings.Contains(out, "@sha256:") {
		return "", fmt.Errorf("%s names no digest, and what a tag points to may change: write it behind the tag (@sha256:...), or that of the module into the annotation %s; `wasmplane plugin inspect %s` prints it", module, DigestAnnotation, out)
	}
	return out, nil
}

// match is which requests the policy sees.
func (s *spec) match() (map[string]any, error) {
	out := map[string]any{}
	var rules, conditions []any
	scope := ""
	for i, r := range s.Rules {
		if i > 0 && r.Scope != scope && (r.Scope != "" && r.Scope != "*" || scope != "" && scope != "*") {
			return nil, fmt.Errorf("spec.rules[%d].scope: rules of several scopes are several policies here", i)
		}
		scope = r.Scope
		rules = append(rules, map[string]any{
			"operations": tree.Texts(r.Operations), "apiGroups": tree.Texts(r.APIGroups), "apiVersions": tree.Texts(r.APIVersions),
			"resources": tree.Texts(r.Resources),
		})
	}
	if len(rules) == 0 {
		return nil, errors.New("spec.rules: a policy sees what its rules name, and there are none")
	}
	out["rules"] = rules
	switch scope {
	case "", "*":
	case "Cluster":
		conditions = append(conditions, map[string]any{"name": "scope", "expression": `request.namespace == ""`})
	case "Namespaced":
		conditions = append(conditions, map[string]any{"name": "scope", "expression": `request.namespace != ""`})
	default:
		return nil, fmt.Errorf("spec.rules: scope: expected *, Cluster or Namespaced, found %q", scope)
	}
	for _, c := range s.MatchConditions {
		conditions = append(conditions, map[string]any{"name": c.Name, "expression": c.Expression})
	}
	if len(conditions) > 0 {
		out["conditions"] = conditions
	}
	return out, tree.Selectors(out, s.ObjectSelector, s.NamespaceSelector)
}
