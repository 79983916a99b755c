// SPDX-License-Identifier: Apache-2.0

package patch_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/registry/patch"
)

// TestNestingIsBoundedByTheSquare: a body of 1.4 MB in 490 levels took a minute, as each level was decoded with all
// that is in it. Shallow objects of that size, and small ones of that depth, are patched.
func TestNestingIsBoundedByTheSquare(t *testing.T) {
	nest := func(depth int, inside string) []byte {
		return []byte(strings.Repeat(`{"a":`, depth) + inside + strings.Repeat("}", depth))
	}
	text, list := `"`+strings.Repeat(`\"[`, 400<<10)+`"`, "["+strings.Repeat("1,", 600<<10)+"1]"
	for name, c := range map[string]struct {
		object  []byte
		depth   int
		refused bool
	}{
		"a long string, deep":     {nest(490, text), 490, true},
		"a long list, deep":       {nest(490, list), 490, true},
		"a long string, shallow":  {nest(5, text), 5, false},
		"a long list, shallow":    {nest(5, list), 5, false},
		"little in many levels":   {nest(490, `"x"`), 490, false},
		"what definitions may be": {nest(40, `"`+strings.Repeat("x", 1<<20)+`"`), 40, false},
	} {
		for kind, body := range map[types.PatchType][]byte{
			types.MergePatchType: c.object,
			types.JSONPatchType:  []byte(`[{"op":"add","path":"` + strings.Repeat("/a", c.depth-1) + `/b","value":1}]`),
		} {
			_, _, err := patch.Patch{Type: kind, Body: body}.Apply(c.object)
			if apierrors.IsRequestEntityTooLargeError(err) != c.refused || !c.refused && err != nil {
				t.Errorf("%s, %s: %v", name, kind, err)
			}
		}
	}
}

// TestValuesOfAPatchAreBounded: each becomes a node that is taken apart, wherever it goes.
func TestValuesOfAPatchAreBounded(t *testing.T) {
	list := func(n int) string { return "[" + strings.Repeat("1,", n) + `"a,b"]` }
	for _, c := range []struct {
		kind         types.PatchType
		before, tail string
	}{
		{types.MergePatchType, `{"x":`, `}`},
		{types.JSONPatchType, `[{"op":"add","path":"/x","value":`, `}]`},
	} {
		for n, fits := range map[int]bool{700_000: true, 800_000: false} {
			_, _, err := patch.Patch{Type: c.kind, Body: []byte(c.before + list(n) + c.tail)}.Apply([]byte(`{}`))
			if fits && err != nil || !fits && !apierrors.IsRequestEntityTooLargeError(err) {
				t.Errorf("%s of %d values: %v", c.kind, n, err)
			}
		}
	}
}
