// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/object"
)

// Whatever a webhook answers, reading it and applying its patch ends in an object
// of the same kind or in an error.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL2EiLCJ2YWx1ZSI6MX1d"}}`), true)
	f.Add([]byte(`{"response":{"patch":"W3sib3AiOiJjb3B5IiwiZnJvbSI6IiIsInBhdGgiOiIvYSJ9XQ=="}}`), false)
	f.Add([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"u","result":{"code":7}}}`), true)
	gvk := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	f.Fuzz(func(t *testing.T, body []byte, v1 bool) {
		version := "admission.k8s.io/v1beta1"
		if v1 {
			version = "admission.k8s.io/v1"
		}
		a, err := verify(version, "u", true, body)
		if err != nil {
			return
		}
		if !a.allowed && refused("w", a.result).ErrStatus.Code < 400 {
			t.Errorf("a refusal with code %d", a.result.Code)
		}
		ops, err := jsonpatch.DecodePatch(a.patch)
		if err != nil {
			return
		}
		o := object.FromTree(object.Unstructured{GVK: gvk}, map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}, "a": []any{int64(1)},
		})
		next, err := apply(&matching.View{Object: o, Kind: gvk}, ops, a.patch)
		if err == nil && next.GetObjectKind().GroupVersionKind() != gvk {
			t.Errorf("the patch made a %v", next.GetObjectKind().GroupVersionKind())
		}
	})
}
