// SPDX-License-Identifier: Apache-2.0

package customresource

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/customresource/conversion"
	"github.com/wasmplane/wasmplane/core/customresource/extension"
	"github.com/wasmplane/wasmplane/core/dial"
	carrier "github.com/wasmplane/wasmplane/core/object"
)

// twoVersions prune, default and select differently.
const twoVersions = `
metadata: {name: tabs.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: tabs, singular: tab, kind: Tab, listKind: TabList}
  conversion: {strategy: None}
  versions:
  - name: v1
    served: true
    storage: true
    selectableFields: [{jsonPath: .spec.color}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              color: {type: string}
              replicas: {type: integer, default: 1}
              ratio: {type: number}
              any: {x-kubernetes-preserve-unknown-fields: true}
              list: {type: array, items: {type: object, properties: {a: {type: string, default: x}}}}
  - name: v2
    served: true
    storage: false
    selectableFields: [{jsonPath: .spec.color}, {jsonPath: .spec.size}]
    additionalPrinterColumns: [{name: Color, type: string, jsonPath: .spec.color}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              color: {type: string, default: blue}
              size: {type: string, default: large}
              any: {x-kubernetes-preserve-unknown-fields: true}
`

func twoVersionsDefinition(tb testing.TB) *definition {
	tb.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(twoVersions), crd); err != nil {
		tb.Fatal(err)
	}
	crd.Status.AcceptedNames = crd.Spec.Names
	hooks, err := conversion.NewWebhooks(nil, dial.Operator(nil))
	if err != nil {
		tb.Fatal(err)
	}
	d, err := define(tb.Context(), &environment{webhooks: hooks, extension: extension.None{}, log: slog.New(slog.DiscardHandler)}, crd)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// tester is a test, or one round of a property.
type tester interface {
	rapid.TB
	Context() context.Context
}

// held is an object as the watch cache holds it; unpacked it is what the cache held before it packed.
func held(tb tester, d *definition, value []byte, packed bool) *carrier.Object {
	tb.Helper()
	o, _, _, err := (&api.Contract{}).WatchDecoder(d.row(true, false))("/registry/example.com/tabs/ns/a", value, 7)
	if err != nil {
		tb.Fatal(err)
	}
	if packed {
		if err := o.Pack(); err != nil {
			tb.Fatal(err)
		}
	}
	return o
}

// answers are what clients can be told of an object.
type answers struct {
	JSON, YAML string
	Tree       map[string]any
	Labels     map[string]string
	Fields     fields.Set
	Row        []any
	Partial    *metav1.PartialObjectMetadata
}

func answersOf(tb tester, d *definition, o *carrier.Object, version string) (out answers) {
	tb.Helper()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	all, err := d.Convert(tb.Context(), []*carrier.Object{o}, version)
	must(err)
	text, err := all[0].Encoded(carrier.JSON)
	must(err)
	out.JSON = string(text)
	if len(text) < 8<<10 { // deep text is mostly indentation in YAML
		text, err = all[0].Encoded(carrier.YAML)
		out.YAML = fmt.Sprintf("%s %v", text, err) // YAML refuses some characters
	}
	out.Tree, err = all[0].Tree()
	must(err)
	v, err := d.Version(version)
	must(err)
	versioned, err := all[0].Versioned()
	must(err)
	out.Labels, out.Fields, err = v.Attrs(versioned)
	must(err)
	table, err := v.Table.ConvertToTable(tb.Context(), versioned, &metav1.TableOptions{NoHeaders: true})
	must(err)
	out.Row = table.Rows[0].Cells
	out.Partial, err = api.Partial(versioned)
	must(err)
	return out
}

// anyJSON draws a value as somebody may have stored it.
func anyJSON(t *rapid.T, depth int) any {
	switch kind := rapid.IntRange(0, 8).Draw(t, "kind"); {
	case kind == 0:
		return nil
	case kind == 1:
		return rapid.Bool().Draw(t, "bool")
	case kind == 2:
		return rapid.Int64().Draw(t, "int")
	case kind == 3:
		return rapid.Float64().Draw(t, "float")
	case kind == 4:
		return float64(rapid.IntRange(-5, 5).Draw(t, "whole"))
	case kind <= 6 || depth == 0:
		return rapid.String().Draw(t, "string")
	case kind == 7:
		list := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			list = append(list, anyJSON(t, depth-1))
		}
		return list
	}
	m := map[string]any{}
	for range rapid.IntRange(0, 3).Draw(t, "members") {
		m[rapid.String().Draw(t, "key")] = anyJSON(t, depth-1)
	}
	return m
}

func anyTab(t *rapid.T) map[string]any {
	spec := map[string]any{}
	for _, f := range []struct { // in one order, so that a failure can be played again
		name string
		draw func() any
	}{
		{"any", func() any { return anyJSON(t, 4) }},
		{"unknown", func() any { return anyJSON(t, 2) }},
		{"color", func() any { return rapid.StringN(0, 5, -1).Draw(t, "color") }},
		{"size", func() any { return rapid.StringN(0, 5, -1).Draw(t, "size") }},
		{"replicas", func() any { return rapid.Int64().Draw(t, "replicas") }},
		{"ratio", func() any { return rapid.SampledFrom([]any{1.5, 2.0, int64(3), nil}).Draw(t, "ratio") }},
		{"list", func() any { return []any{map[string]any{}, map[string]any{"a": "b", "c": int64(1)}} }},
	} {
		if rapid.Bool().Draw(t, f.name+"?") {
			spec[f.name] = f.draw()
		}
	}
	metadata := map[string]any{"name": "a", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-11-23T10:00:00Z"}
	if rapid.Bool().Draw(t, "labels?") {
		metadata["labels"] = map[string]any{"app": rapid.StringMatching("[a-z]{0,5}").Draw(t, "label")}
	}
	if rapid.Bool().Draw(t, "odd metadata?") {
		metadata["unknown"], metadata["generation"] = anyJSON(t, 1), int64(3)
	}
	return map[string]any{
		"apiVersion": "example.com/" + rapid.SampledFrom([]string{"v1", "v2"}).Draw(t, "stored version"), "kind": "Tab",
		"metadata": metadata, "spec": spec,
	}
}

// What the cache packs and drops gives every client the answer that it got when the
// cache held trees: for random objects, in every version, whatever was dropped before.
func TestPackedCustomResourcesAreAnsweredAsUnpackedOnes(t *testing.T) {
	d := twoVersionsDefinition(t)
	rapid.Check(t, func(t *rapid.T) {
		tab := anyTab(t)
		value, err := json.Marshal(tab)
		if rapid.Bool().Draw(t, "cbor") {
			value, err = cbor.Marshal(tab)
			value = append([]byte{0xd9, 0xd9, 0xf7}, value...) // so it says that it is CBOR
		}
		if err != nil {
			t.Fatal(err)
		}
		plain, packed := held(t, d, value, false), held(t, d, value, true)
		for _, drop := range []func(){func() {}, packed.DropDecoded, packed.DropEncoded, func() { dropAll(d, packed) }} {
			drop()
			for _, version := range []string{"v1", "v2"} {
				if diff := cmp.Diff(answersOf(t, d, plain, version), answersOf(t, d, packed, version)); diff != "" {
					t.Fatalf("%s (-unpacked +packed):\n%s", version, diff)
				}
			}
		}
	})
}

// dropAll is what the cache does in time: an object and its views are bytes alone.
func dropAll(d *definition, o *carrier.Object) {
	forms := []*carrier.Object{o}
	for _, v := range d.versions {
		if view := o.View(v.codec); view != nil {
			forms = append(forms, view)
		}
	}
	for _, f := range forms {
		f.DropDecoded()
		f.DropEncoded()
	}
}

// What a deleted object was last is stamped and packed anew.
func TestACopyOfAPackedCustomResourceIsPackable(t *testing.T) {
	d := fuzzDefinition(t)
	for _, number := range []string{"1.5", "1.0"} {
		o := held(t, d, []byte(`{"apiVersion":"example.com/v1","kind":"Tab","metadata":{"name":"a"},"spec":{"any":`+number+`,"replicas":1}}`), true)
		duplicate, err := o.Copy()
		if err != nil {
			t.Fatal(err)
		}
		m, err := duplicate.Meta()
		if err != nil {
			t.Fatal(err)
		}
		m.SetResourceVersion("9")
		if err := duplicate.Pack(); err != nil {
			t.Fatal(err)
		}
		want, got := answersOf(t, d, o, "v1"), answersOf(t, d, duplicate, "v1")
		if got.JSON != strings.Replace(want.JSON, `"resourceVersion":"7"`, `"resourceVersion":"9"`, 1) {
			t.Errorf("%s\nbecame %s", want.JSON, got.JSON)
		}
	}
}

// What others wrote into the store is packed as it is read, and no larger.
func TestHostileValuesAreReadPackedAsUnpacked(t *testing.T) {
	d := twoVersionsDefinition(t)
	const tab = `{"apiVersion":"example.com/v1","kind":"Tab","metadata":{"name":"a"%s},"spec":{%s}}`
	for name, value := range map[string]string{
		"at the limit of a request": fmt.Sprintf(tab, "", `"any":"`+strings.Repeat("x", 3<<20-200)+`"`),
		"many small fields":         fmt.Sprintf(tab, "", `"any":[`+strings.Repeat(`{"a":1},`, 1<<16)+`{}]`),
		"deep":                      fmt.Sprintf(tab, "", `"any":`+strings.Repeat(`{"a":[`, 4000)+"1.0"+strings.Repeat("]}", 4000)),
		"keys twice":                fmt.Sprintf(tab, `,"name":"b","labels":{"a":"b","a":"c"}`, `"color":"red","color":"green","any":1,"any":{"a":2}`),
		"another case":              fmt.Sprintf(tab, `,"Labels":{"a":"b"}`, `"Color":"red","COLOR":"green"`),
		"no UTF-8":                  fmt.Sprintf(tab, "", `"color":"`+"\xff\xfe"+`","any":"`+"\xc3("+`"`),
		"line ends and zeros":       fmt.Sprintf(tab, "", `"any":"\u2028\u2029\u0000<>&"`),
		"numbers":                   fmt.Sprintf(tab, "", `"any":[1.0,-0,-0.0,1e3,1e400e,9223372036854775808,0.1]`),
		"large numbers":             fmt.Sprintf(tab, "", `"any":[1.0,-0,-0.0,1e3,1e300,9223372036854775808,18446744073709551616,0.1,1e-7]`),
		"labels that are none":      fmt.Sprintf(tab, `,"labels":{"a":1,"b":null},"annotations":[]`, `"any":1`),
		"spaces":                    strings.ReplaceAll(fmt.Sprintf(tab, "", `"any":{}`), `":`, "\" \n:\t"),
	} {
		t.Run(name, func(t *testing.T) {
			_, _, _, err := (&api.Contract{}).WatchDecoder(d.row(true, false))("/registry/example.com/tabs/ns/a", []byte(value), 7)
			if name == "numbers" {
				if err == nil {
					t.Error("what is no JSON was read")
				}
				return
			}
			plain, packed := held(t, d, []byte(value), false), held(t, d, []byte(value), true)
			for range 2 {
				for _, version := range []string{"v1", "v2"} {
					if want, got := answersOf(t, d, plain, version), answersOf(t, d, packed, version); !reflect.DeepEqual(want, got) {
						t.Errorf("%s: %.500s\npacked: %.500s", version, want.JSON, got.JSON)
					}
				}
				dropAll(d, packed)
			}
			source := packed.Packed(carrier.JSON)
			if source == nil {
				source = packed.Packed(carrier.CBOR)
			}
			if len(source) == 0 || len(source) > 3*len(value)+100 {
				t.Errorf("%d bytes are packed into %d", len(value), len(source))
			}
		})
	}
}

// Nobody's list decodes what is packed as it is answered.
func TestAListOfPackedCustomResourcesSharesTheirBytes(t *testing.T) {
	d := fuzzDefinition(t)
	o := held(t, d, benchObject(1, 1), true)
	out, err := d.Convert(t.Context(), []*carrier.Object{o}, "v1")
	if err != nil {
		t.Fatal(err)
	}
	answer, err := out[0].Encoded(carrier.JSON)
	if err != nil {
		t.Fatal(err)
	}
	if source := o.Packed(carrier.JSON); &source[0] != &answer[0] {
		t.Error("the answer is another copy of the object")
	}
}
