// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
)

func TestAPluginAtRestWakesAsItWas(t *testing.T) {
	for name, spec := range map[string]any{
		"an entry":  map[string]any{"source": "oci://x", "settings": map[string]any{"n": int64(1 << 60), "f": 1.5, "s": "<&>\u2028"}},
		"nothing":   nil,
		"no object": []any{"x"},
	} {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": spec, "status": map[string]any{"calls": int64(7)}}}
		o.SetAPIVersion(plugindefinition.Group + "/" + plugindefinition.Version)
		o.SetKind(plugindefinition.TenantKind)
		o.SetNamespace("ns")
		o.SetName("a")
		o.SetUID("u")
		o.SetGeneration(3)
		o.SetResourceVersion("77")
		o.SetLabels(map[string]string{OriginLabel: FromFile, "other": "x"})
		o.SetAnnotations(map[string]string{WriterAnnotation: "tina", "other": "x"})
		o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: metav1.ManagedFieldsOperationApply}})
		want := o.DeepCopy()
		want.SetManagedFields(nil)
		kept, err := toRest(o)
		if err != nil {
			t.Fatal(err)
		}
		r := restingOf(kept)
		if r == nil || nameOf(r) != nameOf(want) || !mirrored(r) || r.UID != "u" || r.Generation != 3 || r.ResourceVersion != "77" ||
			r.Annotations[WriterAnnotation] != "tina" || len(r.Annotations)+len(r.Labels) != 2 {
			t.Fatalf("%s: %+v", name, kept)
		}
		if key, err := cache.MetaNamespaceKeyFunc(r); err != nil || key != "ns/a" {
			t.Errorf("the informer calls it %q %v", key, err)
		}
		for range 2 { // whoever woke it may change it
			got, err := r.wake()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-was +is):\n%s", name, diff)
			}
			got.Object["status"] = nil
		}
		if again, err := toRest(r); err != nil || again != kept {
			t.Errorf("it rests twice: %v %v", again, err)
		}
	}
}

func TestWhatIsNoPluginPassesTheInformer(t *testing.T) {
	gone := cache.DeletedFinalStateUnknown{Key: "a"}
	if got, err := toRest(gone); err != nil || got != any(gone) {
		t.Errorf("%v %v", got, err)
	}
	if restingOf(gone) != nil {
		t.Error("a tombstone is a plugin")
	}
}
