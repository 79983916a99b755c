package api

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/object"
)

// FuzzOpenEnvelope: what is parted is what runtime.Unknown reads.
func FuzzOpenEnvelope(f *testing.F) {
	for _, u := range []runtime.Unknown{
		{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Raw: []byte("\x0a\x03abc")},
		{TypeMeta: runtime.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, Raw: bytes.Repeat([]byte("x"), 300), ContentType: "a", ContentEncoding: "b"},
		{},
	} {
		data, err := u.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		for _, broken := range [][]byte{data, data[:len(data)/2], append(bytes.Clone(data), data...), append(bytes.Clone(data), 0), append(bytes.Clone(data), 0x2a, 0)} {
			f.Add(append([]byte(protobufPrefix), broken...))
		}
	}
	f.Add([]byte(protobufPrefix))
	f.Add([]byte("k8s"))
	f.Add([]byte(protobufPrefix + "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Add([]byte(protobufPrefix + "\x0a\x04\x0a\x02v1\x12"))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, ok := openEnvelope(data)
		if !ok {
			return
		}
		var u runtime.Unknown
		if err := u.Unmarshal(data[len(protobufPrefix):]); err != nil {
			t.Fatalf("parted although it is no envelope: %v", err)
		}
		if u.APIVersion != string(e.apiVersion) || u.Kind != string(e.kind) || !bytes.Equal(u.Raw, e.raw) {
			t.Errorf("parted as %s %s %x, it is %s %s %x", e.apiVersion, e.kind, e.raw, u.APIVersion, u.Kind, u.Raw)
		}
	})
}

// What is read quickly is what the serializer reads, and shares nothing with the
// bytes that it was read from.
func TestQuickProtobufIsWhatTheSerializerReads(t *testing.T) {
	c := newContract(t)
	for _, r := range c.Resources() {
		if r.Virtual {
			continue
		}
		t.Run(r.GroupResource.String(), func(t *testing.T) {
			for seed := range int64(6) {
				random := r.storage.empty()
				fillerOf(r, seed).Fill(random)
				value, err := r.storage.Encode(random, object.Protobuf)
				if err != nil {
					t.Fatal(err)
				}
				want, _, err := r.storage.decode(r.storage.wire[object.Protobuf].lenient, value)
				if err != nil {
					t.Fatal(err)
				}
				got := r.storage.quickProto(value)
				if got == nil {
					t.Fatal("not read quickly")
				}
				clear(value)
				if diff := cmp.Diff(jsonOf(t, want), jsonOf(t, got)); diff != "" {
					t.Fatalf("(-serializer +quick):\n%s", diff)
				}
			}
		})
	}
}
