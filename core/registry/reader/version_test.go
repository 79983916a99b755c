// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/object"
)

// TestALargeObjectIsConvertedOnce: all who read a definition in the version that is served have the same object, until it is another
// one; it is packed as what it was made of is, so that its decoded forms go when memory is wanted. Small ones are converted each time.
func TestALargeObjectIsConvertedOnce(t *testing.T) {
	contract, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	res, ok := contract.Resource(schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"})
	if !ok {
		t.Fatal("no definitions")
	}
	r := New(Config{Contract: contract}, res, nil, nil)
	for fields, kept := range map[int]bool{10: false, 2000: true} {
		properties := map[string]apiextensionsv1beta1.JSONSchemaProps{}
		for i := range fields {
			properties[fmt.Sprint("p", i)] = apiextensionsv1beta1.JSONSchemaProps{Type: "string", Description: strings.Repeat("x", 20)}
		}
		stored := &apiextensionsv1beta1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: "tabs.example.com"},
			Spec: apiextensionsv1beta1.CustomResourceDefinitionSpec{
				Group: "example.com", Versions: []apiextensionsv1beta1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true}},
				Names: apiextensionsv1beta1.CustomResourceDefinitionNames{Plural: "tabs", Kind: "Tab"},
				Validation: &apiextensionsv1beta1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1beta1.JSONSchemaProps{
					Type: "object", Properties: properties,
				}},
			},
		}
		o := object.FromStored(res.StorageCodec(), stored, object.JSON)
		if err := o.Pack(); err != nil {
			t.Fatal(err)
		}
		views := make([]*object.Object, 8)
		var all sync.WaitGroup
		for i := range views {
			all.Go(func() {
				view, err := r.Convert(t.Context(), o, "v1")
				if err != nil {
					t.Error(err)
				}
				views[i] = view
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
		for _, v := range views[1:] {
			if (v == views[0]) != kept {
				t.Errorf("%d fields: readers have the same object: %v", fields, v == views[0])
			}
		}
		if again, err := r.Convert(t.Context(), o, "v1"); err != nil || (again == views[0]) != kept {
			t.Errorf("%d fields, read again: the same object: %v, %v", fields, again == views[0], err)
		}
		if (views[0].PackedSize() > 0) != kept {
			t.Errorf("%d fields: packed into %d bytes", fields, views[0].PackedSize())
		}
		fresh, err := inVersion(o, res.Codec("v1"))
		if err != nil {
			t.Fatal(err)
		}
		want, err := fresh.Encoded(object.JSON)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := views[0].Encoded(object.JSON); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d fields: what is kept is another object: %.300s, want %.300s, %v", fields, got, want, err)
		}
	}
}
