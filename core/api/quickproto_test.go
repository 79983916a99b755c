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
				random := r.storage.Empty()
				fillerOf(r, seed).Fill(random)
				value, err := r.storage.Encode(random, object.Protobuf)
				if err != nil {
					t.Fatal(err)
				}
				want, _, err := r.storage.DecodeStrict(value, object.Protobuf) // never quickly
				if err != nil {
					t.Fatal(err)
				}
				got, err := r.storage.Decode(value, object.Protobuf)
				if err != nil {
					t.Fatal(err)
				}
				clear(value)
				if diff := cmp.Diff(jsonOf(t, want), jsonOf(t, got)); diff != "" {
					t.Fatalf("(-serializer +quick):\n%s", diff)
				}
			}
		})
	}
}
