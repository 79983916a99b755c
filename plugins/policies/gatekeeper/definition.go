// SPDX-License-Identifier: Apache-2.0

package gatekeeper

import (
	"fmt"
	"maps"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func object(properties map[string]apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
	return apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties}
}

func text(description string) apiextensionsv1.JSONSchemaProps {
	return apiextensionsv1.JSONSchemaProps{Type: "string", Description: description}
}

func list(of apiextensionsv1.JSONSchemaProps, description string) apiextensionsv1.JSONSchemaProps {
	return apiextensionsv1.JSONSchemaProps{
		Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &of},
		Description: description,
	}
}

func open(description string) apiextensionsv1.JSONSchemaProps {
	yes := true
	return apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &yes, Description: description}
}

func selector(description string) apiextensionsv1.JSONSchemaProps {
	values := text("")
	s := object(map[string]apiextensionsv1.JSONSchemaProps{
		"matchLabels": {Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &values}},
		"matchExpressions": list(object(map[string]apiextensionsv1.JSONSchemaProps{
			"key": text(""), "operator": text(""), "values": list(text(""), ""),
		}), ""),
	})
	s.Description = description
	return s
}

// MatchSchema is that of spec.match, which constraints and mutators share.
func MatchSchema(about string) apiextensionsv1.JSONSchemaProps {
	s := matchSchema()
	s.Description = about
	return s
}

func matchSchema() apiextensionsv1.JSONSchemaProps {
	s := object(map[string]apiextensionsv1.JSONSchemaProps{
		"source": text("All, Original or Generated (by an ExpansionTemplate)."),
		"kinds": list(object(map[string]apiextensionsv1.JSONSchemaProps{
			"apiGroups": list(text(""), ""), "kinds": list(text(""), ""),
		}), "Kinds of objects; one of them has to match."),
		"scope":              text("*, Cluster or Namespaced."),
		"namespaces":         list(text(""), "Namespaces, with a star at the beginning or the end."),
		"excludedNamespaces": list(text(""), "Namespaces that are left out, with a star at the beginning or the end."),
		"labelSelector":      selector("Of the object's labels."),
		"namespaceSelector":  selector("Of its namespace's labels."),
		"name":               text("Of the object, with a star at the beginning or the end."),
	})
	s.Description = "Which objects the constraint is about. Everything given has to match."
	return s
}

// Definition is the definition of the kind of the template's constraints.
func (t *Template) Definition() *apiextensionsv1.CustomResourceDefinition {
	spec := object(map[string]apiextensionsv1.JSONSchemaProps{
		"enforcementAction": text("deny, warn, dryrun, or scoped: what scopedEnforcementActions say."),
		"scopedEnforcementActions": list(object(map[string]apiextensionsv1.JSONSchemaProps{
			"action": text("deny, warn or dryrun."),
			"enforcementPoints": list(object(map[string]apiextensionsv1.JSONSchemaProps{
				"name": text("validation.gatekeeper.sh, vap.k8s.io, audit.gatekeeper.sh, gator.gatekeeper.sh, or * for all of them."),
			}), "Where the action counts."),
		}), "What decisions do at which places. At a place that is not named the constraint is not asked."),
		"match": matchSchema(),
	})
	if t.parameters != nil {
		spec.Properties["parameters"] = *t.parameters
	}
	plural := strings.ToLower(t.Kind)
	column := func(name, kind, path, description string) apiextensionsv1.CustomResourceColumnDefinition {
		return apiextensionsv1.CustomResourceColumnDefinition{Name: name, Type: kind, JSONPath: path, Description: description}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + ConstraintGroup},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: ConstraintGroup, Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: plural, Singular: plural, Kind: t.Kind, ListKind: t.Kind + "List", ShortNames: t.shortNames,
				Categories: []string{"constraint", "constraints"},
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: ConstraintVersion, Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec, "status": open("What became of it.")},
				}},
				AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{
					column("enforcement-action", "string", ".spec.enforcementAction", "What its decisions do."),
					column("ready", "string", `.status.conditions[?(@.type=="Ready")].status`, "Whether it is in force."),
					column("total-violations", "integer", ".status.totalViolations", "Refusals and what would have been."),
				},
			}},
		},
	}
}

// validator holds constraints against the schema of their kind.
func (t *Template) validator() (validation.SchemaValidator, error) {
	var schema apiextensions.JSONSchemaProps
	of := t.Definition().Spec.Versions[0].Schema.OpenAPIV3Schema
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(of, &schema, nil); err != nil {
		return nil, fmt.Errorf("spec.crd.spec.validation.openAPIV3Schema: %w", err)
	}
	v, _, err := validation.NewSchemaValidator(&schema)
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
