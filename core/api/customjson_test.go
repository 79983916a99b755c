// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// byLibrary is what encoding/json makes of a tree.
func byLibrary(tree map[string]any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(tree)
	return b.String(), err
}

// anyTree draws what decoders make of JSON, and what Go code puts into trees beside it.
func anyTree(t *rapid.T, depth int) any {
	kinds := 9
	if depth == 0 {
		kinds = 7
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(t, "bool")
	case 2:
		return rapid.Int64().Draw(t, "int")
	case 3:
		return rapid.Float64().Draw(t, "float")
	case 4:
		return string(rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "bytes")) // may be no UTF-8
	case 5:
		return rapid.String().Draw(t, "string")
	case 6:
		return rapid.SliceOf(rapid.String()).Draw(t, "strings")
	case 7:
		out := []any{}
		for range rapid.IntRange(0, 4).Draw(t, "length") {
			out = append(out, anyTree(t, depth-1))
		}
		return out
	}
	out := map[string]any{}
	for range rapid.IntRange(0, 4).Draw(t, "members") {
		out[rapid.String().Draw(t, "key")] = anyTree(t, depth-1)
	}
	return out
}

func TestACustomResourceIsWrittenAsTheLibraryWouldDoIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tree := map[string]any{"a": anyTree(t, 4), "b": anyTree(t, 4)}
		want, wantErr := byLibrary(tree)
		got, err := EncodeCustom(tree)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v, and the library: %v", err, wantErr)
		}
		if err == nil && string(got) != want {
			t.Fatalf("%s\nand the library: %s", got, want)
		}
	})
}

func TestEdgesOfJSON(t *testing.T) {
	deep := map[string]any{}
	for range 5000 {
		deep = map[string]any{"a": []any{deep}}
	}
	round := map[string]any{}
	round["self"] = round
	for name, tree := range map[string]map[string]any{
		"nothing": nil, "empty": {}, "nil": {"a": []any(nil), "b": map[string]any(nil)},
		"floats": {"a": []any{
			0.0, math.Copysign(0, -1), 1e21, 1e20, 1e-6, 9e-7, 1e-10, 1.5e300, math.MaxFloat64, math.SmallestNonzeroFloat64,
			-1e-7,
		}},
		"strings": {"<&>\u2028\u2029\x00\x1f\x7f\b\f\n\r\t\"\\/": "\xff\xc3(\U0001F600\ufffd"},
		"long":    {"a": strings.Repeat("é\n", 1<<16)},
		"deep":    deep, "no number": {"a": math.NaN()}, "no bound": {"a": math.Inf(1)}, "in itself": round,
		"no value": {"a": func() {}},
	} {
		want, wantErr := byLibrary(tree)
		got, err := EncodeCustom(tree)
		if (err == nil) != (wantErr == nil) || err == nil && string(got) != want {
			t.Errorf("%s: %.200s %v, and the library: %.200s %v", name, got, err, want, wantErr)
		}
	}
}
