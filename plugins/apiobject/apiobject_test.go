// SPDX-License-Identifier: Apache-2.0

package apiobject_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

func plugin(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	var tree map[string]any
	if err := yaml.Unmarshal([]byte(spec), &tree); err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "plugins.wasmplane.dev/v1", "kind": "Plugin", "metadata": map[string]any{"name": name}, "spec": tree,
	}}
}

const digest = "sha256:93a44bbb96c751218e4c00d479e4c14358122a389acca16205b1e4d0dc5f9476"

func TestAnObjectIsAnEntryWithinBounds(t *testing.T) {
	rules := apiobject.Rules{Files: "/srv/modules", Taken: func(name string) bool { return name == "taken" }}
	closed := apiobject.Rules{}
	const pem = `"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n"`
	for _, c := range []struct {
		name, spec string
		rules      apiobject.Rules
		problem    string
	}{
		{"p", "source: oci://a.example/b:1\ndigest: " + digest, closed, ""},
		{"p", "source: file:a/b.wasm", rules, ""},
		{"p", "source: https://a.example/b.wasm\ndigest: " + digest + "\nsignatures: [{keys: [" + pem + "]}]\nsettings: {a: [1, 2.5, x]}\nlimits: {memory: 32Mi, deadline: 50ms}", closed, ""},
		{"p", "source: file:a.wasm\ncandidate: {source: file:b.wasm, settings: {a: 1}}", rules, ""},

		{"taken", "source: file:a.wasm", rules, `metadata.name: a plugin "taken" stands in the configuration file`},
		{"p", "source: file:a.wasm", closed, "spec.source: objects may not name files of the server"},
		{"p", "source: file:/etc/passwd", rules, "spec.source: expected a path below the folder"},
		{"p", "source: file:../../etc/passwd", rules, "spec.source: expected a path below the folder"},
		{"p", "source: file:a.wasm\ncandidate: {source: 'file:/etc/passwd'}", rules, "spec.candidate.source: expected a path below"},
		{"p", "source: oci://a.example/b:1", closed, "spec.digest: a module that is not a local file has to be pinned"},
		{"p", "source: oci://a.example/b:1\ndigest: " + digest + "\nfetch: {caFile: /etc/ca.pem}", closed, "spec.fetch: only entries of the configuration file may name files"},
		{"p", "source: oci://a.example/b:1\ndigest: " + digest + "\nfetch: {dockerConfig: /root/.docker/config.json}", closed, "only entries of the configuration file"},
		{"p", "source: oci://a.example/b:1\ndigest: " + digest + "\nsignatures: [{keys: [/etc/key.pub]}]", closed, "spec.signatures[0].keys: only entries"},
		{"p", "source: https://a.example/b.tar.gz\nbundle: {keys: [{id: k, key: " + pem + "}]}", closed, ""},
		{"p", "source: https://a.example/b.tar.gz\nbundle: {keys: [{id: k, key: /etc/passwd}]}", closed, "spec.bundle.keys[0].key: only entries"},
		{"p", "source: oci://a.example/b:1\ndigest: " + digest + "\ngrants: {http: [{hosts: [a.example], caFile: /etc/ca.pem}]}", closed, "spec.grants.http[0].caFile: only entries"},
		{"p", "source: file:a.wasm\nmode: Loud", rules, "spec.mode: expected Enforce"},
		{"p", "source: file:a.wasm\nunknown: 1", rules, "unknown"},
		{"p", "source: gopher://a", rules, "spec.source: expected file:"},
	} {
		e, err := c.rules.Entry(plugin(t, c.name, c.spec))
		if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: %v, want %q", c.spec, err, c.problem)
		}
		if err == nil && (!e.FromAPI || strings.HasPrefix(e.Source, "file:") && !strings.HasPrefix(e.Source, "file:/srv/modules/") ||
			e.Candidate != nil && e.Candidate.Source != "file:/srv/modules/b.wasm") {
			t.Errorf("%s: %+v", c.spec, e)
		}
	}
}

func TestTheGuardAnswersTheWriter(t *testing.T) {
	guard := apiobject.Guard{}
	request := func(o *unstructured.Unstructured) *admission.Request {
		return &admission.Request{
			Operation: admission.Create, Resource: plugindefinition.Resource(), Kind: o.GroupVersionKind(), Name: o.GetName(),
			User: &user.DefaultInfo{Name: "jane"},
			Object: object.FromTree(object.Unstructured{GVK: schema.GroupVersionKind{Group: plugindefinition.Group, Version: "v1", Kind: "Plugin"}},
				o.Object),
		}
	}
	if r := request(plugin(t, "p", "source: oci://a.example/b:1\ndigest: "+digest)); !guard.Handles(r) || guard.Mutate(t.Context(),
		r) != nil || guard.Validate(t.Context(), r) != nil {
		t.Error("a good one is refused")
	}
	err := guard.Validate(t.Context(), request(plugin(t, "p", "source: oci://a.example/b:1\ndigest: short")))
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(),
		`Plugin.plugins.wasmplane.dev "p" is invalid: spec.digest: expected sha256:`) {
		t.Errorf("%v", err)
	}
	if cause := err.(apierrors.APIStatus).Status().Details.Causes[0]; cause.Field != "spec.digest" { // it is one
		t.Errorf("%+v", cause)
	}
	deleted := request(plugin(t, "p", "source: x"))
	deleted.Operation, deleted.OldObject, deleted.Object = admission.Delete, deleted.Object, nil
	if err := guard.Validate(t.Context(), deleted); err != nil {
		t.Errorf("deletions are held up: %v", err)
	}
}

func TestWhatShowsTheFileIsNotChangedThroughTheAPI(t *testing.T) {
	guard := apiobject.Guard{}
	shown, own := plugin(t, "p", "{}"), plugin(t, "p", "source: oci://a.example/b:1\ndigest: "+digest)
	shown.SetLabels(map[string]string{apiobject.OriginLabel: apiobject.FromFile})
	carry := func(o *unstructured.Unstructured) *object.Object {
		if o == nil {
			return nil
		}
		return object.FromTree(object.Unstructured{GVK: o.GroupVersionKind()}, o.Object)
	}
	const set, changed = "is set by the server only", "shows a plugin of the server's configuration file, which is not changed through the API"
	for _, c := range []struct {
		name     string
		op       admission.Operation
		now, old *unstructured.Unstructured
		problem  string
	}{
		{"made", admission.Create, shown, nil, set},
		{"changed", admission.Update, shown, shown, changed},
		{"taken over", admission.Update, own, shown, changed},
		{"deleted", admission.Delete, nil, shown, changed},
		{"an own one marked so", admission.Update, shown, own, set},
		{"an own one deleted", admission.Delete, nil, own, ""},
	} {
		for _, who := range []string{"jane", user.APIServerUser} {
			r := &admission.Request{
				Operation: c.op, Resource: plugindefinition.Resource(), Kind: shown.GroupVersionKind(), Name: "p",
				User:   &user.DefaultInfo{Name: who, Groups: []string{user.SystemPrivilegedGroup}},
				Object: carry(c.now), OldObject: carry(c.old),
			}
			err := errors.Join(guard.Mutate(t.Context(), r), guard.Validate(t.Context(), r))
			if who != "jane" {
				if err != nil {
					t.Errorf("%s by the server: %v", c.name, err)
				}
				continue
			}
			if !guard.Handles(r) || (c.problem == "") != (err == nil) ||
				err != nil && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.problem)) {
				t.Errorf("%s: %v, want %q", c.name, err, c.problem)
			}
		}
	}
}

func TestTheDefinitionHasEveryFieldOfAnEntry(t *testing.T) {
	version := plugindefinition.Definition().Spec.Versions[0]
	spec := version.Schema.OpenAPIV3Schema.Properties["spec"]
	entry := reflect.TypeFor[manifest.Entry]()
	for i := range entry.NumField() {
		name := entry.Field(i).Tag.Get("yaml")
		if name == "-" || name == "name" {
			continue
		}
		if field, ok := spec.Properties[name]; !ok || field.Description == "" {
			t.Errorf("spec.%s is missing in the definition, or has no description", name)
		}
	}
	if n := len(spec.Properties["points"].Items.Schema.Enum); n < 10 {
		t.Errorf("%d points", n)
	}
}

func TestAPluginOfANamespaceStaysWithinIt(t *testing.T) {
	const good = "source: oci://a.example/b:1\ndigest: " + digest + "\npoints: [admission.validate]\n"
	for spec, problem := range map[string]string{
		good: "",
		good + "grants: {read: [{resources: [pods]}], state: {size: 1Ki}, log: true}":                        "",
		good + "grants: {read: [{resources: [pods], namespaces: [team]}]}":                                   "",
		good + "grants: {read: [{resources: [pods]}, {resources: [configmaps], namespaces: [team, other]}]}": "spec.grants.read[1].namespaces: a plugin of a namespace reads its own only, team, not other",
		good + "fetch: {secret: team/registry}":                                                              "",
		good + "fetch: {secret: kube-system/registry}":                                                       "expected a Secret of namespace team",
		good + "fetch: {plainHTTP: true}":                                                                    "fetched over TLS",
		good + "grants: {http: [{hosts: [a.example]}]}":                                                      "has no network",
		good + "grants: {images: {registries: ['*']}}":                                                       "has no network",
		good + "limits: {fuel: 500000000}":                                                                   "spec.limits.fuel: a plugin of a namespace has at most",
		good + "limits: {fuel: 500000, deadline: 10ms}":                                                      "",
		strings.Replace(good, "admission.validate",
			"authorization", 1): "takes part in admission only, not in authorization",
		strings.Replace(good, "points: [admission.validate]", "", 1): "spec.points: name the points",
		"source: file:a.wasm\npoints: [admission.validate]":          "objects may not name files of the server",
		"points: [admission.validate]\ngroup: {expression: a, members: {a: {source: 'oci://a.example/b:1', digest: '" + digest + "', grants: {dns: ['*']}}}}": "has no network",
		// What reaches beyond the namespace is refused wherever it stands.
		"points: [admission.validate]\ngroup: {expression: a, members: {a: {source: 'oci://a.example/b:1', digest: '" + digest + "', fetch: {secret: kube-system/registry}}}}": "spec.group.members.a.fetch.secret: expected a Secret of namespace team",
		"points: [admission.validate]\ngroup: {expression: a, members: {a: {source: 'oci://a.example/b:1', digest: '" + digest + "', fetch: {secret: team/registry}}}}":        "",
		"points: [admission.validate]\ngroup: {expression: a, members: {a: {source: 'oci://a.example/b:1', digest: '" + digest + "', fetch: {plainHTTP: true}}}}":              "spec.group.members.a.fetch: a plugin of a namespace is fetched over TLS",
		"points: [admission.validate]\ngroup: {expression: a, members: {a: {source: 'oci://a.example/b:1', digest: '" + digest + "', limits: {fuel: 500000000}}}}":             "spec.group.members.a.limits.fuel: a plugin of a namespace has at most",
		"points: [admission.validate]\ngroup: {expression: a, members: {a: {source: 'oci://a.example/b:1', digest: '" + digest + "', limits: {input: 1Gi}}}}":                  "spec.group.members.a.limits.input: a plugin of a namespace has at most",
		good + "candidate: {source: 'https://a.example/b', digest: '" + digest +
			"', fetch: {secret: kube-system/registry}}": "spec.candidate.fetch.secret: expected a Secret of namespace team",
		good + "candidate: {source: 'oci://a.example/b:2', digest: '" + digest +
			"', fetch: {plainHTTP: true}}": "spec.candidate.fetch: a plugin of a namespace is fetched over TLS",
	} {
		o := plugin(t, "p", spec)
		o.SetNamespace("team")
		e, err := apiobject.Rules{Files: "/srv/modules"}.Entry(o)
		if (err == nil) != (problem == "") || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v, want %q", spec, err, problem)
		}
		if err == nil && (e.Namespace != "team" || e.Name != "team:p" || !e.FromAPI) {
			t.Errorf("%+v", e)
		}
	}
}
