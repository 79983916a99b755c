// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"maps"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"pgregory.net/rapid"
)

func TestKeptFieldsAreWhatTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.String(), 0, 5, rapid.ID).Draw(t, "names")
		set := fields.Set{}
		for _, name := range names {
			set[name] = rapid.StringN(0, 300, -1).Draw(t, "value")
		}
		if got := unpackFields(names, packFields(names, set)); !maps.Equal(got, set) {
			t.Fatalf("%v became %v", set, got)
		}
	})
}
