// SPDX-License-Identifier: Apache-2.0

package chartobject_test

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/core/chart/chartobject"
)

func object(name string, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetName(name)
	o.SetNamespace("shop")
	return o
}

func TestDefaults(t *testing.T) {
	o, err := chartobject.Decode(object("front", map[string]any{
		"chartFrom": map[string]any{"kind": "Secret", "name": "x"}, "valuesFrom": []any{map[string]any{"kind": "ConfigMap", "name": "y"}},
		"values": map[string]any{"a": int64(1)}, "timeout": "90s",
	}))
	if err != nil {
		t.Fatal(err)
	}
	s := o.Spec
	if s.ReleaseName != "front" || s.TargetNamespace != "shop" || s.ServiceAccountName != "default" ||
		s.FailurePolicy != chartobject.RollBack ||
		s.ChartFrom.Key != "chart.tgz" || s.ValuesFrom[0].Key != "values.yaml" || !*s.Wait || *s.Retries != 5 || o.Timeout.Seconds() != 90 ||
		string(s.Values) != `{"a":1}` {
		t.Errorf("%+v, %s", s, o.Timeout)
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	for want, spec := range map[string]map[string]any{
		"set one of chart":       {},
		"chartContent and":       {"chart": "x", "chartContent": "y"},
		"timeout: \"soon\"":      {"chart": "x", "timeout": "soon"},
		"not between 1s and 24h": {"chart": "x", "timeout": "0s"},
		"no name of a release":   {"chart": "x", "releaseName": strings.Repeat("a", 54)},
	} {
		o, err := chartobject.Decode(object("front", spec))
		if err == nil || !strings.Contains(err.Error(), want) || o == nil || o.Spec.TargetNamespace != "shop" {
			t.Errorf("%v: %v, want %q", spec, err, want)
		}
	}
}

// The schema has each field of the spec and of the status, and the definition is one that the server takes.
func TestDefinition(t *testing.T) {
	d := chartobject.Definition()
	var internal apiextensions.CustomResourceDefinition
	apiextensionsv1.SetDefaults_CustomResourceDefinition(d)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&d.Spec)
	d.Status.StoredVersions = []string{chartobject.Version}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(d, &internal, nil); err != nil {
		t.Fatal(err)
	}
	if errs := validation.ValidateCustomResourceDefinition(t.Context(), &internal); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
	schema := d.Spec.Versions[0].Schema.OpenAPIV3Schema
	for part, of := range map[string]reflect.Type{
		"spec": reflect.TypeFor[chartobject.Spec](), "status": reflect.TypeFor[chartobject.Status](),
	} {
		if got := len(schema.Properties[part].Properties); got != of.NumField() {
			t.Errorf("%s: %d fields in the schema, %d in the type", part, got, of.NumField())
		}
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if p := schema.Properties[part].Properties[name]; p.Description == "" && p.Type != "object" {
				t.Errorf("%s.%s is not described", part, name)
			}
		}
	}
}
