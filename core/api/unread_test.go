// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"bytes"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/unread"
	"github.com/wasmplane/wasmplane/core/object"
)

// unreadKinds are stored values of the kinds that the watch cache does not decode.
func unreadKinds(t *testing.T, c *api.Contract) map[*api.Resource][][]byte {
	t.Helper()
	at := metav1.NewTime(time.Unix(1_700_000_000, 0))
	full := metav1.ObjectMeta{
		Name: "a", Namespace: "default", UID: "0c0ffee0", CreationTimestamp: at, Generation: 3, DeletionTimestamp: &at,
		DeletionGracePeriodSeconds: ptr.To[int64](30), ResourceVersion: "7", Labels: map[string]string{"app": "x", "empty": ""},
		Annotations: map[string]string{"note": "long"}, Finalizers: []string{"a/b"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u", Controller: ptr.To(true)}},
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "m", Operation: "Apply", APIVersion: "v1", Time: &at, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:data":{}}`),
		}},
	}
	none := metav1.ObjectMeta{Name: "b", Namespace: "kube-system"}
	out := map[*api.Resource][][]byte{}
	for name, list := range map[string][]runtime.Object{
		"configmaps": {
			&corev1.ConfigMap{
				ObjectMeta: full, Data: map[string]string{"k": "v"}, BinaryData: map[string][]byte{"b": {0, 1}},
				Immutable: ptr.To(true),
			},
			&corev1.ConfigMap{ObjectMeta: none},
		},
		"secrets": {
			&corev1.Secret{ObjectMeta: full, Type: "a/b", Data: map[string][]byte{"k": []byte("v")}},
			&corev1.Secret{ObjectMeta: none},
		},
	} {
		r, ok := c.Resource(schema.GroupResource{Resource: name})
		if !ok {
			t.Fatal(name)
		}
		for _, o := range list {
			r.Codec("v1").Default(o)
			internal, err := r.Codec("v1").Internal(o)
			if err != nil {
				t.Fatal(err)
			}
			value, err := c.EncodeStorage(r, internal)
			if err != nil {
				t.Fatal(err)
			}
			out[r] = append(out[r], value)
		}
	}
	return out
}

// decoded is a stored value the general way, with a resourceVersion.
func decoded(c *api.Contract, r *api.Resource, value []byte) (*object.Object, error) {
	o, err := c.DecodeStorage(r, value)
	if err != nil {
		return nil, err
	}
	m, err := o.Meta()
	if err != nil {
		return nil, err
	}
	m.SetResourceVersion("4711")
	return o, nil
}

func TestWhatIsNotDecodedIsAsIfItWere(t *testing.T) {
	c, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	for r, values := range unreadKinds(t, c) {
		for _, value := range values {
			v, ok := unread.Open(r.GVK("v1"), value)
			if !ok {
				t.Errorf("a stored %s has to be decoded", r.Kind)
				continue
			}
			want, err := decoded(c, r, value)
			if err != nil {
				t.Fatal(err)
			}
			internal, err := want.Internal()
			if err != nil {
				t.Fatal(err)
			}
			l, f, err := r.Attrs(internal)
			if err != nil || !apiequality.Semantic.DeepEqual(map[string]string(l), v.Labels) ||
				!apiequality.Semantic.DeepEqual(f, fields.Set(v.Fields)) {
				t.Errorf("%s: labels %v, fields %v; decoded %v, %v (%v)", r.Kind, v.Labels, v.Fields, l, f, err)
			}
			if err := want.Pack(); err != nil {
				t.Fatal(err)
			}
			if got := v.At("4711"); !bytes.Equal(got, want.Packed(object.Protobuf)) {
				t.Errorf("%s: %q, decoded and encoded %q", r.Kind, got, want.Packed(object.Protobuf))
			}
		}
	}
}

// Whatever bytes there are: what is opened decodes, and to the same.
func TestDamagedValuesAreDecoded(t *testing.T) {
	c, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	opened, refused := 0, 0
	for r, values := range unreadKinds(t, c) {
		for _, value := range values {
			for at := range value {
				for _, mask := range []byte{0x01, 0x02, 0x08, 0x10, 0x80, 0xff} {
					damaged := bytes.Clone(value)
					damaged[at] ^= mask
					check(t, c, r, damaged, &opened, &refused)
				}
				check(t, c, r, value[:at], &opened, &refused)
			}
		}
	}
	if opened == 0 || refused == 0 {
		t.Errorf("of the damaged values %d were opened and %d refused", opened, refused)
	}
}

func check(t *testing.T, c *api.Contract, r *api.Resource, value []byte, opened, refused *int) {
	t.Helper()
	v, ok := unread.Open(r.GVK("v1"), value)
	if !ok {
		*refused++
		return
	}
	*opened++
	want, err := decoded(c, r, value)
	if err != nil {
		t.Errorf("%s %q was opened, and does not decode: %v", r.Kind, value, err)
		return
	}
	got, err := object.FromPacked(r.Codec("v1"), v.At("4711"), object.Protobuf).Versioned()
	if err != nil {
		t.Errorf("%s %q was opened, and its packed form does not decode: %v", r.Kind, value, err)
		return
	}
	decoded, err := want.Versioned()
	if err != nil || !apiequality.Semantic.DeepEqual(got, decoded) {
		t.Errorf("%s %q: unpacked %v, decoded %v (%v)", r.Kind, value, got, decoded, err)
	}
}

func BenchmarkLoadConfigMap(b *testing.B) {
	c, err := api.New()
	if err != nil {
		b.Fatal(err)
	}
	r, _ := c.Resource(schema.GroupResource{Resource: "configmaps"})
	o := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: "bench-1", Namespace: "default", UID: "0c0ffee0-0000-0000-0000-000000000000", Labels: map[string]string{"app": "filling"},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "bench", Operation: "Update", APIVersion: "v1", Time: &metav1.Time{}, FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(`{"f:data":{".":{},"f:settings.yaml":{}},"f:metadata":{"f:labels":{".":{},"f:app":{}}}}`),
			}},
		},
		Data: map[string]string{"settings.yaml": string(bytes.Repeat([]byte("0"), 720))},
	}
	internal, err := r.Codec("v1").Internal(o)
	if err != nil {
		b.Fatal(err)
	}
	value, err := c.EncodeStorage(r, internal)
	if err != nil {
		b.Fatal(err)
	}
	load := c.WatchDecoder(r)
	b.Run("as the watch cache does", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			o, _, _, err := load("k", value, 4711)
			if err != nil || o.Pack() != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decoded", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			o, err := decoded(c, r, value)
			if err != nil || o.Pack() != nil {
				b.Fatal(err)
			}
		}
	})
}
