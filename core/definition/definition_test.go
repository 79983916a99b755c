// SPDX-License-Identifier: Apache-2.0

package definition_test

import (
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/definition"
)

// A definition of all parts is one that the server takes, in each of its versions.
func TestADefinitionIsValid(t *testing.T) {
	d := definition.New(definition.Kind{
		Resource: schema.GroupVersionResource{Group: "example.com", Version: "v2", Resource: "boxes"}, Kind: "Box", Older: []string{"v1"},
		ShortNames: []string{"bx"}, Categories: []string{"things"}, Description: "A box.", Required: []string{"spec"},
		Spec: definition.Object("What is wanted.", map[string]definition.Props{
			"name": definition.Bounded(definition.Text("Its name."), 10), "sealed": definition.Flag("Whether it is closed."),
			"size": definition.Number("In bytes."), "inside": definition.List(definition.Text(""), "What is in it."),
			"labels": definition.Map(definition.Text(""), "What is on it."), "color": definition.OneOf(definition.Text(""), "red", "blue"),
		}),
		Status: definition.Open("What there is."), Columns: []definition.Column{{Name: "Size", Type: "integer", JSONPath: ".spec.size"}},
	})
	apiextensionsv1.SetDefaults_CustomResourceDefinition(d)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&d.Spec)
	d.Status.StoredVersions = []string{"v2"}
	var internal apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(d, &internal, nil); err != nil {
		t.Fatal(err)
	}
	if errs := validation.ValidateCustomResourceDefinition(t.Context(), &internal); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
	if v := d.Spec.Versions; len(v) != 2 || !v[0].Storage || v[1].Storage || v[1].Name != "v1" || !v[1].Served {
		t.Errorf("versions %+v", v)
	}
	if n := d.Spec.Names; d.Name != "boxes.example.com" || n.Singular != "box" || n.ListKind != "BoxList" {
		t.Errorf("%s: names %+v", d.Name, n)
	}
	if d.Spec.Scope != apiextensionsv1.ClusterScoped {
		t.Errorf("its scope is %s", d.Spec.Scope)
	}
}
