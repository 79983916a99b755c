// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/object"
)

func rowOf(tb testing.TB, c *Contract, group, name string) *Resource {
	tb.Helper()
	r, ok := c.Resource(schema.GroupResource{Group: group, Resource: name})
	if !ok {
		tb.Fatalf("no row %s in group %q", name, group)
	}
	return r
}

// What a body is refused with, or warned of, is worded as upstream words it.
func TestBodiesAreJudgedInUpstreamsWords(t *testing.T) {
	c := newContract(t)
	pods := rowOf(t, c, "", "pods")
	for name, tc := range map[string]struct {
		body, media string
		strict      []string
		err         string
	}{
		"right":         {body: `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`},
		"no kind":       {body: `{"metadata":{"name":"a"}}`},
		"unknown field": {body: `{"spec":{"bogus":1,"containers":[{"nmae":"x"}]}}`, strict: []string{`unknown field "spec.bogus"`, `unknown field "spec.containers[0].nmae"`}},
		"twice":         {body: `{"metadata":{"name":"a","name":"b"}}`, strict: []string{`duplicate field "metadata.name"`}},
		"YAML twice": {
			body: "metadata:\n  name: a\n  name: b\n", media: object.YAML,
			strict: []string{`yaml: unmarshal errors:` + "\n" + `  line 3: key "name" already set in map`},
		},
		"other kind": {
			body: `{"kind":"ConfigMap","apiVersion":"v1","data":{"a":"b"}}`,
			err:  `ConfigMap in version "v1" cannot be handled as a Pod: converting (v1.ConfigMap) to (core.Pod): unknown conversion`,
		},
		"other version": {
			body: `{"kind":"Pod","apiVersion":"v2"}`,
			err:  `Pod in version "v2" cannot be handled as a Pod: no kind "Pod" is registered for version "v2" in scheme`,
		},
		"other group": {
			body: `{"kind":"Deployment","apiVersion":"apps/v1"}`,
			err:  `Deployment in version "v1" cannot be handled as a Pod: converting (v1.Deployment) to (core.Pod): unknown conversion`,
		},
		"wrong type": {
			body: `{"kind":"Pod","apiVersion":"v1","spec":{"containers":"none"}}`,
			err:  `Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container`,
		},
		"no JSON": {body: `{"kind":`, err: `the object provided is unrecognized (must be of type Pod): couldn't get version/kind; json parse error`},
		"empty":   {body: ``, err: `<empty>`},
		"bytes":   {body: "\x01\x02", media: object.Protobuf, err: `(0102)`},
		"media":   {body: `<a/>`, media: "text/xml", err: `media type "text/xml": expected application/json`},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.media == "" {
				tc.media = object.JSON
			}
			o, strict, err := c.DecodeStrict(pods, "v1", []byte(tc.body), tc.media)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if o.GetObjectKind().GroupVersionKind() != pods.GVK("v1") {
				t.Errorf("kind %v", o.GetObjectKind().GroupVersionKind())
			}
			var got []string
			for _, e := range strict {
				got = append(got, e.Error())
			}
			if strings.Join(got, "|") != strings.Join(tc.strict, "|") {
				t.Errorf("strict: %q, want %q", got, tc.strict)
			}
		})
	}
	err := c.StrictError(pods, "v1", []error{apierrors.NewBadRequest(`unknown field "a"`)})
	if want := `Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "a"`; err.Error() != want {
		t.Errorf("got %q", err)
	}
}

func TestFieldSelectorsAreConvertedOrRefused(t *testing.T) {
	c := newContract(t)
	for _, tc := range []struct{ group, resource, selector, want, err string }{
		{"", "pods", "spec.nodeName=n1,status.phase!=Running", "spec.nodeName=n1,status.phase!=Running", ""},
		{"", "pods", "spec.host=n1", "spec.nodeName=n1", ""},
		{"", "pods", "spec.image=x", "", "field label not supported: spec.image"},
		{"events.k8s.io", "events", "regarding.name=a", "involvedObject.name=a", ""},
		{"apps", "deployments", "metadata.name=a", "metadata.name=a", ""},
		{"apps", "deployments", "status.replicas=1", "", `"status.replicas" is not a known field selector: only "metadata.name", "metadata.namespace"`},
		{"batch", "jobs", "status.active=1", "", `field label "status.active" not supported for Job`},
	} {
		sel, err := fields.ParseSelector(tc.selector)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.FieldSelector(rowOf(t, c, tc.group, tc.resource), "v1", sel)
		switch {
		case tc.err != "":
			if err == nil || err.Error() != tc.err || !apierrors.IsBadRequest(err) {
				t.Errorf("%s: %v, want %s", tc.selector, err, tc.err)
			}
		case err != nil:
			t.Errorf("%s: %v", tc.selector, err)
		case got.String() != tc.want:
			t.Errorf("%s became %s", tc.selector, got)
		}
	}
}

func TestScaleReadsAndWritesItsParent(t *testing.T) {
	c := newContract(t)
	r := rowOf(t, c, "apps", "deployments")
	o, _, err := c.DecodeStrict(r, "v1", []byte(`{"metadata":{"name":"d","namespace":"n","uid":"u","resourceVersion":"5"},"spec":{"replicas":3,"selector":{"matchLabels":{"a":"b"}}},"status":{"replicas":2}}`), object.JSON)
	if err != nil {
		t.Fatal(err)
	}
	internal, err := r.Codec("v1").Internal(o)
	if err != nil {
		t.Fatal(err)
	}
	scale, err := c.ScaleFrom(r, "v1", internal, false)
	if err != nil {
		t.Fatal(err)
	}
	if scale.Spec.Replicas != 3 || scale.Status.Replicas != 2 || scale.Status.Selector != "a=b" || scale.ResourceVersion != "5" {
		t.Errorf("%+v", scale)
	}
	scale.Spec.Replicas = 7
	changed, err := c.ApplyScale(r, "v1", internal, scale)
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.ScaleFrom(r, "v1", changed, false)
	if err != nil || again.Spec.Replicas != 7 {
		t.Errorf("%+v %v", again, err)
	}
	if first, _ := c.ScaleFrom(r, "v1", internal, false); first.Spec.Replicas != 3 {
		t.Error("the parent that was handed over changed")
	}
	scale.Spec.Replicas = -1
	if _, err := c.ApplyScale(r, "v1", internal, scale); !apierrors.IsInvalid(err) {
		t.Errorf("-1 replicas: %v", err)
	}
}

// No bytes, of whatever media type, make a decoder panic, and what it takes it writes again.
func FuzzDecode(f *testing.F) {
	c := newContract(f)
	resources := []*Resource{
		rowOf(f, c, "", "pods"), rowOf(f, c, "apps", "deployments"), rowOf(f, c, "", "services"),
		rowOf(f, c, "apiextensions.k8s.io", "customresourcedefinitions"),
	}
	medias := []string{object.JSON, object.YAML, object.Protobuf, object.CBOR}
	f.Add([]byte(podJSON), uint8(0), uint8(0))
	f.Add([]byte("kind: Pod\nspec: {containers: [{name: a}]}\n"), uint8(0), uint8(1))
	f.Add([]byte("k8s\x00\n\t\n\x02v1\x12\x03Pod\x12\x03\n\x01a"), uint8(0), uint8(2))
	f.Add([]byte("\xd9\xd9\xf7\xa0"), uint8(1), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, which, media uint8) {
		r, m := resources[int(which)%len(resources)], medias[int(media)%len(medias)]
		if stored, err := c.DecodeStorage(r, data); err == nil {
			if _, err := stored.Internal(); err != nil {
				t.Logf("a value that validation would never have let in: %v", err)
			}
		}
		o, _, err := c.DecodeStrict(r, "v1", data, m)
		if err != nil {
			return
		}
		codec := r.Codec("v1")
		codec.Default(o)
		if _, err := codec.Encode(o, object.JSON); err != nil {
			t.Logf("cannot be written: %v", err)
		}
	})
}
