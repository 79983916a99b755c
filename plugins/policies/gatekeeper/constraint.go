// SPDX-License-Identifier: Apache-2.0

package gatekeeper

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

// constraint is a Constraint as it is written.
type constraint struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   tree.Metadata   `json:"metadata"`
	Status     json.RawMessage `json:"status"`
	Spec       struct {
		EnforcementAction        string          `json:"enforcementAction"`
		ScopedEnforcementActions []scopedAction  `json:"scopedEnforcementActions"`
		Match                    json.RawMessage `json:"match"`
		Parameters               map[string]any  `json:"parameters"`
	} `json:"spec"`
}

// modes are what becomes of an enforcement action.
var modes = map[string]manifest.Mode{"deny": manifest.Enforce, "warn": manifest.Warn, "dryrun": manifest.Audit}

// Constraint is a Constraint that has been read.
type Constraint struct {
	Kind string

	actions    map[EnforcementPoint]string
	match      map[string]any
	parameters map[string]any
}

// ReadConstraint reads a Constraint, of whatever template. The template says what its
// parameters have to be.
func ReadConstraint(policy map[string]any) (*Constraint, error) {
	var c constraint
	if err := tree.Decode(policy, &c, "constraint"); err != nil {
		return nil, err
	}
	if err := tree.Expect(ConstraintGroup, c.APIVersion, c.Kind, c.Kind); err != nil {
		return nil, err
	}
	out := &Constraint{Kind: c.Kind, parameters: c.Spec.Parameters}
	var err error
	if out.actions, err = readActions(c.Spec.EnforcementAction, c.Spec.ScopedEnforcementActions); err != nil {
		return nil, err
	}
	out.match, err = entryMatch(c.Spec.Match)
	return out, err
}

// Entry is the spec of the plugin that a constraint asks for, as an entry's tree without its
// name. settings say of which kinds data.inventory holds objects besides those that the template
// itself requires, and where no constraint holds.
func (t *Template) Entry(c *Constraint, m tree.Mapper, settings Settings) (map[string]any, error) {
	if c.Kind != t.Kind {
		return nil, fmt.Errorf("expected a %s, found a %s", t.Kind, c.Kind)
	}
	entry := map[string]any{
		"abi": string(manifest.Gatekeeper), "points": []any{"admission.validate"}, "mode": string(t.mode(c)),
		"match": excluding(c.match, settings.Excluded),
	}
	if t.CEL != nil {
		if err := t.CEL.entry(entry); err != nil {
			return nil, err
		}
	} else {
		entry["rego"] = t.regoSource()
	}
	if len(c.parameters) > 0 {
		entry["settings"] = c.parameters
	}
	read, err := t.reads(m, settings.Sync)
	if err != nil {
		return nil, err
	}
	if len(read) > 0 {
		entry["grants"] = map[string]any{"read": read}
	}
	return entry, nil
}

// regoSource is the template's Rego as an entry has it.
func (t *Template) regoSource() map[string]any {
	source := map[string]any{"text": t.Rego.Files[0].Text, "version": string(t.Rego.Version)}
	if libs := t.Rego.Files[1:]; len(libs) > 0 {
		var texts []any
		for _, f := range libs {
			texts = append(texts, f.Text)
		}
		source["libs"] = texts
	}
	return source
}

// reads are the grants that fill data.inventory.
func (t *Template) reads(m tree.Mapper, sync []SyncKind) ([]any, error) {
	if !t.Inventory {
		return nil, nil
	}
	if len(t.Sync) == 0 && len(sync) == 0 {
		return nil, fmt.Errorf("the template %s looks at other objects (data.inventory), and nothing says at which: annotate it with %s, or write a %s", t.Name, syncAnnotation, SyncSetKind)
	}
	resources := map[string][]string{} // by group
	add := func(k SyncKind) (added bool) {
		for _, group := range k.Groups {
			for _, kind := range k.Kinds {
				r, ok := m.Resource(schema.GroupKind{Group: group, Kind: kind})
				if ok && !slices.Contains(resources[group], r) {
					resources[group] = append(resources[group], r)
				}
				added = added || ok
			}
		}
		return added
	}
	for i, alternatives := range t.Sync {
		served := false
		for _, k := range alternatives {
			served = add(k) || served
		}
		if !served {
			return nil, fmt.Errorf("the template %s looks at objects of kinds that this cluster does not serve: %s, list %d", t.Name, syncAnnotation, i+1)
		}
	}
	for _, k := range sync {
		add(k)
	}
	var out []any
	for _, group := range slices.Sorted(maps.Keys(resources)) {
		slices.Sort(resources[group])
		out = append(out, map[string]any{"apiGroups": []any{group}, "resources": tree.Texts(resources[group])})
	}
	return out, nil
}
