// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/api"
)

// defined describes itself as definitions do, and counts how often.
type defined struct {
	api.Custom
	crd       *apiextensions.CustomResourceDefinition
	described *int
}

func (d defined) OpenAPIV3(v string) (*spec3.OpenAPI, error) {
	*d.described++
	return builder.BuildOpenAPIV3(d.crd, v, builder.Options{})
}

func (d defined) OpenAPIV2(v string) (*spec.Swagger, error) {
	*d.described++
	return builder.BuildOpenAPIV2(d.crd, v, builder.Options{V2: true})
}

func (d defined) Fingerprint() string { return fmt.Sprint(d.crd.Name, d.crd.Generation) }

// definition is the row of a kind with two versions and a scale subresource.
func definition(kind string, described *int) *api.Resource {
	plural := "x" + kind + "s"
	version := func(name string, storage bool) apiextensions.CustomResourceDefinitionVersion {
		return apiextensions.CustomResourceDefinitionVersion{
			Name: name, Served: true, Storage: storage,
			Subresources: &apiextensions.CustomResourceSubresources{
				Status: &apiextensions.CustomResourceSubresourceStatus{},
				Scale:  &apiextensions.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"},
			},
			Schema: &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &apiextensions.JSONSchemaProps{
				Type: "object", Description: `of "` + kind + `" <` + name + ">",
				Properties: map[string]apiextensions.JSONSchemaProps{"spec": {Type: "object", Properties: map[string]apiextensions.JSONSchemaProps{
					"replicas": {Type: "integer", Default: &apiextensions.JSON{Raw: []byte("1")}},
					"any":      {XPreserveUnknownFields: ptr.To(true)},
				}}},
			}},
		}
	}
	crd := &apiextensions.CustomResourceDefinition{Spec: apiextensions.CustomResourceDefinitionSpec{
		Group: "example.com", Scope: apiextensions.NamespaceScoped,
		Names:    apiextensions.CustomResourceDefinitionNames{Plural: plural, Singular: "x" + kind, Kind: kind, ListKind: kind + "List"},
		Versions: []apiextensions.CustomResourceDefinitionVersion{version("v1", true), version("v2", false)},
	}}
	crd.Name, crd.Generation = plural+".example.com", 1
	return &api.Resource{
		GroupResource: schema.GroupResource{Group: "example.com", Resource: plural}, Versions: []string{"v1", "v2"},
		Custom: defined{crd: crd, described: described},
	}
}

func documents(t *testing.T) *Documents {
	t.Helper()
	contract, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	return New(contract)
}

func TestCustomResourcesAreDescribedAsUpstreamsMergeDoes(t *testing.T) {
	d, n := documents(t), 0
	rows := []*api.Resource{definition("A", &n), definition("B", &n), definition("C", &n)}
	gv := schema.GroupVersion{Group: "example.com", Version: "v2"}
	got, err := d.V3(gv, rows)
	if err != nil {
		t.Fatal(err)
	}
	var parts []*spec3.OpenAPI
	var parts2 []*spec.Swagger
	for _, r := range rows {
		part, err := r.Custom.OpenAPIV3("v2")
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, part)
		for _, v := range r.Versions {
			part, err := r.Custom.OpenAPIV2(v)
			if err != nil {
				t.Fatal(err)
			}
			parts2 = append(parts2, part)
		}
	}
	merged, err := builder.MergeSpecsV3(parts...)
	if err != nil {
		t.Fatal(err)
	}
	want, err := encodeV3(gv, merged)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := tree(t, got.JSON), tree(t, want.JSON); !reflect.DeepEqual(a, b) {
		t.Errorf("v3 differs:\n%s\n%s", got.JSON, want.JSON)
	}
	var a, b openapi_v3.Document
	for doc, into := range map[*Document]*openapi_v3.Document{got: &a, want: &b} {
		if err := proto.Unmarshal(doc.Proto, into); err != nil {
			t.Fatal(err)
		}
		byName(into.Paths.Path, (*openapi_v3.NamedPathItem).GetName)
		byName(into.Components.Schemas.AdditionalProperties, (*openapi_v3.NamedSchemaOrReference).GetName)
	}
	if !proto.Equal(&a, &b) {
		t.Error("v3 differs in protobuf")
	}

	base, err := d.V2(nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err = d.V2(rows)
	if err != nil {
		t.Fatal(err)
	}
	expected := tree(t, base.JSON)
	for _, part := range parts2 {
		for name, s := range part.Definitions {
			dropDefaults(&s)
			part.Definitions[name] = s
		}
		text, err := json.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range v2Maps() {
			for name, v := range at(tree(t, text), in) {
				if expected[in] == nil {
					expected[in] = map[string]any{}
				}
				if _, has := at(expected, in)[name]; !has {
					at(expected, in)[name] = v
				}
			}
		}
	}
	whole := tree(t, got.JSON)
	for _, in := range v2Maps() {
		compareMaps(t, in, at(expected, in), at(whole, in))
	}
	var message openapi_v2.Document
	if err := proto.Unmarshal(got.Proto, &message); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, p := range message.Paths.Path {
		paths = append(paths, p.Name)
	}
	slices.Sort(paths)
	if want := slices.Sorted(maps.Keys(at(whole, "paths"))); !slices.Equal(paths, want) {
		t.Errorf("%d paths in protobuf, %d in JSON", len(paths), len(want))
	}
	if len(message.Definitions.AdditionalProperties) != len(at(whole, "definitions")) ||
		len(message.Parameters.GetAdditionalProperties()) != len(at(whole, "parameters")) {
		t.Errorf("protobuf has %d definitions and %d parameters, JSON %d and %d", len(message.Definitions.AdditionalProperties),
			len(message.Parameters.GetAdditionalProperties()), len(at(whole, "definitions")), len(at(whole, "parameters")))
	}
	if message.Swagger != "2.0" || message.Info.Title != "Kubernetes" {
		t.Errorf("head %s, %v", message.Swagger, message.Info)
	}
}

func byName[T any](all []T, name func(T) string) {
	slices.SortFunc(all, func(a, b T) int {
		if name(a) < name(b) {
			return -1
		}
		return 1
	})
}

// A change of one definition costs what that one costs, and what is gone is forgotten.
func TestADefinitionIsDescribedWhenItChanges(t *testing.T) {
	d, n := documents(t), 0
	var rows []*api.Resource
	for _, kind := range []string{"A", "B", "C", "D", "E"} {
		rows = append(rows, definition(kind, &n))
	}
	gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
	ask := func(rows []*api.Resource) (*Document, *Document) {
		t.Helper()
		n = 0
		v2, err := d.V2(rows)
		if err != nil {
			t.Fatal(err)
		}
		v3, err := d.V3(gv, rows)
		if err != nil {
			t.Fatal(err)
		}
		return v2, v3
	}
	before2, before3 := ask(rows)
	if n != 15 { // two versions of five in v2, one in v3
		t.Errorf("%d descriptions at first, want 15", n)
	}
	rows[2].Custom.(defined).crd.Generation++
	rows[2].Custom.(defined).crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = "changed"
	after2, after3 := ask(rows)
	if n != 3 {
		t.Errorf("%d descriptions after a change of one, want 3", n)
	}
	if before2.JSONTag == after2.JSONTag || before3.JSONTag == after3.JSONTag || before2.ProtoTag == after2.ProtoTag {
		t.Error("the change is not in the documents")
	}
	if ask(rows[:2]); n != 0 || len(d.custom.known) != 2*3 {
		t.Errorf("%d descriptions, %d kept, of two that did not change", n, len(d.custom.known))
	}
	none, err := d.V2(nil)
	if err != nil || none.JSONTag == before2.JSONTag || len(d.custom.known) != 0 {
		t.Errorf("definitions that are gone are described or kept (%d, %v)", len(d.custom.known), err)
	}
}

// BenchmarkAChangedDefinition is what clients wait for after one of many definitions changed.
func BenchmarkAChangedDefinition(b *testing.B) {
	for _, many := range []int{1, 150} {
		b.Run(fmt.Sprint(many), func(b *testing.B) {
			contract, err := api.New()
			if err != nil {
				b.Fatal(err)
			}
			d, n := New(contract), 0
			var rows []*api.Resource
			for i := range many {
				r := definition(fmt.Sprintf("K%d", i), &n)
				for _, v := range r.Custom.(defined).crd.Spec.Versions {
					for j := range 150 { // some 30 KB in each version
						v.Schema.OpenAPIV3Schema.Properties[fmt.Sprintf("field%d", j)] = apiextensions.JSONSchemaProps{
							Type:        "object",
							Description: "What it is for, in a sentence or two, as people write.",
							Properties:  map[string]apiextensions.JSONSchemaProps{"a": {Type: "string"}, "b": {Type: "integer", Format: "int32"}},
						}
					}
				}
				rows = append(rows, r)
			}
			if _, err := d.V2(rows); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				rows[0].Custom.(defined).crd.Generation++
				if _, err := d.V2(rows); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
