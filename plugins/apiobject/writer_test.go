// SPDX-License-Identifier: Apache-2.0

package apiobject_test

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// may is what users may do: "verb resource namespace".
type may map[string][]string

func (m may) Review(_ context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
	a := spec.ResourceAttributes
	return authorizationv1.SubjectAccessReviewStatus{Allowed: slices.Contains(m[spec.User], a.Verb+" "+a.Resource+" "+a.Namespace)}, nil
}

func write(t *testing.T, g apiobject.Guard, who string, o, old *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	t.Helper()
	return writeAs(t, g, who, plugindefinition.Resource(), o, old)
}

func writeAs(t *testing.T, g apiobject.Guard, who string, resource schema.GroupVersionResource,
	o, old *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	t.Helper()
	carry := func(o *unstructured.Unstructured) *object.Object {
		if o == nil {
			return nil
		}
		return object.FromTree(object.Unstructured{GVK: o.GroupVersionKind()}, o.DeepCopy().Object)
	}
	r := &admission.Request{
		Operation: admission.Create, Resource: resource, Kind: o.GroupVersionKind(), Name: o.GetName(), Namespace: o.GetNamespace(),
		User: &user.DefaultInfo{Name: who, UID: "u-" + who, Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}}, Object: carry(o),
		OldObject: carry(old),
	}
	if old != nil {
		r.Operation = admission.Update
	}
	if err := g.Mutate(t.Context(), r); err != nil {
		return nil, err
	}
	tree, err := r.Object.Tree()
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: tree}, g.Validate(t.Context(), r)
}

// TestTheServerRecordsTheWriter, whom nobody can make up, and who stays the writer while
// others change labels only.
func TestTheServerRecordsTheWriter(t *testing.T) {
	guard := apiobject.Guard{Rights: rights.New(may{})}
	source := "source: oci://a.example/b:1\ndigest: " + digest
	forged := plugin(t, "p", source)
	forged.SetAnnotations(map[string]string{apiobject.WriterAnnotation: `{"username":"root","groups":["system:masters"]}`})
	made, err := write(t, guard, "tina", forged, nil)
	if err != nil {
		t.Fatal(err)
	}
	writer := func(o *unstructured.Unstructured) string {
		e, err := apiobject.Rules{}.Entry(o)
		if err != nil || e.Writer == nil {
			t.Fatalf("%v: no writer in %v", err, o.GetAnnotations())
		}
		if e.Writer.Name == "tina" && (e.Writer.UID != "u-tina" || !slices.Equal(e.Writer.Groups, []string{"g"}) || len(e.Writer.Extra) != 1) {
			t.Errorf("recorded %+v", e.Writer)
		}
		return e.Writer.Name
	}
	if got := writer(made); got != "tina" {
		t.Errorf("recorded %s", got)
	}
	labelled := made.DeepCopy()
	labelled.SetLabels(map[string]string{"a": "b"})
	labelled.SetAnnotations(map[string]string{apiobject.WriterAnnotation: `{"username":"root"}`})
	if now, err := write(t, guard, "ann", labelled, made); err != nil || writer(now) != "tina" {
		t.Errorf("after labels: %v", err)
	}
	changed := made.DeepCopy()
	changed.Object["spec"] = plugin(t, "p", source+"\norder: 5").Object["spec"]
	if now, err := write(t, guard, "ann", changed, made); err != nil || writer(now) != "ann" {
		t.Errorf("after another spec: %v", err)
	}
	// A webhook that comes later in the chain cannot forge it either.
	r := &admission.Request{
		Operation: admission.Create, Resource: plugindefinition.Resource(), Kind: forged.GroupVersionKind(), Name: "p",
		User:   &user.DefaultInfo{Name: "tina"},
		Object: object.FromTree(object.Unstructured{GVK: forged.GroupVersionKind()}, forged.Object),
	}
	if err := guard.Validate(t.Context(), r); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "is set by the server only") {
		t.Errorf("forged behind the guard: %v", err)
	}
}

// TestGrantsAreWithinTheWritersRights is how somebody who may not list secrets read them.
func TestGrantsAreWithinTheWritersRights(t *testing.T) {
	source := "source: oci://a.example/b:1\ndigest: " + digest
	for _, c := range []struct {
		name, spec, namespace string
		rights                []string
		problem               string
	}{
		{"nothing asked", "", "", nil, ""},
		{"secrets", "\ngrants: {read: [{resources: [secrets]}]}", "", []string{"get secrets "}, `spec.grants.read[0]: plugin "p" may do no more than its writer, and "tina" may not list secrets in all namespaces`},
		{"secrets that he may list", "\ngrants: {read: [{resources: [secrets]}]}", "", []string{"get secrets ", "list secrets "}, ""},
		{"one secret by name", "\ngrants: {read: [{resources: [secrets], namespaces: [red], names: [a]}]}", "", []string{"get secrets red"}, ""},
		{"everything", "\ngrants: {read: [{resources: ['*']}]}", "", []string{"get secrets ", "list secrets "}, `may not get * in all namespaces`},
		{"everything, by who may give it", "\ngrants: {read: [{resources: ['*']}]}", "", []string{"grant plugins "}, ""},
		{"the network", "\ngrants: {http: [{hosts: [a.example]}]}", "", nil, "spec.grants.http: "},
		{"names", "\ngrants: {dns: [a.example]}", "", nil, "spec.grants.dns: "},
		{"capabilities", "\ngrants: {capabilities: ['oci/*']}", "", nil, "spec.grants.capabilities: "},
		{"reviews", "\ngrants: {accessReview: true}", "", nil, "may not create subjectaccessreviews.authorization.k8s.io"},
		{"events", "\ngrants: {events: true}", "", nil, "may not create events"},
		{"another's credentials", "\nfetch: {secret: kube-system/registry}", "", nil, `spec.fetch.secret: plugin "p" may do no more than its writer, and "tina" may not get secrets "registry" in namespace kube-system`},
		{"a candidate's", "\ncandidate: {settings: {a: 1}, fetch: {secret: kube-system/registry}}", "", nil, `spec.candidate.fetch.secret`},
		{"deciding who may", "\npoints: [authorization]", "", nil, "may not decide who may do what"},
		{"writing as somebody", "\npoints: [reconcile]\nreconcile: {serviceAccount: kube-system/admin}", "", nil, `may not impersonate serviceaccounts "admin" in namespace kube-system`},
		{"a tenant's secrets", "\npoints: [admission.validate]\ngrants: {read: [{resources: [secrets]}]}", "red", []string{"get secrets red"}, `may not list secrets in namespace red`},
		{"a tenant's, given", "\npoints: [admission.validate]\ngrants: {read: [{resources: [secrets]}]}", "red", []string{"grant tenantplugins red"}, ""},
		{"a tenant's, given elsewhere", "\npoints: [admission.validate]\ngrants: {read: [{resources: [secrets]}]}", "red", []string{"grant tenantplugins blue", "list secrets blue", "get secrets blue"}, `may not get secrets in namespace red`},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := plugin(t, "p", source+c.spec)
			o.SetNamespace(c.namespace)
			guard := apiobject.Guard{Rights: rights.New(may{"tina": c.rights})}
			made, err := write(t, guard, "tina", o, nil)
			if (err == nil) != (c.problem == "") || err != nil && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.problem)) {
				t.Errorf("%v, want %q", err, c.problem)
			}
			if c.problem == "" {
				return
			}
			// Who has lost the right may still label it, such as for taking it away, and not change it.
			if _, err := write(t, guard, "tina", labelled(made), made); err != nil {
				t.Errorf("a label: %v", err)
			}
			other := made.DeepCopy()
			_ = unstructured.SetNestedField(other.Object, int64(3), "spec", "order")
			if _, err := write(t, guard, "tina", other, made); !apierrors.IsForbidden(err) {
				t.Errorf("another spec: %v", err)
			}
		})
	}
}

func labelled(o *unstructured.Unstructured) *unstructured.Unstructured {
	o = o.DeepCopy()
	o.SetLabels(map[string]string{"a": "b"})
	return o
}

// TestTheStatusSaysWhatIsGranted: in words, on behalf of whom, and what was refused.
func TestTheStatusSaysWhatIsGranted(t *testing.T) {
	const grants = `
points: [admission.validate]
fetch: {secret: red/registry}
grants:
  clock: true
  state: {size: 1Ki}
  accessReview: true
  events: true
  dns: ["*.example.com"]
  http: [{hosts: [a.example, b.example], methods: [POST], paths: [/v1]}]
  read:
  - {resources: [pods, secrets], namespaces: [red], fields: [metadata.labels]}
  - {apiGroups: [apps], resources: [deployments], names: [web]}
`
	for _, c := range []struct {
		name   string
		writer string
		rights may
		want   rights.Standing
	}{
		{
			"some rights", "tina",
			may{"tina": {"get pods red", "list pods red", "get secrets red", "create events ", "get deployments "}},
			rights.Standing{
				Writer: "tina",
				Read:   []string{"deployments of apps named web in all namespaces", "Secret red/registry, to be fetched with"},
				Call:   []string{"the time", "a store of its own of 1024 bytes"},
				Send:   []string{"events"},
				Refused: []string{
					`pods, secrets in red, fields metadata.labels: spec.grants.read[0]: "tina" may not list secrets in namespace red`,
					`access reviews: spec.grants.accessReview: "tina" may not create subjectaccessreviews.authorization.k8s.io in all namespaces`,
					`POST to https://a.example, b.example, paths /v1: spec.grants.http: "tina" may not send from the control plane's machines`,
					`look-ups of *.example.com: spec.grants.dns: "tina" may not send from the control plane's machines`,
				},
			},
		},
		{"all rights", "ann", may{"ann": {"grant plugins "}}, rights.Standing{
			Writer: "ann",
			Read: []string{
				"pods, secrets in red, fields metadata.labels", "deployments of apps named web in all namespaces",
				"Secret red/registry, to be fetched with",
			},
			Call: []string{"access reviews", "the time", "a store of its own of 1024 bytes"},
			Send: []string{"events", "POST to https://a.example, b.example, paths /v1", "look-ups of *.example.com"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := plugin(t, "p", "source: oci://a.example/b:1\ndigest: "+digest+grants)
			o.SetAnnotations(map[string]string{apiobject.WriterAnnotation: `{"username":"` + c.writer + `"}`})
			e, err := apiobject.Rules{}.Entry(o)
			if err != nil {
				t.Fatal(err)
			}
			if got := rights.New(c.rights).Standing(t.Context(), &e, e.Points); !reflect.DeepEqual(*got, c.want) {
				t.Errorf("got  %q\nwant %q", *got, c.want)
			}
		})
	}
	unknown := &manifest.Entry{Name: "p", FromAPI: true, Grants: manifest.Grants{Events: true}}
	if got := rights.New(may{}).Standing(t.Context(), unknown, nil); len(got.Refused) != 1 || !strings.Contains(got.Refused[0],
		"who wrote plugin") {
		t.Errorf("nobody's: %+v", got)
	}
	if got := rights.New(nil).Standing(t.Context(), &manifest.Entry{Grants: manifest.Grants{Events: true}}, nil); len(got.Send) != 1 ||
		len(got.Refused) > 0 {
		t.Errorf("the file's: %+v", got)
	}
}
