// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"encoding/json"
	"math/rand"
	"reflect"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/resource"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/wasmplane/wasmplane/core/admission"
)

// The patch of a span, applied to what was there before, gives what was there
// after, whatever changed.
func TestPatchesOfTypedObjectsLeadFromOneToTheOther(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	f := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(1), serializer.NewCodecFactory(scheme))
	for range 60 {
		from, other := &corev1.Pod{}, &corev1.Pod{}
		f.Fill(from)
		f.Fill(other)
		near := from.DeepCopy() // mostly the same
		near.Spec.Tolerations = append(near.Spec.Tolerations, corev1.Toleration{Key: "a/b~c"})
		near.Labels = map[string]string{"a/b": "~", "c": ""}
		near.Spec.Containers = append(
			[]corev1.Container{{Name: "side", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}}}},
			near.Spec.Containers...)
		near.Spec.NodeName, near.Spec.Priority = "", new(int32)
		for _, to := range []*corev1.Pod{other, near, from.DeepCopy(), {}} {
			leads(t, from, to)
			leads(t, to, from)
		}
	}
}

func leads(t *testing.T, from, to *corev1.Pod) {
	t.Helper()
	encode := func(p *corev1.Pod) []byte {
		data, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	text := admission.ChangesText(from, to)
	if text == "null" {
		text = "[]"
	}
	if text[0] != '[' {
		return // too large to be kept
	}
	patch, err := jsonpatch.DecodePatch([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	got, err := patch.Apply(encode(from))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	var a, b any
	if err := json.Unmarshal(got, &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(encode(to), &b); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Fatalf("%s\napplied gives\n%s\nwant\n%s", text, got, encode(to))
	}
}
