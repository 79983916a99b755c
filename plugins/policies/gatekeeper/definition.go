// SPDX-License-Identifier: Apache-2.0

package gatekeeper

import (
	"fmt"
	"maps"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/definition"
)

func selector(description string) definition.Props {
	return definition.Object(description, map[string]definition.Props{
		"matchLabels": definition.Map(definition.Text(""), ""),
		"matchExpressions": definition.List(definition.Object("", map[string]definition.Props{
			"key": definition.Text(""), "operator": definition.Text(""), "values": definition.List(definition.Text(""), ""),
		}), ""),
	})
}

// MatchSchema is that of spec.match, which constraints and mutators share.
func MatchSchema(about string) definition.Props {
	return definition.Object(about, map[string]definition.Props{
		"source": definition.Text("All, Original or Generated (by an ExpansionTemplate)."),
		"kinds": definition.List(definition.Object("", map[string]definition.Props{
			"apiGroups": definition.List(definition.Text(""), ""), "kinds": definition.List(definition.Text(""), ""),
		}), "Kinds of objects; one of them has to match."),
		"scope":              definition.Text("*, Cluster or Namespaced."),
		"namespaces":         definition.List(definition.Text(""), "Namespaces, with a star at the beginning or the end."),
		"excludedNamespaces": definition.List(definition.Text(""), "Namespaces that are left out, with a star at the beginning or the end."),
		"labelSelector":      selector("Of the object's labels."),
		"namespaceSelector":  selector("Of its namespace's labels."),
		"name":               definition.Text("Of the object, with a star at the beginning or the end."),
	})
}

// Definition is the definition of the kind of the template's constraints.
func (t *Template) Definition() *apiextensionsv1.CustomResourceDefinition {
	spec := definition.Object("", map[string]definition.Props{
		"enforcementAction": definition.Text("deny, warn, dryrun, or scoped: what scopedEnforcementActions say."),
		"scopedEnforcementActions": definition.List(definition.Object("", map[string]definition.Props{
			"action": definition.Text("deny, warn or dryrun."),
			"enforcementPoints": definition.List(definition.Object("", map[string]definition.Props{
				"name": definition.Text("validation.gatekeeper.sh, vap.k8s.io, audit.gatekeeper.sh, gator.gatekeeper.sh, or * for all of them."),
			}), "Where the action counts."),
		}), "What decisions do at which places. At a place that is not named the constraint is not asked."),
		"match": MatchSchema("Which objects the constraint is about. Everything given has to match."),
	})
	if t.parameters != nil {
		spec.Properties["parameters"] = *t.parameters
	}
	resource := strings.ToLower(t.Kind)
	return definition.New(definition.Kind{
		Resource: schema.GroupVersionResource{Group: ConstraintGroup, Version: ConstraintVersion, Resource: resource}, Kind: t.Kind,
		ShortNames: t.shortNames, Categories: []string{"constraint", "constraints"}, Spec: spec, Status: definition.Open("What became of it."),
		Columns: []definition.Column{
			definition.Show("enforcement-action", "string", ".spec.enforcementAction", "What its decisions do.", 0),
			definition.Show("ready", "string", `.status.conditions[?(@.type=="Ready")].status`, "Whether it is in force.", 0),
			definition.Show("total-violations", "integer", ".status.totalViolations", "Refusals and what would have been.", 0),
		},
	})
}

// validator holds constraints against the schema of their kind.
func (t *Template) validator() (validation.SchemaValidator, error) {
	var internal apiextensions.JSONSchemaProps
	of := t.Definition().Spec.Versions[0].Schema.OpenAPIV3Schema
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(of, &internal, nil); err != nil {
		return nil, fmt.Errorf("spec.crd.spec.validation.openAPIV3Schema: %w", err)
	}
	v, _, err := validation.NewSchemaValidator(&internal)
	if err != nil {
		return nil, fmt.Errorf("spec.crd.spec.validation.openAPIV3Schema: %w", err)
	}
	return v, nil
}

// Validate holds a constraint against the schema of its kind.
func (t *Template) Validate(tree map[string]any) error {
	bare := maps.Clone(tree)
	delete(bare, "metadata")
	return validation.ValidateCustomResource(nil, bare, t.schema).ToAggregate()
}
