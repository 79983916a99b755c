// SPDX-License-Identifier: Apache-2.0

package customresource

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	carrier "github.com/wasmplane/wasmplane/core/object"
)

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
