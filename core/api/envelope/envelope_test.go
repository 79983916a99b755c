// SPDX-License-Identifier: Apache-2.0

package envelope

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// FuzzOpen: what is parted is what runtime.Unknown reads.
func FuzzOpen(f *testing.F) {
	for _, u := range []runtime.Unknown{
		{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Raw: []byte("\x0a\x03abc")},
		{TypeMeta: runtime.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, Raw: bytes.Repeat([]byte("x"), 300), ContentType: "a", ContentEncoding: "b"},
		{},
	} {
		data, err := u.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		for _, broken := range [][]byte{
			data, data[:len(data)/2], append(bytes.Clone(data), data...), append(bytes.Clone(data), 0),
			append(bytes.Clone(data), 0x2a, 0),
		} {
			f.Add(append([]byte(Prefix), broken...))
		}
	}
	f.Add([]byte(Prefix))
	f.Add([]byte("k8s"))
	f.Add([]byte(Prefix + "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Add([]byte(Prefix + "\x0a\x04\x0a\x02v1\x12"))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, ok := Open(data)
		if !ok {
			return
		}
		var u runtime.Unknown
		if err := u.Unmarshal(data[len(Prefix):]); err != nil {
			t.Fatalf("parted although it is no envelope: %v", err)
		}
		if u.APIVersion != string(e.APIVersion) || u.Kind != string(e.Kind) || !bytes.Equal(u.Raw, e.Raw) {
			t.Errorf("parted as %s %s %x, it is %s %s %x", e.APIVersion, e.Kind, e.Raw, u.APIVersion, u.Kind, u.Raw)
		}
	})
}

// What Wrap and WrapAround write, Open and Raw read, and runtime.Unknown too.
func TestWhatIsWrappedIsFoundAgain(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	for _, raw := range [][]byte{nil, []byte("\x0a\x01a"), bytes.Repeat([]byte("\x0a\x01a"), 1000)} {
		whole, err := Wrap(kind, raw)
		if err != nil {
			t.Fatal(err)
		}
		head, tail, err := WrapAround(kind, len(raw))
		if err != nil {
			t.Fatal(err)
		}
		for name, data := range map[string][]byte{"whole": whole, "in pieces": bytes.Join([][]byte{head, raw, tail}, nil)} {
			m, ok := Open(data)
			if !ok || string(m.APIVersion) != "apps/v1" || string(m.Kind) != "Deployment" || !bytes.Equal(m.Raw, raw) {
				t.Errorf("%s: opened as %s %s with %d bytes, %v", name, m.APIVersion, m.Kind, len(m.Raw), ok)
			}
			if got, err := Raw(data); err != nil || !bytes.Equal(got, raw) {
				t.Errorf("%s: %d raw bytes, %v", name, len(got), err)
			}
			var u runtime.Unknown
			if err := u.Unmarshal(data[len(Prefix):]); err != nil || u.Kind != "Deployment" || !bytes.Equal(u.Raw, raw) {
				t.Errorf("%s: upstream reads %+v, %v", name, u, err)
			}
		}
	}
}

func TestFieldsAreFoundBehindOthers(t *testing.T) {
	var m []byte
	m = protowire.AppendVarint(protowire.AppendTag(m, 3, protowire.VarintType), 7)
	m = append(AppendHeader(m, 2, 1), 'b')
	m = append(AppendHeader(m, 1, 1), 'a')
	for field, want := range map[protowire.Number]string{1: "a", 2: "b", 3: "", 4: ""} {
		if got, err := Field(m, field); err != nil || string(got) != want {
			t.Errorf("field %d: %q, %v", field, got, err)
		}
	}
	if _, err := Field(protowire.AppendTag(nil, 5, protowire.Fixed64Type), 1); err == nil {
		t.Error("a field of fixed size passed")
	}
	if _, err := Field(m[:len(m)-1], 1); err == nil {
		t.Error("a message that ends too soon passed")
	}
}

func FuzzRaw(f *testing.F) {
	f.Add([]byte(Prefix + "\x0a\x00\x12\x01a"))
	f.Add([]byte(Prefix + "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		raw, err := Raw(data)
		if m, ok := Open(data); ok && (err != nil || !bytes.Equal(m.Raw, raw)) {
			t.Errorf("opened with %x, raw %x, %v", m.Raw, raw, err)
		}
		_, _ = Field(data, 1) // must neither panic nor hang
	})
}
