// SPDX-License-Identifier: Apache-2.0

package customresource

import (
	"log/slog"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/customresource/conversion"
	"github.com/wasmplane/wasmplane/core/customresource/extension"
	"github.com/wasmplane/wasmplane/core/dial"
	carrier "github.com/wasmplane/wasmplane/core/object"
)

const fuzzed = `
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
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              replicas: {type: integer, default: 1}
              any: {x-kubernetes-preserve-unknown-fields: true}
              pod: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
              tags: {type: array, x-kubernetes-list-type: set, items: {type: string}}
              ports: {type: array, items: {type: object, properties: {protocol: {type: string, default: TCP}}}}
          status: {type: object, properties: {replicas: {type: integer}}}
`

func fuzzDefinition(tb testing.TB) *definition {
	tb.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(fuzzed), crd); err != nil {
		tb.Fatal(err)
	}
	return defined(tb, crd)
}

// defined is what a definition is served by.
func defined(tb testing.TB, crd *apiextensionsv1.CustomResourceDefinition) *definition {
	tb.Helper()
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

// FuzzDecode: whatever body comes, it is refused, or is in the version's shape:
// reading what was made of it gives the same again.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"apiVersion":"example.com/v1","kind":"Tab","metadata":{"name":"a","labels":{"a":"b"}},"spec":{"replicas":2,"tags":["a"],"more":1}}`,
		`{"apiVersion":"example.com/v1","kind":"Tab","metadata":{"name":1},"spec":null}`,
		`{"apiVersion":"example.com/v1","kind":"Tab","metadata":[],"spec":[]}`,
		`{"apiVersion":"example.com/v2","kind":"Tab"}`, `{"apiVersion":"example.com/v1","kind":"Tab","spec":{"pod":{"metadata":{"name":2}}}}`,
		`{"apiVersion":7}`, `[]`, `null`, `{`, "kind: Tab\napiVersion: example.com/v1\n", "a: &a [*a]",
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	d := fuzzDefinition(f)
	v := d.versions["v1"]
	f.Fuzz(func(t *testing.T, body []byte, strict bool) {
		for _, media := range []string{carrier.JSON, carrier.YAML} {
			o, _, err := v.decode(body, media, strict)
			if err != nil {
				continue
			}
			v.codec.Default(o)
			first, err := v.codec.Encode(o, carrier.JSON)
			if err != nil {
				t.Fatalf("what was read cannot be written: %v", err)
			}
			again, unknown, err := v.decode(first, carrier.JSON, true)
			if err != nil || len(unknown) > 0 {
				t.Fatalf("what was written cannot be read: %v %v\n%s", err, unknown, first)
			}
			v.codec.Default(again)
			if second, err := v.codec.Encode(again, carrier.JSON); err != nil || string(second) != string(first) {
				t.Fatalf("%s\nbecame %s %v", first, second, err)
			}
		}
	})
}

// FuzzStored: whatever somebody wrote into the store, reading it fails or answers
// an object, and never takes the server down.
func FuzzStored(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"example.com/v1","kind":"Tab","metadata":{"name":"a","labels":{"a":1}},"spec":{"tags":{}}}`))
	f.Add([]byte(`{"apiVersion":"example.com/v9","kind":"Tab","metadata":"x"}`))
	f.Add([]byte("\xd9\xd9\xf7\xa1\x64kind\x63Tab"))
	f.Add([]byte(`{"kind":{}}`))
	d := fuzzDefinition(f)
	row := d.row(true, false)
	f.Fuzz(func(t *testing.T, value []byte) {
		o, err := decodeStored(row, value)
		if err != nil {
			return
		}
		out, err := d.Convert(t.Context(), []*carrier.Object{o}, "v1")
		if err != nil {
			return
		}
		if _, err := out[0].Encoded(carrier.JSON); err != nil {
			t.Fatal(err)
		}
	})
}
