// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"bytes"
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/object"
)

// Lists are written around the bytes of their items. For every kind that there
// is, clients read the same out of them as out of a list that was encoded whole.
func TestListsOfEveryKind(t *testing.T) {
	contract, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	remaining := int64(7)
	list := metav1.ListMeta{ResourceVersion: "12", Continue: "more", RemainingItemCount: &remaining}
	for _, r := range contract.Resources() {
		if r.Virtual || r.ListKind == "" {
			continue
		}
		for _, version := range r.Versions {
			codec := r.Codec(version)
			if !scheme.Scheme.Recognizes(codec.Kind()) {
				continue // definitions of other API servers
			}
			t.Run(codec.Kind().String(), func(t *testing.T) {
				var items []*object.Object
				for _, name := range []string{"a", "b"} {
					o, err := scheme.Scheme.New(codec.Kind())
					if err != nil {
						t.Fatal(err)
					}
					m, err := meta.Accessor(o)
					if err != nil {
						t.Fatal(err)
					}
					m.SetName(name)
					m.SetLabels(map[string]string{"x": name})
					items = append(items, object.FromVersioned(codec, o))
				}
				proto, err := protoList(r, version, list, items)
				if err != nil {
					t.Fatal(err)
				}
				text, err := jsonList(r, version, list, items)
				if err != nil {
					t.Fatal(err)
				}
				fromProto := decodeList(t, bytes.Join(proto, nil))
				fromText := decodeList(t, bytes.Join(text, nil))
				for _, l := range []runtime.Object{fromProto, fromText} {
					if kind := l.GetObjectKind().GroupVersionKind(); kind != codec.Kind().GroupVersion().WithKind(r.ListKind) {
						t.Errorf("the list says it is %v", kind)
					}
					m, err := meta.ListAccessor(l)
					if err != nil {
						t.Fatal(err)
					}
					if m.GetResourceVersion() != "12" || m.GetContinue() != "more" || *m.GetRemainingItemCount() != 7 {
						t.Errorf("list metadata came out as %+v", m)
					}
				}
				a, err := meta.ExtractList(fromProto)
				if err != nil {
					t.Fatal(err)
				}
				b, err := meta.ExtractList(fromText)
				if err != nil {
					t.Fatal(err)
				}
				if len(a) != 2 || len(b) != 2 {
					t.Fatalf("expected two items, found %d and %d", len(a), len(b))
				}
				for i := range a {
					if !apiequality.Semantic.DeepEqual(a[i], b[i]) {
						t.Errorf("item %d differs: %+v and %+v", i, a[i], b[i])
					}
				}
			})
		}
	}
}

func decodeList(t *testing.T, data []byte) runtime.Object {
	t.Helper()
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		t.Fatalf("decode the list: %v", err)
	}
	return o
}
