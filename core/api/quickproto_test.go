// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wasmplane/wasmplane/core/object"
)

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
