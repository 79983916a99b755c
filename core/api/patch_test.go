// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"math/rand"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/randfill"

	"github.com/wasmplane/wasmplane/core/api/kindcodec"
	"github.com/wasmplane/wasmplane/core/object"
)

func TestStrategicMergesMergeListsByKey(t *testing.T) {
	c := newContract(t)
	r := rowOf(t, c, "", "pods")
	live := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "x", Image: "1"}, {Name: "y", Image: "1"}}}}
	live.Name, live.Labels = "a", map[string]string{"b": "c"}
	o, unknown, err := c.StrategicMerge(r, "v1", live, map[string]any{
		"spec": map[string]any{"containers": []any{map[string]any{"name": "y", "image": "2"}}},
	}, true)
	if err != nil || len(unknown) != 0 {
		t.Fatal(unknown, err)
	}
	pod := o.(*corev1.Pod)
	images := map[string]string{}
	for _, ct := range pod.Spec.Containers {
		images[ct.Name] = ct.Image
	}
	if len(images) != 2 || images["x"] != "1" || images["y"] != "2" || pod.Name != "a" || pod.Labels["b"] != "c" ||
		pod.Spec.NodeName != "n" || pod.Kind != "Pod" {
		t.Errorf("%+v", pod)
	}
	if live.Spec.Containers[1].Image != "1" {
		t.Error("the live object was changed")
	}
	_, unknown, err = c.StrategicMerge(r, "v1", live, map[string]any{"spec": map[string]any{"bogus": true}}, true)
	if err != nil || len(unknown) != 1 || unknown[0].Error() != `unknown field "spec.bogus"` {
		t.Errorf("%v %v", unknown, err)
	}
	if _, _, err := c.StrategicMerge(r, "v1", live, map[string]any{"spec": "x"}, true); !apierrors.IsInvalid(err) {
		t.Errorf("spec as a string: %v", err)
	}
}

// What comes of a patch of parts of an object is what comes of patching all of it,
// for random objects of every row, and for patches that lead from one to the other.
func TestMergesOfPartsAreMergesOfTheWhole(t *testing.T) {
	c := newContract(t)
	inParts := 0
	for _, r := range c.Resources() {
		if r.Virtual || r.Custom != nil || r.Kind == "CustomResourceDefinition" { // their schemas contain themselves: one object is megabytes
			continue
		}
		cd := r.Codec(r.Versions[0]).(*kindcodec.Codec)
		random := rand.New(rand.NewSource(7)) //nolint:gosec // a test
		f := fillerOf(r, 7).Funcs(func(e *runtime.RawExtension, _ randfill.Continue) {
			e.Raw = []byte(`{"a":"<&>","apiVersion":"v1","kind":"X"}`) // in the order that a tree would give it
		})
		fuzzed := func() (runtime.Object, []byte) {
			o := cd.Empty()
			f.Fill(o)
			o = wired(t, cd, o)
			data, err := cd.Encode(o, object.JSON)
			if err != nil {
				t.Fatal(err)
			}
			return o, data
		}
		for range 6 {
			live, from := fuzzed()
			_, to := fuzzed()
			patches := []string{
				`{}`, `{"metadata":{"labels":{"a":"b"},"annotations":null}}`, `{"metadata":null}`, `{"status":{"bogus":1},"x":{}}`,
				`{"$patch":"replace","metadata":{"name":"a"}}`,
			}
			if p, err := strategicpatch.CreateTwoWayMergePatch(from, to, cd.Empty()); err == nil {
				patches = append(patches, string(p), some(t, p, random), some(t, p, random))
			}
			for _, p := range patches {
				inParts += mergesAlike(t, c, r, cd, live, p)
			}
		}
	}
	if inParts < 500 {
		t.Errorf("only %d patches were of parts", inParts)
	}
}

// some of a patch: each member at every level stays with a chance.
func some(t *testing.T, patch []byte, random *rand.Rand) string {
	t.Helper()
	var tree map[string]any
	if err := json.Unmarshal(patch, &tree); err != nil {
		t.Fatal(err)
	}
	var thin func(m map[string]any)
	thin = func(m map[string]any) {
		keys := make([]string, 0, len(m))
		for k := range m {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			if random.Intn(2) == 0 {
				delete(m, k)
			} else if below, ok := m[k].(map[string]any); ok {
				thin(below)
			}
		}
	}
	thin(tree)
	out, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func mergesAlike(t *testing.T, c *Contract, r *Resource, cd *kindcodec.Codec, live runtime.Object, text string) (parts int) {
	t.Helper()
	patch := func() (m map[string]any) {
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	m, err := c.merger(r, cd.Kind().Version, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := m.Spots(live, patch()); ok {
		parts = 1
	}
	before := live.DeepCopyObject()
	got, gotUnknown, gotErr := m.Merge(live, patch())
	if !reflect.DeepEqual(before, live) {
		t.Fatalf("%s: the live object was changed by %s", r.Kind, text)
	}
	want, wantUnknown, wantErr := m.MergeWhole(live, patch())
	if (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error() {
		t.Fatalf("%s: %s\ngot  %v\nwant %v", r.Kind, text, gotErr, wantErr)
	}
	if gotErr != nil {
		return parts
	}
	if !sameErrors(gotUnknown, wantUnknown) {
		t.Errorf("%s: %s\ngot  %v\nwant %v", r.Kind, text, gotUnknown, wantUnknown)
	}
	for _, mediaType := range []string{object.JSON, object.Protobuf} {
		a, errA := cd.Encode(got, mediaType)
		b, errB := cd.Encode(want, mediaType)
		if (errA == nil) != (errB == nil) || !bytes.Equal(a, b) {
			t.Fatalf("%s in %s: %s\ngot  %q %v\nwant %q %v", r.Kind, mediaType, text, a, errA, b, errB)
		}
	}
	return parts
}

func sameErrors(a, b []error) bool {
	texts := func(errs []error) (out []string) {
		for _, err := range errs {
			out = append(out, err.Error())
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(texts(a), texts(b))
}
