// SPDX-License-Identifier: Apache-2.0

package strategic

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"pgregory.net/rapid"
)

// node has fields of all kinds that a patch tells apart, within one another.
type node struct {
	Name    string            `json:"name"`
	Text    string            `json:"text"`
	Values  []string          `json:"values"  patchStrategy:"merge"`
	Plain   []string          `json:"plain"`
	Nodes   []node            `json:"nodes"   patchMergeKey:"name"               patchStrategy:"merge"`
	Kept    []node            `json:"kept"    patchMergeKey:"name"               patchStrategy:"merge,retainKeys"`
	Keyless []node            `json:"keyless" patchStrategy:"merge"`
	Below   *node             `json:"below"   patchStrategy:"retainKeys"`
	Whole   *node             `json:"whole"   patchStrategy:"replace"`
	Map     map[string]string `json:"map"`
}

var (
	names   = rapid.SampledFrom([]string{"a", "b", "c", "d", "e"})
	sublist = []string{"nodes", "kept"}
)

func distinctNames(t *rapid.T, what string) []string {
	return rapid.SliceOfNDistinct(names, 0, 5, rapid.ID).Draw(t, what)
}

func texts(of []string) []any {
	out := []any{}
	for _, s := range of {
		out = append(out, s)
	}
	return out
}

// someObject is an object as it is stored. Its entries may have the same key.
func someObject(t *rapid.T, depth int) map[string]any {
	o := map[string]any{}
	maybe := func(what string) bool { return rapid.Bool().Draw(t, what) }
	if maybe("text") {
		o["text"] = names.Draw(t, "text")
	}
	for _, list := range []string{"values", "plain"} {
		if maybe(list) { // of values that are there twice upstream makes an order that has no meaning
			o[list] = texts(distinctNames(t, list))
		}
	}
	if maybe("map") {
		o["map"] = map[string]any{names.Draw(t, "key"): "x", names.Draw(t, "key"): "y"}
	}
	if depth == 0 {
		return o
	}
	for _, list := range append(sublist, "keyless") {
		if maybe(list) {
			entries := []any{}
			for _, name := range rapid.SliceOfN(names, 0, 4).Draw(t, list) {
				entry := someObject(t, depth-1)
				entry["name"] = name
				entries = append(entries, entry)
			}
			o[list] = entries
		}
	}
	for _, field := range []string{"below", "whole"} {
		if maybe(field) {
			o[field] = someObject(t, depth-1)
		}
	}
	return o
}

// somePatch has what objects have, and directives. What upstream does in any order it does not have: to delete a value that it adds.
func somePatch(t *rapid.T, depth int) map[string]any {
	p := someObject(t, 0)
	delete(p, "values")
	rarely := func(what string) bool { return rapid.IntRange(0, 5).Draw(t, what) == 0 }
	switch rapid.IntRange(0, 8).Draw(t, "values") {
	case 0:
		p["values"] = texts(rapid.SliceOfN(names, 0, 5).Draw(t, "added"))
	case 1:
		p["$deleteFromPrimitiveList/values"] = texts(distinctNames(t, "deleted"))
	case 2:
		p["values"] = texts(rapid.SliceOfN(names, 0, 5).Draw(t, "added"))
		p["$setElementOrder/values"] = texts(distinctNames(t, "order"))
	case 3:
		p["$setElementOrder/values"] = texts(distinctNames(t, "order"))
	case 4:
		p["values"] = rapid.SampledFrom([]any{nil, "x", []any{int64(1), "x"}, []any{[]any{}}, map[string]any{}}).Draw(t, "wrong")
	}
	if rarely("null") {
		p[rapid.SampledFrom([]string{"text", "plain", "map", "nodes", "below"}).Draw(t, "null")] = nil
	}
	if rarely("directive") {
		p["$patch"] = rapid.SampledFrom([]any{"replace", "delete", "merge", int64(1)}).Draw(t, "directive")
	}
	if rarely("retain") {
		fields := rapid.SampledFrom([]string{"name", "text", "nodes", "values", "map", "plain"})
		p["$retainKeys"] = texts(rapid.SliceOfN(fields, 0, 6).Draw(t, "retained"))
	}
	if depth == 0 {
		return p
	}
	for _, list := range sublist {
		if !rapid.Bool().Draw(t, list) {
			continue
		}
		entries, order := []any{}, []any{}
		again := false
		for _, name := range rapid.SliceOfN(names, 0, 5).Draw(t, list) {
			entry := map[string]any{}
			switch rapid.IntRange(0, 9).Draw(t, "entry") {
			case 0:
				entry["$patch"] = "delete"
			case 1:
				entry["$patch"] = rapid.SampledFrom([]any{"replace", "merge", "x"}).Draw(t, "directive")
			default:
				entry = somePatch(t, depth-1)
			}
			if rapid.IntRange(0, 30).Draw(t, "keyless") > 0 {
				entry["name"] = name
			}
			again = again || entry["$patch"] == "delete"
			entries = append(entries, entry)
			order = append(order, map[string]any{"name": name})
		}
		if rapid.Bool().Draw(t, "entries") {
			p[list] = entries
		}
		// In the order of the entries, or in any. An entry that is deleted and comes again has no place in upstream's order.
		if rarely("order") && !again {
			p["$setElementOrder/"+list] = order
		} else if rarely("any order") && !again {
			other := []any{}
			for _, name := range distinctNames(t, "order") {
				other = append(other, map[string]any{"name": name})
			}
			p["$setElementOrder/"+list] = other
		}
	}
	for _, field := range []string{"below", "whole"} {
		if rapid.Bool().Draw(t, field) {
			p[field] = somePatch(t, depth-1)
		}
	}
	return p
}

func copied(t interface{ Fatal(args ...any) }, tree map[string]any) (out map[string]any) {
	data, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// upstreams is what upstream makes of a patch; ok = false: it panics.
func upstreams(original, patch map[string]any) (out map[string]any, ok bool, err error) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	out, err = strategicpatch.StrategicMergeMapPatch(original, patch, node{})
	return out, true, err
}

// TestMergesAreThoseOfUpstream: of objects and patches with all directives, and in upstream's order.
func TestMergesAreThoseOfUpstream(t *testing.T) {
	merged, refused, panics := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		original, patch := someObject(t, 2), somePatch(t, 2)
		want, ok, wrong := upstreams(copied(t, original), copied(t, patch))
		got, err := mergeTrees(copied(t, original), copied(t, patch), node{})
		switch {
		case !ok && err == nil:
			t.Fatalf("upstream panics, and here comes %v", got)
		case !ok:
			panics++
		case (err == nil) != (wrong == nil):
			t.Fatalf("%v\nupstream: %v", err, wrong)
		case err != nil:
			refused++
		default:
			merged++
			if !reflect.DeepEqual(copied(t, got), copied(t, want)) {
				t.Fatalf("%v\nand %v\nmake %v\nupstream: %v", original, patch, got, want)
			}
		}
	})
	t.Logf("%d merged, %d refused, %d that upstream panics at", merged, refused, panics)
	if merged == 0 || refused == 0 {
		t.Error("not all cases came up")
	}
}

func entriesOf(n int, format string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(format, i)
	}
	return "[" + strings.Join(list, ",") + "]"
}

// TestWhatIsLookedAtGrowsWithThePatch: not with the product of what it has and what the object has.
func TestWhatIsLookedAtGrowsWithThePatch(t *testing.T) {
	tree := func(text string) (out map[string]any) {
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	env := func(n int, entry string) string {
		return `{"spec":{"containers":[{"name":"c","env":` + entriesOf(n, entry) + `}]}}`
	}
	const many = 20_000
	for name, patch := range map[string]string{
		"one entry":           env(1, `{"name":"N%d"}`),
		"as many":             env(many, `{"name":"E%d","value":"x"}`),
		"as many others":      env(many, `{"name":"N%d"}`),
		"as many deletions":   env(many, `{"name":"E%d","$patch":"delete"}`),
		"an order":            `{"spec":{"containers":[{"name":"c","$setElementOrder/env":` + entriesOf(many, `{"name":"E%d"}`) + `}]}}`,
		"an order of a value": `{"metadata":{"$setElementOrder/finalizers":` + entriesOf(many, `"f%d"`) + `,"finalizers":` + entriesOf(many, `"f%d"`) + `}}`,
	} {
		of, err := strategicpatch.NewPatchMetaFromStruct(corev1.Pod{})
		if err != nil {
			t.Fatal(err)
		}
		m := &merge{}
		if _, err := m.maps(tree(env(many, `{"name":"E%d"}`)), tree(patch), of); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if m.looks > 5*many {
			t.Errorf("%s: %d entries were looked at", name, m.looks)
		}
	}
	again := `{"spec":{"containers":` + strings.ReplaceAll(entriesOf(1000, `{"name":"c","env":[{"name":"A%d"}]}`), "%", "") + `}}`
	_, err := mergeTrees(tree(env(many, `{"name":"E%d"}`)), tree(again), corev1.Pod{})
	if !apierrors.IsRequestEntityTooLargeError(err) || !strings.Contains(err.Error(), "entries with the same key") {
		t.Errorf("the same key a thousand times: %v", err)
	}
}

// TestWhatUpstreamPanicsAtIsAnError.
func TestWhatUpstreamPanicsAtIsAnError(t *testing.T) {
	const live = `{"name":"x","nodes":[{"name":"a"}],"values":["a"]}`
	for _, patch := range []string{
		`{"nodes":[{"name":{}},{"name":{}}]}`, `{"nodes":[null]}`, `{"values":[null]}`, `{"$retainKeys":[{}]}`,
		`{"$setElementOrder/values":[[]]}`,
		`{"$setElementOrder/nodes":[{"name":[]}]}`, `{"$setElementOrder/keyless":[{}],"keyless":[{}]}`,
	} {
		if out, err := MergeJSON([]byte(live), []byte(patch), node{}); err == nil {
			t.Errorf("%s: %s", patch, out)
		}
	}
}

// BenchmarkOneAmongMany is a patch of one variable in a container that has 9,000, upstream's merge beside this one.
func BenchmarkOneAmongMany(b *testing.B) {
	live := []byte(`{"spec":{"containers":[{"name":"c","env":` + entriesOf(9000, `{"name":"E%d"}`) + `}]}}`)
	patch := []byte(`{"spec":{"containers":[{"name":"c","env":[{"name":"E5000","value":"x"}]}]}}`)
	for name, merge := range map[string]func(before, patch []byte, o any) ([]byte, error){
		"upstream": strategicpatch.StrategicMergePatch, "here": MergeJSON,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := merge(live, patch, corev1.Pod{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
