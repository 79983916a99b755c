// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

func TestAGroupHasOneVerdict(t *testing.T) {
	dir := t.TempDir()
	replaceFile(t, filepath.Join(dir, "canned.wasm"), plugintest.Canned(t))
	replaceFile(t, filepath.Join(dir, "trap.wasm"), tiny(t, "x", "unreachable"))
	member := func(allowed, message string) string {
		return "{source: 'file:canned.wasm', settings: {allowed: " + allowed + ", message: '" + message + "'}}"
	}
	yes, no, other := member("true", ""), member("false", "not signed"), member("false", "not from us")
	trap := "{source: 'file:trap.wasm'}"
	for _, c := range []struct{ name, expression, a, b, more, refusal string }{
		{"one of two", "a || b", no, yes, "", ""},
		{"none of two", "a || b", no, other, "message: 'signed, or from us'", `plugin "g" denied the request: signed, or from us (a: not signed; b: not from us)`},
		{"as a function", "a() || b()", no, yes, "", ""},
		{"both", "a && b", yes, no, "", "b: not signed"},
		{"not", "a && !b", yes, no, "", ""},
		{"not asked what does not matter", "a || b", yes, trap, "", ""},
		{"a failure that matters", "a && b", yes, trap, "", "admission is closed because a plugin failed at admission.validate"},
		{"a failure that is outvoted", "b || a", yes, trap, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := "plugins:\n  - name: g\n    group:\n      expression: " + c.expression + "\n      members: {a: " + c.a + ", b: " + c.b + "}\n"
			if c.more != "" {
				text += "      " + c.more + "\n"
			}
			l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Entries: entries(t, text)})
			if err := l.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := names(l); len(got) != 1 || got[0] != "g" {
				t.Fatalf("taking part: %v", got)
			}
			err := validate(t, l.AdmissionPlugins()[0])
			if (err == nil) != (c.refusal == "") || err != nil && !strings.Contains(err.Error(), c.refusal) {
				t.Errorf("%v, want %q", err, c.refusal)
			}
			for _, s := range l.Status() {
				if !s.Ready || s.Name == "g" && s.Calls != 1 {
					t.Errorf("%+v", s)
				}
			}
		})
	}
	// A new version with a mistake leaves the one before it; members reload by themselves.
	good := "plugins:\n  - name: g\n    group: {expression: a, members: {a: " + no + "}}\n"
	l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Entries: entries(t, good)})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	bad := "plugins:\n  - name: g\n    group: {expression: a + 1, members: {a: " + no + "}}\n"
	if err := l.Apply(t.Context(), loader.File, entries(t, bad)); err == nil || !strings.Contains(err.Error(), "group.expression") {
		t.Errorf("error %v", err)
	}
	if err := validate(t, l.AdmissionPlugins()[0]); err == nil || !strings.Contains(err.Error(), "not signed") {
		t.Errorf("the group before does not answer: %v", err)
	}
	if err := l.Apply(t.Context(), loader.File, entries(t, strings.Replace(good, no, yes, 1))); err != nil {
		t.Error(err)
	}
	if err := validate(t, l.AdmissionPlugins()[0]); err != nil {
		t.Errorf("the member's new settings are not in force: %v", err)
	}
	if err := l.Apply(t.Context(), loader.File, nil); err != nil || len(l.Status()) != 0 {
		t.Errorf("%v, %+v", err, l.Status())
	}
}

func TestExceptionsAreLeftAloneAndRecorded(t *testing.T) {
	dir := t.TempDir()
	replaceFile(t, filepath.Join(dir, "tiny.wasm"), tiny(t, "no", ""))
	l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Entries: entries(t, `
plugins:
  - name: tiny
    source: "file:tiny.wasm"
    match:
      exceptions:
        - {users: [jane], namespaces: [default], reason: ticket 7}
        - {groups: [admins]}
        - {names: [exempt]}
`)})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := l.AdmissionPlugins()[0].(admission.Validator)
	for _, c := range []struct {
		who       user.DefaultInfo
		name, why string
	}{
		{user.DefaultInfo{Name: "bob"}, "web", ""},
		{user.DefaultInfo{Name: "jane"}, "web", "ticket 7"},
		{user.DefaultInfo{Name: "bob", Groups: []string{"x", "admins"}}, "web", "match.exceptions[1]"},
		{user.DefaultInfo{Name: "bob"}, "exempt", "match.exceptions[2]"},
	} {
		p := pod("a:1", nil)
		p.Name = c.name
		r := admissiontest.Creating("pods", p)
		r.User, r.Name = &c.who, c.name
		if err := v.Validate(t.Context(), r); (err == nil) != (c.why != "") || r.Annotations()["tiny/exception"] != c.why {
			t.Errorf("%s: %v, %v, want %q", c.who.Name, err, r.Annotations(), c.why)
		}
	}
}

func TestAPluginOfANamespaceSeesThatNamespaceOnly(t *testing.T) {
	dir := t.TempDir()
	replaceFile(t, filepath.Join(dir, "tiny.wasm"), tiny(t, "no", ""))
	mine := entries(t, "plugins: [{name: mine, source: 'file:tiny.wasm', points: [admission.validate]}]")
	mine[0].Namespace, mine[0].FromAPI = "default", true
	l := newLoader(t, loader.Config{InProcess: true, Dir: dir})
	if err := l.Apply(t.Context(), loader.Tenant, mine); err != nil {
		t.Fatal(err)
	}
	v := l.AdmissionPlugins()[0].(admission.Validator)
	for _, c := range []struct {
		namespace, who string
		groups         []string
		refused        bool
	}{
		{"default", "jane", nil, true},
		{"other", "jane", nil, false},
		{"default", "system:kube-scheduler", nil, false},
		{"default", "system:node:n1", []string{"system:nodes"}, false},
		{"default", "system:serviceaccount:kube-system:replicaset-controller", []string{"system:serviceaccounts:kube-system"}, false},
		{"default", "system:serviceaccount:default:builder", []string{"system:serviceaccounts:default"}, true},
	} {
		p := pod("a:1", nil)
		p.Namespace = c.namespace
		r := admissiontest.Creating("pods", p)
		r.Namespace, r.User = c.namespace, &user.DefaultInfo{Name: c.who, Groups: c.groups}
		if err := v.Validate(t.Context(), r); (err != nil) != c.refused {
			t.Errorf("%s in %s: %v", c.who, c.namespace, err)
		}
	}
}
