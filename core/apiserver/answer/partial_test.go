// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/envelope"
	"github.com/wasmplane/wasmplane/core/object"
)

// What is cut out of an object's encoding is what encoding its metadata gives,
// for every kind of every version.
func TestMetadataIsCutOutOfEveryKind(t *testing.T) {
	contract, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	kind := metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")
	tried := 0
	for _, r := range contract.Resources() {
		for _, version := range r.Versions {
			codec := r.Codec(version)
			if codec == nil || r.Virtual {
				continue
			}
			versioned, err := codec.Versioned(r.New())
			if err != nil {
				t.Fatalf("%s: %v", r.GroupResource, err)
			}
			m, err := meta.Accessor(versioned)
			if err != nil {
				t.Fatalf("%s: %v", r.GroupResource, err)
			}
			m.SetName("a")
			m.SetLabels(map[string]string{"quote": `"}]\`, "metadata": "}{"})
			m.SetCreationTimestamp(metav1.NewTime(time.Unix(1700000000, 0)))
			m.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "x", FieldsV1: metav1.NewFieldsV1(`{"f:a":{}}`)}})
			want, err := api.Partial(versioned)
			if err != nil {
				t.Fatal(err)
			}
			o := object.FromVersioned(codec, versioned)
			data, err := partialJSON(o, kind)
			if err != nil {
				t.Fatalf("%s: %v", r.GroupResource, err)
			}
			var got metav1.PartialObjectMetadata
			if err := json.Unmarshal(data, &got); err != nil {
				t.Fatalf("%s: %v", r.GroupResource, err)
			}
			if !equality.Semantic.DeepEqual(&got, want) {
				t.Errorf("%s %s as JSON: %s", r.GroupResource, version, data)
			}
			tried++
			if _, ok := versioned.(interface{ Marshal() ([]byte, error) }); !ok {
				t.Errorf("%s %s has no protobuf form", r.GroupResource, version)
				continue
			}
			raw, err := partialProto(o)
			if err != nil {
				t.Fatalf("%s: %v", r.GroupResource, err)
			}
			got = metav1.PartialObjectMetadata{}
			if err := got.Unmarshal(raw); err != nil {
				t.Fatalf("%s: %v", r.GroupResource, err)
			}
			got.SetGroupVersionKind(kind)
			if !equality.Semantic.DeepEqual(&got, want) {
				t.Errorf("%s %s as protobuf: %+v", r.GroupResource, version, got)
			}
		}
	}
	if tried < 60 {
		t.Errorf("%d kinds were tried", tried)
	}
}

func TestMetadataListsInProtobuf(t *testing.T) {
	contract, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	r := contract.Resources()[0]
	codec := r.Codec(r.Versions[0])
	var items []*object.Object
	for _, name := range []string{"a", "b"} {
		o, err := codec.FromTree(map[string]any{"metadata": map[string]any{"name": name}})
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, object.FromVersioned(codec, o))
	}
	pieces, err := partialList(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadataList"), object.Protobuf,
		metav1.ListMeta{ResourceVersion: "7"}, items)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := envelope.Raw(bytes.Join(pieces, nil))
	if err != nil {
		t.Fatal(err)
	}
	var list metav1.PartialObjectMetadataList
	if err := list.Unmarshal(raw); err != nil {
		t.Fatal(err)
	}
	if list.ResourceVersion != "7" || len(list.Items) != 2 || list.Items[1].Name != "b" {
		t.Errorf("list %+v", list)
	}
}
