// SPDX-License-Identifier: Apache-2.0

package customresource

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
	"github.com/wasmplane/wasmplane/plugins/point/pointtest"
)

var (
	crons = schema.GroupResource{Group: "example.com", Resource: "crons"}
	v2    = schema.GroupVersion{Group: "example.com", Version: "v2"}
	rules = []abi.Rule{{Groups: []string{"example.com", manifest.APIGroup}, Resources: []string{"crons", "plugins"}}}
)

func plugin(t *testing.T, pt abi.Point, answer string) *Plugin {
	t.Helper()
	guest := pointtest.Answers{"": answer}
	if answer == "fails" {
		guest = nil
	}
	return New(pointtest.Plugin(t, manifest.Entry{Mode: manifest.Enforce}, abi.Hook{Op: 1, Point: pt, Match: rules}, guest),
		pointadmission.Cluster{})
}

func cron() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Cron", "metadata": map[string]any{"name": "a", "namespace": "shop"},
		"spec": map[string]any{"at": "noon"},
	}}
}

func TestConvert(t *testing.T) {
	for name, tc := range map[string]struct{ answer, fails, hour string }{
		"a patch":              {`{"patch":[{"op":"add","path":"/spec/hour","value":"12"}]}`, "", "12"},
		"nothing but the name": {"", "", ""},
		"a whole object":       {`{"object":{"apiVersion":"example.com/v2","kind":"Cron","metadata":{"name":"a","namespace":"shop"},"spec":{"hour":"13"}}}`, "", "13"},
		"no object":            {`{"object":[1]}`, "it answered with something that is no object", ""},
		"a refusal":            {`{"allowed":false,"message":"no such hour"}`, `plugin "p" refused to convert Cron shop/a: no such hour`, ""},
		"a failure":            {"fails", pointtest.ErrGuest.Error(), ""},
		"a patch without fit":  {`{"patch":[{"op":"remove","path":"/none"}]}`, "none", ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := cron()
			got, err := plugin(t, abi.CustomResourceConvert, tc.answer).Convert(t.Context(), []*unstructured.Unstructured{before}, v2)
			if before.GetAPIVersion() != "example.com/v1" {
				t.Errorf("the object itself became one of %s", before.GetAPIVersion())
			}
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Errorf("error %v, want %q", err, tc.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			hour, _, _ := unstructured.NestedString(got[0].Object, "spec", "hour")
			if got[0].GetAPIVersion() != "example.com/v2" || hour != tc.hour {
				t.Errorf("converted: %v", got[0].Object)
			}
		})
	}
}

func TestAnEntryThatOnlyLooksCannotConvert(t *testing.T) {
	hook := abi.Hook{Op: 1, Point: abi.CustomResourceConvert}
	for mode, refused := range map[manifest.Mode]bool{manifest.Enforce: false, "": false, manifest.Shadow: true, manifest.Warn: true} {
		p := pointtest.Plugin(t, manifest.Entry{Mode: mode}, hook, nil)
		if err := Check(p.Current()); (err != nil) != refused {
			t.Errorf("mode %q: %v", mode, err)
		}
	}
}

// Neither the definition nor the plugin brings the other in by itself.
func TestBothSidesHaveToWantIt(t *testing.T) {
	p := plugin(t, abi.CustomResourceConvert, "")
	set := NewSet(func() []*Plugin { return []*Plugin{p} })
	if c := set.Converter("p", crons); c != p {
		t.Errorf("converter %v", c)
	}
	if c := set.Converter("other", crons); c != nil {
		t.Errorf("converter %v of a name that nobody has", c)
	}
	if c := set.Converter("p", schema.GroupResource{Group: manifest.APIGroup, Resource: "plugins"}); c != nil {
		t.Errorf("a plugin converts plugins: %v", c)
	}
	c := set.Converter("p", schema.GroupResource{Group: "example.com", Resource: "others"})
	if c == nil {
		t.Fatal("a plugin that does not want it is as one that is not there")
	}
	if _, err := c.Convert(t.Context(), []*unstructured.Unstructured{cron()}, v2); err == nil {
		t.Error("it converts what it does not match")
	}
}

func TestValidatorsAreThoseThatMatch(t *testing.T) {
	p := plugin(t, abi.CustomResourceValidate, "")
	set := NewSet(func() []*Plugin { return []*Plugin{p} })
	for gr, want := range map[schema.GroupResource]int{
		crons: 1, {Group: "example.com", Resource: "others"}: 0, {Group: manifest.APIGroup, Resource: "plugins"}: 0,
	} {
		if got := set.Validators(gr); len(got) != want {
			t.Errorf("%s: %d validators, want %d", gr, len(got), want)
		}
	}
}

func TestChangedNamesConvertersOnce(t *testing.T) {
	p := plugin(t, abi.CustomResourceConvert, "")
	all := []*Plugin{p}
	set := NewSet(func() []*Plugin { return all })
	if got := set.Changed(); !got["p"] {
		t.Errorf("changed at first: %v", got)
	}
	if got := set.Changed(); len(got) != 0 {
		t.Errorf("changed, and nothing did: %v", got)
	}
	before := p.plugin.Current()
	p.plugin.Swap(point.NewForeign(before.Entry, "sha256:1", before.Manifest, nil, before.Guest))
	if got := set.Changed(); !got["p"] {
		t.Errorf("changed after a swap: %v", got)
	}
	all = nil
	if got := set.Changed(); !got["p"] {
		t.Errorf("changed after it is gone: %v", got)
	}
	if New(pointtest.Plugin(t, manifest.Entry{}, abi.Hook{Op: 1, Point: abi.Authorization}, nil), pointadmission.Cluster{}) != nil {
		t.Error("an adapter without a hook")
	}
}
