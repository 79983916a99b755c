// SPDX-License-Identifier: Apache-2.0

// Package definition makes the custom resource definitions that a binary brings with it, and the parts of their schemas.
package definition

import (
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Props are the schema of an object or of a field.
type Props = apiextensionsv1.JSONSchemaProps

// Column is what `kubectl get` shows of an object.
type Column = apiextensionsv1.CustomResourceColumnDefinition

// Kind is what a definition defines.
type Kind struct {
	// Resource is the kind's, in the version that is stored.
	Resource schema.GroupVersionResource
	Kind     string
	// Scope is cluster-wide if it is empty.
	Scope apiextensionsv1.ResourceScope
	// Categories and ShortNames are more names by which kubectl knows the resource.
	Categories, ShortNames []string
	// Older are versions that are served, too, with the same schema.
	Older []string
	// Description of the kind, and the schemas of spec and status.
	Description  string
	Spec, Status Props
	// Required are the fields that every object has, such as spec.
	Required []string
	Columns  []Column
}

// New is the definition of a kind. What it has of k it shares with it.
func New(k Kind) *apiextensionsv1.CustomResourceDefinition {
	scope := k.Scope
	if scope == "" {
		scope = apiextensionsv1.ClusterScoped
	}
	d := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: k.Resource.GroupResource().String()},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: k.Resource.Group, Scope: scope,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: k.Resource.Resource, Singular: strings.ToLower(k.Kind), Kind: k.Kind, ListKind: k.Kind + "List",
				ShortNames: k.ShortNames, Categories: k.Categories,
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: k.Resource.Version, Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &Props{
					Type: "object", Description: k.Description, Required: k.Required,
					Properties: map[string]Props{"spec": k.Spec, "status": k.Status},
				}},
				AdditionalPrinterColumns: k.Columns,
			}},
		},
	}
	for _, version := range k.Older {
		older := *d.Spec.Versions[0].DeepCopy()
		older.Name, older.Storage = version, false
		d.Spec.Versions = append(d.Spec.Versions, older)
	}
	return d
}

// Show is a column with the value at a path, of a type such as string. Those of priority 1 are shown by -o wide.
func Show(name, kind, path, description string, priority int32) Column {
	return Column{Name: name, Type: kind, JSONPath: path, Description: description, Priority: priority}
}

// Text is a field of text.
func Text(description string) Props { return Props{Type: "string", Description: description} }

// Flag is a field that is true or false.
func Flag(description string) Props { return Props{Type: "boolean", Description: description} }

// Number is a whole number of 64 bits.
func Number(description string) Props {
	return Props{Type: "integer", Format: "int64", Description: description}
}

// List is a list of what has one schema.
func List(of Props, description string) Props {
	return Props{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &of}, Description: description}
}

// Map has values of one schema under names that somebody chooses.
func Map(of Props, description string) Props {
	return Props{
		Type: "object", Description: description, AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &of},
	}
}

// Object has fields of these schemas; others are dropped.
func Object(description string, fields map[string]Props) Props {
	return Props{Type: "object", Description: description, Properties: fields}
}

// Open is an object that keeps fields which no schema names.
func Open(description string) Props {
	yes := true
	return Props{Type: "object", XPreserveUnknownFields: &yes, Description: description}
}

// Bounded is text of so many characters at most.
func Bounded(p Props, most int64) Props {
	p.MaxLength = &most
	return p
}

// OneOf has one of these values.
func OneOf[S ~string](p Props, values ...S) Props {
	for _, v := range values {
		p.Enum = append(p.Enum, apiextensionsv1.JSON{Raw: []byte(`"` + string(v) + `"`)})
	}
	return p
}
