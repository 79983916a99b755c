// SPDX-License-Identifier: Apache-2.0

package definitions_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	generated "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/wasmplane/wasmplane/core/api/definitions"
)

func reference(prefix string) common.ReferenceCallback {
	return func(name string) spec.Ref { return spec.MustCreateRef(prefix + common.EscapeJsonPointer(name)) }
}

// What is recorded is what the module that go.mod names has, to the types of its numbers.
func TestAllAreAsPublished(t *testing.T) {
	for _, prefix := range []string{"#/definitions/", "#/components/schemas/"} {
		want, got := generated.GetOpenAPIDefinitions(reference(prefix)), definitions.All(reference(prefix))
		if len(got) != len(want) {
			t.Errorf("%d definitions are recorded, %d published: run `make gen`", len(got), len(want))
		}
		for name, w := range want {
			plain(w.Schema)
			if g := got[name]; !reflect.DeepEqual(g, w) {
				t.Errorf("%s is not as published: run `make gen`\n got %s\nwant %s", name, text(t, g), text(t, w))
			}
		}
	}
}

// plain makes strings of defaults that are constants of a type of their own.
func plain(s spec.Schema) {
	for name, p := range s.Properties {
		if v := reflect.ValueOf(p.Default); v.Kind() == reflect.String {
			p.Default = v.String()
			s.Properties[name] = p
		}
	}
}

func text(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What one caller changes, another does not see.
func TestDefinitionsAreTheCallers(t *testing.T) {
	const pod = "io.k8s.api.core.v1.Pod"
	first := definitions.All(reference("#/definitions/"))
	before := text(t, first[pod])
	ruin(first[pod].Schema)
	if after := text(t, definitions.All(reference("#/definitions/"))[pod]); string(after) != string(before) {
		t.Errorf("a change of one caller's copy is in another's:\n%s\n%s", after, before)
	}
}

func ruin(s spec.Schema) {
	for name, p := range s.Properties {
		p.Default = "ruined"
		for i := range p.AllOf {
			p.AllOf[i].Description = "ruined"
		}
		p.AddExtension("x-ruined", true)
		s.Properties[name] = p
	}
	for name := range s.Extensions {
		s.Extensions[name] = "ruined"
	}
}

func BenchmarkAll(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		definitions.All(reference("#/definitions/"))
	}
}

func BenchmarkPublished(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		generated.GetOpenAPIDefinitions(reference("#/definitions/"))
	}
}
