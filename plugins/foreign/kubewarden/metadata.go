// SPDX-License-Identifier: Apache-2.0

// Package kubewarden is what Kubewarden's policies have in common, whichever way
// they are called: the metadata in the module, the questions and answers, and the
// calls with which a policy asks its host.
//
// What a policy may ask goes by the grants of its entry. A call outside of them is
// answered with an error that names the missing capability. Host calls are counted and
// charged by whoever carries them (packages wapc and wasicmd).
package kubewarden

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Section is the name of the custom section that holds the metadata.
const Section = "io.kubewarden.metadata"

// Metadata is what a policy says of itself. kwctl annotate puts it into the module.
type Metadata struct {
	ProtocolVersion       string            `json:"protocolVersion"`
	Rules                 []Rule            `json:"rules"`
	Annotations           map[string]string `json:"annotations"`
	Mutating              bool              `json:"mutating"`
	BackgroundAudit       *bool             `json:"backgroundAudit"`
	ContextAwareResources []ContextResource `json:"contextAwareResources"`
	HostCapabilities      []string          `json:"hostCapabilities"`
	ExecutionMode         string            `json:"executionMode"`
	PolicyType            string            `json:"policyType"`
	MinimumVersion        string            `json:"minimumKubewardenVersion"`
}

// Rule is a rule of a webhook configuration.
type Rule struct {
	APIGroups   []string `json:"apiGroups"`
	APIVersions []string `json:"apiVersions"`
	Resources   []string `json:"resources"`
	Operations  []string `json:"operations"`
	Scope       string   `json:"scope"`
}

// ContextResource is a kind that the policy reads.
type ContextResource struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// ParseMetadata reads the section's content; nil content is no metadata.
func ParseMetadata(section []byte) (*Metadata, error) {
	if section == nil {
		return nil, nil
	}
	m := &Metadata{}
	if err := json.Unmarshal(section, m); err != nil {
		return nil, fmt.Errorf("the section %s of the module is no metadata of a Kubewarden policy: %w", Section, plainly(err))
	}
	return m, nil
}

// ABI is the ABI that the metadata names; "" where it names none.
func (m *Metadata) ABI() (manifest.ABI, error) {
	if m == nil || m.ExecutionMode == "" {
		return "", nil
	}
	modes := map[string]manifest.ABI{
		"kubewarden-wapc": manifest.KubewardenWaPC, "wasi": manifest.KubewardenWASI,
		"opa": manifest.OPA, "gatekeeper": manifest.Gatekeeper,
	}
	if a, ok := modes[m.ExecutionMode]; ok {
		return a, nil
	}
	return "", fmt.Errorf("the module's metadata name the execution mode %q, which is not known here", m.ExecutionMode)
}

// Check refuses what the metadata say cannot run here.
func (m *Metadata) Check() error {
	if m == nil {
		return nil
	}
	// kwctl annotate writes "Unknown" for policies that are asked in no protocol of
	// its own: those compiled from Rego, and commands of WASI.
	spoken := []string{"", "v1", "V1"}
	if m.ExecutionMode == "opa" || m.ExecutionMode == "gatekeeper" || m.ExecutionMode == "wasi" {
		spoken = append(spoken, "Unknown", "unknown")
	}
	if !slices.Contains(spoken, m.ProtocolVersion) {
		return fmt.Errorf("the policy speaks protocol %s: only v1 is spoken here", m.ProtocolVersion)
	}
	if m.PolicyType == "raw" {
		return errors.New(`the policy is of type "raw", which judges documents that are no admission requests: there is no decision point for it`)
	}
	return nil
}

// Manifest is the policy as a plugin: one hook, at the point that the entry names
// or the metadata imply, with the metadata's rules. also are points at which it can take part besides
// those of admission.
func (m *Metadata) Manifest(e *manifest.Entry, also ...abi.Point) (*abi.Manifest, error) {
	at := abi.AdmissionValidate
	var rules []abi.Rule
	out := &abi.Manifest{ABI: abi.Version, Name: e.Name, Settings: true, RulesAreDefaults: true}
	if m != nil {
		if m.Mutating {
			at = abi.AdmissionMutate
		}
		for _, r := range m.Rules {
			rules = append(rules, abi.Rule{Operations: r.Operations, Groups: r.APIGroups, Versions: r.APIVersions, Resources: r.Resources})
		}
		if title := m.Annotations["io.kubewarden.policy.title"]; title != "" {
			out.Name = title
		}
		out.Version = m.Annotations["io.kubewarden.policy.version"]
	}
	points := []abi.Point{at}
	if len(e.Points) > 0 {
		points = nil
		for _, p := range e.Points {
			points = append(points, abi.Point(p))
		}
	}
	for i, p := range points {
		if p != abi.AdmissionMutate && p != abi.AdmissionValidate && !slices.Contains(also, p) {
			return nil, fmt.Errorf("points: %s: such a policy takes part in admission.validate or admission.mutate", p)
		}
		if p == abi.AdmissionMutate && m != nil && !m.Mutating {
			return nil, errors.New("points: the policy's metadata say that it does not mutate; leave points out")
		}
		out.Hooks = append(out.Hooks, abi.Hook{Op: int32(i + 1), Point: p, Match: rules})
	}
	return out, CheckRules(rules)
}

// CheckRules refuses rules that could not match.
func CheckRules(rules []abi.Rule) error {
	known := []string{"CREATE", "UPDATE", "DELETE", "CONNECT", "*"}
	for i, r := range rules {
		for _, op := range r.Operations {
			if !slices.Contains(known, op) {
				return fmt.Errorf("rules[%d] of the module's metadata: unknown operation %q", i, op)
			}
		}
	}
	return nil
}
