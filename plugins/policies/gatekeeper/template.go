// SPDX-License-Identifier: Apache-2.0

// Package gatekeeper reads policies as they are written for Gatekeeper: a ConstraintTemplate
// with its Rego or its expressions in CEL, and Constraints of the kind that it defines. Each Constraint becomes an entry,
// by which its template's policy runs as a plugin.
//
// What a template or a constraint says that has no counterpart here is an error that names the
// field: a policy is never made to guard less than it says.
package gatekeeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"

	"github.com/wasmplane/wasmplane/plugins/policies/tree"
	"github.com/wasmplane/wasmplane/plugins/rego"
)

// API groups and kinds of Gatekeeper.
const (
	TemplateGroup   = "templates.gatekeeper.sh"
	TemplateKind    = "ConstraintTemplate"
	ConstraintGroup = "constraints.gatekeeper.sh"
	// ConstraintVersion is the one in which constraints are stored.
	ConstraintVersion = "v1beta1"

	target = "admission.k8s.gatekeeper.sh"
	// syncAnnotation says of which kinds the template's data.inventory has to hold objects.
	syncAnnotation = "metadata.gatekeeper.sh/requires-sync-data"
)

// Template is a ConstraintTemplate.
type Template struct {
	Name string
	// Kind of the constraints that it defines.
	Kind string
	// Rego is its policy; without files, CEL is.
	Rego rego.Policy
	CEL  *Expressions
	// Inventory: the policy looks at other objects of the cluster, and Sync says at which:
	// of each list in it, one that the cluster serves.
	Inventory bool
	Sync      [][]SyncKind

	shortNames []string
	parameters *apiextensionsv1.JSONSchemaProps
	schema     validation.SchemaValidator // of its constraints
}

// SyncKind names kinds of objects.
type SyncKind struct {
	Groups   []string `json:"groups"`
	Versions []string `json:"versions"`
	Kinds    []string `json:"kinds"`
}

// document is a template as it is written, without what says nothing about the policy.
type document struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   tree.Metadata   `json:"metadata"`
	Status     json.RawMessage `json:"status"`
	Spec       struct {
		CRD struct {
			Spec struct {
				Names struct {
					Kind       string   `json:"kind"`
					ShortNames []string `json:"shortNames"`
				} `json:"names"`
				Validation *struct {
					LegacySchema    *bool           `json:"legacySchema"`
					OpenAPIV3Schema json.RawMessage `json:"openAPIV3Schema"`
				} `json:"validation"`
			} `json:"spec"`
		} `json:"crd"`
		Targets []targetDocument `json:"targets"`
	} `json:"spec"`
}

type targetDocument struct {
	Target string   `json:"target"`
	Rego   string   `json:"rego"`
	Libs   []string `json:"libs"`
	Code   []struct {
		Engine string          `json:"engine"`
		Source json.RawMessage `json:"source"`
	} `json:"code"`
}

type regoSource struct {
	Version string   `json:"version"`
	Rego    string   `json:"rego"`
	Libs    []string `json:"libs"`
}

// ReadTemplate reads a ConstraintTemplate. It compiles expressions in CEL, and no Rego.
func ReadTemplate(template map[string]any) (*Template, error) {
	var d document
	if err := tree.Decode(template, &d, TemplateKind); err != nil {
		return nil, err
	}
	if err := tree.Expect(TemplateGroup, d.APIVersion, d.Kind, TemplateKind); err != nil {
		return nil, err
	}
	t := &Template{Name: d.Metadata.Name, Kind: d.Spec.CRD.Spec.Names.Kind, shortNames: d.Spec.CRD.Spec.Names.ShortNames}
	switch {
	case t.Kind == "":
		return nil, errors.New("spec.crd.spec.names.kind: the kind of the constraints is missing")
	case t.Name != strings.ToLower(t.Kind):
		return nil, fmt.Errorf("metadata.name: expected %q, the kind of the constraints in lower case, found %q", strings.ToLower(t.Kind), t.Name)
	case len(d.Spec.Targets) != 1:
		return nil, fmt.Errorf("spec.targets: expected one, found %d", len(d.Spec.Targets))
	}
	if err := t.readTarget(&d.Spec.Targets[0]); err != nil {
		return nil, err
	}
	if v := d.Spec.CRD.Spec.Validation; v != nil && len(v.OpenAPIV3Schema) > 0 && string(v.OpenAPIV3Schema) != "null" {
		t.parameters = &apiextensionsv1.JSONSchemaProps{}
		if err := tree.Strict(v.OpenAPIV3Schema, t.parameters, "spec.crd.spec.validation.openAPIV3Schema"); err != nil {
			return nil, err
		}
		// Which version it was written in is not stored, so what v1beta1 means by nothing holds.
		if v.LegacySchema == nil || *v.LegacySchema {
			openUp(t.parameters)
		}
	}
	t.Inventory = slices.ContainsFunc(t.Rego.Files, func(f rego.File) bool { return strings.Contains(f.Text, "data.inventory") })
	var err error
	if t.Sync, err = syncKinds(d.Metadata.Annotations[syncAnnotation]); err != nil {
		return nil, fmt.Errorf("metadata.annotations[%s]: %w", syncAnnotation, err)
	}
	if t.schema, err = t.validator(); err != nil {
		return nil, err
	}
	return t, nil
}

// engines that templates are written for.
const (
	engineRego = "Rego"
	engineCEL  = "K8sNativeValidation"
)

// readTarget takes the policy. Of several engines it is Rego's: all of them are to decide alike.
func (t *Template) readTarget(d *targetDocument) error {
	if d.Target != target {
		return fmt.Errorf("spec.targets[0].target: expected %s, found %q", target, d.Target)
	}
	at, source := "spec.targets[0]", regoSource{Rego: d.Rego, Libs: d.Libs}
	inCEL := -1
	var engines []string
	for i, c := range d.Code {
		engines = append(engines, c.Engine)
		switch c.Engine {
		case engineCEL:
			inCEL = i
		case engineRego:
			at = fmt.Sprintf("spec.targets[0].code[%d].source", i)
			source = regoSource{}
			if err := tree.Strict(c.Source, &source, at); err != nil {
				return err
			}
		}
	}
	switch {
	case strings.TrimSpace(source.Rego) != "":
		return t.readRego(at, source)
	case inCEL >= 0:
		var err error
		t.CEL, err = readExpressions(d.Code[inCEL].Source, fmt.Sprintf("spec.targets[0].code[%d].source", inCEL))
		return err
	case len(engines) > 0:
		return fmt.Errorf("spec.targets[0].code: a policy for the engine %s or %s was expected, found %s",
			engineRego, engineCEL, strings.Join(engines, ", "))
	}
	return errors.New("spec.targets[0].rego: the policy is missing")
}

func (t *Template) readRego(at string, source regoSource) error {
	t.Rego.Version = rego.V0
	switch source.Version {
	case "", "v0":
	case "v1":
		t.Rego.Version = rego.V1
	default:
		return fmt.Errorf("%s.version: expected v0 or v1, found %q", at, source.Version)
	}
	t.Rego.Files = []rego.File{{Name: at + ".rego", Text: source.Rego}}
	for i, lib := range source.Libs {
		t.Rego.Files = append(t.Rego.Files, rego.File{Name: fmt.Sprintf("%s.libs[%d]", at, i), Text: lib})
	}
	return nil
}

// syncKinds reads the annotation: JSON, which most templates put into quotation marks.
func syncKinds(text string) ([][]SyncKind, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	text = strings.Trim(text, `"`)
	var out [][]SyncKind
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return nil, fmt.Errorf("expected lists of lists of {groups, versions, kinds} as JSON: %w", err)
	}
	return out, nil
}

// openUp has a schema take every field wherever it doesn't say of which type something is, as
// templates were written before types were required.
func openUp(s *apiextensionsv1.JSONSchemaProps) {
	if s.Type == "" && !s.XIntOrString {
		yes := true
		s.XPreserveUnknownFields = &yes
		if s.Properties != nil || s.AdditionalProperties != nil {
			s.Type = "object"
		}
		if s.Items != nil {
			s.Type = "array"
		}
	}
	for name, p := range s.Properties {
		openUp(&p)
		s.Properties[name] = p
	}
	if s.Items != nil && s.Items.Schema != nil {
		openUp(s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		openUp(s.AdditionalProperties.Schema)
	}
}
