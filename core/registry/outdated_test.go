// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"bytes"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

// A patch that changes nothing writes what an earlier server has stored in another version or media
// type, once.
func TestAnEmptyPatchBringsObjectsToTheStorageVersion(t *testing.T) {
	w := newWorld(t)
	old := &autoscalingv1.HorizontalPodAutoscaler{
		TypeMeta:   metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "HorizontalPodAutoscaler"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "h", UID: "u", Generation: 1},
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{Kind: "Deployment", Name: "d", APIVersion: "apps/v1"}, MaxReplicas: 3,
		},
	}
	var inProtobuf bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(runtime.Object(old), &inProtobuf); err != nil {
		t.Fatal(err)
	}
	const inJSON = `{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{"namespace":"a","name":"j","uid":"v","generation":1},
		"spec":{"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"},"maxReplicas":3}}`
	hpas := w.registry(t, "autoscaling", "horizontalpodautoscalers")
	for name, value := range map[string][]byte{"h": inProtobuf.Bytes(), "j": []byte(inJSON)} {
		key := "/registry/horizontalpodautoscalers/a/" + name
		if _, err := w.store.Put(t.Context(), key, value, 0, 0); err != nil {
			t.Fatal(err)
		}
		empty := patch("a", name, types.MergePatchType, `{"metadata":{"resourceVersion":""}}`)
		empty.Version = "v2"
		revisions := []int64{}
		for range 2 {
			if _, err := hpas.Patch(t.Context(), empty); err != nil {
				t.Fatal(err)
			}
			kv, err := w.store.Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.HasPrefix(kv.Value, []byte("k8s\x00")) || !bytes.Contains(kv.Value[:40], []byte("autoscaling/v2")) {
				t.Errorf("%s is stored as %.40q", name, kv.Value)
			}
			revisions = append(revisions, kv.ModRevision)
		}
		if revisions[0] != revisions[1] {
			t.Errorf("%s was written again, although nothing was to be changed", name)
		}
	}
}
