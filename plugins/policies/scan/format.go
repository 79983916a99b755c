// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Format is an open format of reports, by its API group.
type Format string

// The formats. Their fields are the same, their kinds are not.
const (
	PolicyReports Format = "wgpolicyk8s.io"
	OpenReports   Format = "openreports.io"
)

var kindsOf = map[Format]struct{ version, kind, short, clusterKind, clusterShort string }{
	PolicyReports: {"v1alpha2", "PolicyReport", "polr", "ClusterPolicyReport", "cpolr"},
	OpenReports:   {"v1alpha1", "Report", "reps", "ClusterReport", "creps"},
}

func (f Format) kind(namespace string) string {
	if namespace == "" {
		return kindsOf[f].clusterKind
	}
	return kindsOf[f].kind
}

func (f Format) resource(namespace string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: string(f), Version: kindsOf[f].version, Resource: strings.ToLower(f.kind(namespace)) + "s"}
}

// Resource is that of reports about what is in a namespace, or in none ("").
func (f Format) Resource(namespace string) schema.GroupVersionResource { return f.resource(namespace) }

// Definitions are those of the kinds of a format; "" = there are none.
func Definitions(f Format) (out []*apiextensionsv1.CustomResourceDefinition) {
	k, known := kindsOf[f]
	if !known {
		return nil
	}
	for _, namespace := range []string{"any", ""} {
		short, scope := k.short, apiextensionsv1.NamespaceScoped
		if namespace == "" {
			short, scope = k.clusterShort, apiextensionsv1.ClusterScoped
		}
		out = append(out, f.definition(namespace, short, scope))
	}
	return out
}

func (f Format) definition(namespace, short string, scope apiextensionsv1.ResourceScope) *apiextensionsv1.CustomResourceDefinition {
	yes := true
	open := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &yes}
	list := apiextensionsv1.JSONSchemaProps{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &open}}
	column := func(name, kind, path string) apiextensionsv1.CustomResourceColumnDefinition {
		return apiextensionsv1.CustomResourceColumnDefinition{Name: name, Type: kind, JSONPath: path}
	}
	r, kind := f.resource(namespace), f.kind(namespace)
	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: r.GroupResource().String()},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: r.Group, Scope: scope,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: r.Resource, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List", ShortNames: []string{short},
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: r.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Description: kind + " is what policies have against objects.",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"source": {Type: "string"}, "scope": open, "scopeSelector": open, "configuration": open, "summary": open, "results": list,
					},
				}},
				AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{
					column("kind", "string", ".scope.kind"), column("name", "string", ".scope.name"), column("pass", "integer", ".summary.pass"),
					column("fail", "integer", ".summary.fail"), column("warn", "integer", ".summary.warn"),
					column("error", "integer", ".summary.error"), column("skip", "integer", ".summary.skip"),
					column("age", "date", ".metadata.creationTimestamp"),
				},
			}},
		},
	}
}
