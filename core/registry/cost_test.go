// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/registry"
)

// many is a JSON list of n entries, each made of format and its number.
func many(n int, format string) string {
	entries := make([]string, n)
	for i := range entries {
		entries[i] = fmt.Sprintf(format, i)
	}
	return "[" + strings.Join(entries, ",") + "]"
}

// What would cost more than a request may is refused with the bound, before the
// cost arises; what people really send is not.
func TestWorkThatGrowsWithTheSquareIsRefused(t *testing.T) {
	w := newWorld(t)
	pods, maps := w.registry(t, "", "pods"), w.registry(t, "", "configmaps")
	env := func(n int, letter string) string {
		return `{"name":"c","image":"x","env":` + many(n, `{"name":"`+letter+`%d","value":"v"}`) + `}`
	}
	create(t, pods, "a", `{"metadata":{"name":"large"},"spec":{"containers":[`+env(6000, "E")+`]}}`)
	create(t, pods, "a", `{"metadata":{"name":"p"},"spec":{"containers":[`+env(1000, "E")+`]}}`)
	create(t, maps, "a", `{"metadata":{"name":"m"}}`)
	status := func(r *registry.Request) *registry.Request { r.Subresource = "status"; return r }
	for _, c := range []struct {
		what  string
		patch *registry.Request
		want  string // of the refusal; "": none of ours
	}{
		{"many entries among many", patch("a", "large", types.StrategicMergePatchType, `{"spec":{"containers":[`+env(6000, "X")+`]}}`), ""},
		{
			"the same key again and again",
			patch("a", "large", types.StrategicMergePatchType, `{"spec":{"containers":`+many(1000, `{"name":"c","env":[{"name":"X%d"}]}`)+`}}`),
			"entries with the same key",
		},
		{"one entry among many", patch("a", "large", types.StrategicMergePatchType, `{"spec":{"containers":[`+env(1, "X")+`]}}`), ""},
		{"a thousand among a thousand", patch("a", "p", types.StrategicMergePatchType, `{"spec":{"containers":[`+env(1000, "X")+`]}}`), ""},
		{"conditions", status(patch("a", "p", types.StrategicMergePatchType, `{"status":{"conditions":`+many(50, `{"type":"T%d","status":"True"}`)+`}}`)), ""},
		{"entries that move all others", patch("a", "large", types.JSONPatchType, many(9000, `{"op":"add","path":"/spec/containers/0/env/0","value":{"name":"X%d"}}`)), "is bounded by 50000000"},
		{
			"entries that move those that came with them",
			patch("a", "p", types.JSONPatchType, strings.TrimSuffix(many(9000, `{"op":"add","path":"/spec/containers/0/args/0","value":"%d"}`), "]")+
				`,{"op":"add","path":"/spec/containers/0/args","value":`+many(6000, `"%d"`)+`}]`), "is bounded by 50000000",
		},
		{"many operations on little", patch("a", "p", types.JSONPatchType, many(9000, `{"op":"add","path":"/metadata/labels","value":{"x":"y%d"}}`)), ""},
	} {
		_, err := pods.Patch(t.Context(), c.patch)
		switch {
		case c.want != "" && (!apierrors.IsRequestEntityTooLargeError(err) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want a refusal that says %q", c.what, err, c.want)
		case c.want == "" && apierrors.IsRequestEntityTooLargeError(err):
			t.Errorf("%s: %v", c.what, err)
		}
	}
	for field, list := range map[string]string{
		"ownerReferences": many(1001, `{"apiVersion":"v1","kind":"Pod","name":"a","uid":"u%d"}`),
		"finalizers":      many(1001, `"example.com/f%d"`),
	} {
		_, err := maps.Create(t.Context(), request("a", "", `{"metadata":{"name":"new","`+field+`":`+list+`}}`, &metav1.CreateOptions{}))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "must have at most 1000 items") {
			t.Errorf("%s: %.200v", field, err)
		}
		_, err = maps.Patch(t.Context(), patch("a", "m", types.MergePatchType, `{"metadata":{"`+field+`":`+list+`}}`))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "must have at most 1000 items") {
			t.Errorf("%s by a patch: %.200v", field, err)
		}
		_, err = maps.Patch(t.Context(), patch("a", "applied", types.ApplyYAMLPatchType,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied","`+field+`":`+list+`}}`))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "must have at most 1000 items") {
			t.Errorf("%s by an apply: %.200v", field, err)
		}
	}
}

// What upstream's validation would take minutes for is refused before it, by the resources' own bounds.
func TestValidationIsBoundedBeforehand(t *testing.T) {
	w := newWorld(t)
	volume := func(n int) string {
		return `"volumes":[{"name":"v","configMap":{"name":"c","items":` + many(n, `{"key":"k","path":"p%d"}`) + `}}]`
	}
	compared := strings.Repeat("1 == 1 && ", 9000) + "true"
	for _, c := range []struct {
		group, resource, namespace, body, want string
	}{
		{"", "pods", "a", `{"metadata":{"name":"new"},"spec":{` + volume(20_000) + `,"containers":[{"name":"c","image":"x"}]}}`, "too many paths"},
		{
			"apps", "deployments", "a", `{"metadata":{"name":"new"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{` +
				volume(20_000) + `,"containers":[{"name":"c","image":"x"}]}}}}`, "too many paths",
		},
		{
			"admissionregistration.k8s.io", "validatingadmissionpolicies", "",
			`{"metadata":{"name":"new"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["x"]}]},` +
				`"validations":[{"expression":"` + compared + `"}]}}`, "too long to be compiled",
		},
		{
			"resource.k8s.io", "resourceclaims", "a", `{"metadata":{"name":"new"},"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"c","selectors":` +
				many(2001, `{"cel":{"expression":"device.driver == 'd%d'"}}`) + `}}]}}}`, "has 2001 CEL expressions",
		},
		{
			"apiextensions.k8s.io", "customresourcedefinitions", "", `{"metadata":{"name":"as.example.com"},"spec":{"group":"example.com","scope":"Cluster",` +
				`"names":{"plural":"as","kind":"A"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object",` +
				`"x-kubernetes-validations":` + many(1001, `{"rule":"%d == 1"}`) + `}}}]}}`, "has 1001 rules",
		},
	} {
		r := w.registry(t, c.group, c.resource)
		_, err := r.Create(t.Context(), request(c.namespace, "", c.body, &metav1.CreateOptions{}))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %.300v, want a refusal that says %q", c.resource, err, c.want)
		}
	}
	pods := w.registry(t, "", "pods")
	_, err := pods.Create(t.Context(), request("a", "", `{"metadata":{"name":"wrong"},"spec":{"containers":[{"name":"c","image":"x","env":`+
		many(10_000, `{"name":"=%d"}`)+`}]}}`, &metav1.CreateOptions{}))
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "and 9000 more errors") {
		t.Errorf("10,000 wrong names: %.300v", err)
	}
}

// An object that has more than the bound from before may be changed and deleted; it
// does not get more.
func TestAnObjectAboveTheBoundsMayKeepWhatItHas(t *testing.T) {
	w := newWorld(t)
	maps := w.registry(t, "", "configmaps")
	_, err := w.store.Store.Put(t.Context(), "/registry/configmaps/a/old", []byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"old","namespace":"a","uid":"u","finalizers":`+
		many(1002, `"example.com/f%d"`)+`,"ownerReferences":`+many(1002, `{"apiVersion":"v1","kind":"Pod","name":"a","uid":"u%d"}`)+`}}`), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.cache.Fresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	merge := types.MergePatchType
	for what, body := range map[string]string{
		"finalizers": `{"metadata":{"finalizers":` + many(1003, `"example.com/f%d"`) + `}}`,
		"owners":     `{"metadata":{"ownerReferences":` + many(1003, `{"apiVersion":"v1","kind":"Pod","name":"a","uid":"u%d"}`) + `}}`,
	} {
		if _, err := maps.Patch(t.Context(), patch("a", "old", merge, body)); !apierrors.IsInvalid(err) {
			t.Errorf("more %s: %.200v", what, err)
		}
	}
	_, err = maps.Patch(t.Context(), patch("a", "old", types.ApplyYAMLPatchType, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"old"},"data":{"c":"d"}}`))
	if err != nil {
		t.Errorf("an apply of something else: %.200v", err)
	}
	for _, body := range []string{`{"data":{"a":"b"}}`, `{"metadata":{"finalizers":` + many(1001, `"example.com/f%d"`) + `}}`} {
		if _, err := maps.Patch(t.Context(), patch("a", "old", merge, body)); err != nil {
			t.Errorf("%.40s: %.200v", body, err)
		}
	}
	if _, err := maps.Delete(t.Context(), request("a", "old", "", &metav1.DeleteOptions{})); err != nil {
		t.Errorf("its deletion: %.200v", err)
	}
	if _, err := maps.Patch(t.Context(), patch("a", "old", merge, `{"metadata":{"finalizers":null}}`)); err != nil {
		t.Errorf("the end of its finalizers: %.200v", err)
	}
}
