// SPDX-License-Identifier: Apache-2.0

package api

import (
	"math/rand"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"github.com/wasmplane/wasmplane/core/object"
)

// fillerOf makes random objects of a row's storage version.
func fillerOf(r *Resource, seed int64) *randfill.Filler {
	return fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs), rand.NewSource(seed), serializer.NewCodecFactory(r.scheme)).NilChance(
		0.3).NumElements(0, 3).Funcs(
		func(f *metav1.FieldsV1, _ randfill.Continue) {
			f.SetRawString(`{"f:metadata":{"f:labels":{".":{},"k:{\"a\":\"<b>\"}":{}}}}`)
		},
		func(s *apiextensionsv1beta1.JSONSchemaProps, c randfill.Continue) {
			s.Type, s.Description = "object", c.String(10)
		},
		func(e *runtime.RawExtension, _ randfill.Continue) {
			e.Raw = []byte(`{"apiVersion":"v1","kind":"X","a":"<&>"}`)
		},
		func(i *intstr.IntOrString, c randfill.Continue) {
			if *i = intstr.FromInt32(c.Int31()); c.Bool() {
				*i = intstr.FromString(c.String(5))
			}
		},
	)
}

// What the watch cache packs, drops and makes again is what it was, for random
// objects of every row: in every encoding, as a struct and as a copy.
func TestPackedObjectsAreWhatTheyWere(t *testing.T) {
	c := newContract(t)
	for _, r := range c.Resources() {
		if r.Virtual {
			continue
		}
		t.Run(r.GroupResource.String(), func(t *testing.T) {
			decode := c.WatchDecoder(r)
			for seed := range int64(12) {
				random := r.storage.Empty()
				fillerOf(r, seed).Fill(random)
				value, err := r.storage.Encode(random, r.storageMedia)
				if err != nil {
					t.Fatal(err)
				}
				plain, _, _, err := decode("/registry/x", value, 7)
				if err != nil {
					t.Fatal(err)
				}
				packed, _, _, err := decode("/registry/x", value, 7)
				if err != nil {
					t.Fatal(err)
				}
				if err := packed.Pack(); err != nil {
					t.Fatal(err)
				}
				for _, drop := range []func(){func() {}, packed.DropDecoded} {
					drop()
					same(t, plain, packed)
				}
			}
		})
	}
}

func same(t *testing.T, plain, packed *object.Object) {
	t.Helper()
	for _, mediaType := range []string{object.JSON, object.Protobuf} {
		want, err := plain.Encoded(mediaType)
		if err != nil {
			t.Fatal(err)
		}
		got, err := packed.Encoded(mediaType)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Fatalf("%s (-plain +packed):\n%s", mediaType, diff)
		}
	}
	duplicate, err := packed.Copy()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []*object.Object{packed, duplicate} {
		want, err := plain.Tree()
		if err != nil {
			t.Fatal(err)
		}
		got, err := o.Tree()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("tree (-plain +packed):\n%s", diff)
		}
	}
}
