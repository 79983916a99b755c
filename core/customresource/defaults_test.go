// SPDX-License-Identifier: Apache-2.0

package customresource

import (
	"fmt"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	carrier "github.com/wasmplane/wasmplane/core/object"
)

// TestWideSchemasOfManyMapsAreRefused: a body of 60 KB is a list of maps whose schema has thousands of properties. It took minutes of a
// processor.
func TestWideSchemasOfManyMapsAreRefused(t *testing.T) {
	properties := map[string]apiextensionsv1.JSONSchemaProps{}
	for i := range 2000 {
		properties[fmt.Sprint("p", i)] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	}
	list := apiextensionsv1.JSONSchemaProps{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{
		Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties},
	}}
	text := apiextensionsv1.JSONSchemaProps{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"b"`)}}
	spec := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"l": list, "a": text}}
	whole := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec}}
	v := defined(t, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "tabs.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "tabs", Singular: "tab", Kind: "Tab", ListKind: "TabList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &whole},
			}},
		},
	}).versions["v1"]
	compiled, err := v.compiled()
	if err != nil {
		t.Fatal(err)
	}
	for n, refused := range map[int]bool{10: false, 20_000: true} {
		o, err := v.codec.Decode([]byte(`{"apiVersion":"example.com/v1","kind":"Tab","metadata":{"name":"a"},"spec":{"l":[{}`+
			strings.Repeat(",{}", n-1)+`]}}`), carrier.JSON)
		if err != nil {
			t.Fatal(err)
		}
		v.codec.Default(o)
		_, filled, err := unstructured.NestedString(o.(*unstructured.Unstructured).Object, "spec", "a")
		if err != nil || filled == refused {
			t.Errorf("%d maps: filled in: %v, %v", n, filled, err)
		}
		errs := fmt.Sprint(compiled.Strategy.Validate(t.Context(), o))
		if strings.Contains(errs, "spec: Forbidden: the object has too many maps") != refused {
			t.Errorf("%d maps: %.300s", n, errs)
		}
	}
}

// TestLongPathsAreRefused: each unknown field and each error is told with all names above it.
func TestLongPathsAreRefused(t *testing.T) {
	v := fuzzDefinition(t).versions["v1"]
	compiled, err := v.compiled()
	if err != nil {
		t.Fatal(err)
	}
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"f%d":1,`, i)
		}
		return `{` + b.String() + `"":1}`
	}
	name := func(n int) string { return strings.Repeat("n", n) }
	for what, c := range map[string]struct {
		spec    string
		refused bool
	}{
		"a long name":            {`{"` + name(20_000) + `":{}}`, true},
		"names in one another":   {strings.Repeat(`{"`+name(1000)+`":`, 20) + `1` + strings.Repeat("}", 20), true},
		"many below a name":      {`{"` + name(15_000) + `":` + many(5000) + `}`, true},
		"some below a name":      {`{"` + name(15_000) + `":` + many(50) + `}`, false},
		"many below a short one": {`{"a":` + many(5000) + `}`, false},
	} {
		body := []byte(`{"apiVersion":"example.com/v1","kind":"Tab","metadata":{"name":"a"},"spec":` + c.spec + `}`)
		if _, _, err := v.decode(body, carrier.JSON, true); apierrors.IsRequestEntityTooLargeError(err) != c.refused {
			t.Errorf("%s, decoded: %.200v", what, err)
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(body); err != nil {
			t.Fatal(err)
		}
		if text := fmt.Sprint(compiled.Strategy.Validate(t.Context(), u)); strings.Contains(text, "are too long") != c.refused {
			t.Errorf("%s, applied: %.200s", what, text)
		}
	}
}

// TestTooManyDefaultsAreRefusedBeforeTheyAreFilledIn: entries of three bytes each would get a value of their own.
func TestTooManyDefaultsAreRefusedBeforeTheyAreFilledIn(t *testing.T) {
	v := fuzzDefinition(t).versions["v1"]
	compiled, err := v.compiled()
	if err != nil {
		t.Fatal(err)
	}
	for n, refused := range map[int]bool{10: false, 250_000: true} {
		body := `{"apiVersion":"example.com/v1","kind":"Tab","metadata":{"name":"a"},"spec":{"replicas":1,"ports":[{}` +
			strings.Repeat(",{}", n-1) + `]}}`
		o, err := v.codec.Decode([]byte(body), carrier.JSON)
		if err != nil {
			t.Fatal(err)
		}
		v.codec.Default(o)
		u := o.(*unstructured.Unstructured)
		ports, _, err := unstructured.NestedSlice(u.Object, "spec", "ports")
		if err != nil {
			t.Fatal(err)
		}
		if _, filled := ports[0].(map[string]any)["protocol"]; filled == refused {
			t.Errorf("%d entries: filled in: %v", n, filled)
		}
		for what, errs := range map[string]field.ErrorList{
			"created": compiled.Strategy.Validate(t.Context(), o), "updated": compiled.Strategy.ValidateUpdate(t.Context(), o, o),
		} {
			if text := fmt.Sprint(errs); strings.Contains(text, "spec: Forbidden: the defaults of the schema would add too many") != refused {
				t.Errorf("%d entries, %s: %.300s", n, what, text)
			}
		}
	}
}
