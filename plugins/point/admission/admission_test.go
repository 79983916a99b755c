// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	"github.com/wasmplane/wasmplane/plugins/point/pointtest"
)

var everything = []abi.Rule{{Resources: []string{"*/*", "*"}}}

func request() *admission.Request {
	kind := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	return &admission.Request{
		Operation: admission.Create, Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Kind: kind,
		Namespace: "shop", Name: "a", User: &user.DefaultInfo{Name: "jane"},
		Object: object.FromTree(object.Unstructured{GVK: kind}, map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "namespace": "shop"},
		}),
	}
}

func team(t *testing.T, r *admission.Request) any {
	t.Helper()
	tree, err := r.Object.Tree()
	if err != nil {
		t.Fatal(err)
	}
	labels, _ := tree["metadata"].(map[string]any)["labels"].(map[string]any)
	return labels["team"]
}

const (
	denial = `{"allowed":false,"message":"no owner"}`
	label  = `{"patch":[{"op":"add","path":"/metadata/labels","value":{"team":"x"}}]}`
)

// TestWhatModesMakeOfAnAnswer: refused is what the client reads, said what it is warned of,
// and recorded the keys of annotations in the audit log.
func TestWhatModesMakeOfAnAnswer(t *testing.T) {
	const closed = "admission is closed because a plugin failed at admission.mutate, and its failurePolicy is Fail"
	for name, tc := range map[string]struct {
		mode     manifest.Mode
		policy   manifest.FailurePolicy
		answer   string // "fails": the guest does
		refused  string
		warned   string
		recorded []string
		team     any
	}{
		"an empty answer":            {answer: ""},
		"a denial":                   {answer: denial, refused: `configmaps "a" is forbidden: plugin "p" denied the request: no owner`, recorded: []string{"p/decision"}},
		"a denial that warns":        {mode: manifest.Warn, answer: denial, warned: `plugin "p" would refuse this: configmaps "a" is forbidden: plugin "p" denied the request: no owner`},
		"a denial that is recorded":  {mode: manifest.Audit, answer: denial, recorded: []string{"p/would-refuse"}},
		"a denial in the shadow":     {mode: manifest.Shadow, answer: denial},
		"a patch":                    {answer: label, team: "x", recorded: []string{"p/decision"}},
		"a patch that warns":         {mode: manifest.Warn, answer: label},
		"a patch that is recorded":   {mode: manifest.Audit, answer: label, recorded: []string{"p/would-patch"}},
		"a patch in the shadow":      {mode: manifest.Shadow, answer: label},
		"a warning of its own":       {answer: `{"warnings":["old"]}`, warned: "old"},
		"that, in the shadow":        {mode: manifest.Shadow, answer: `{"warnings":["old"]}`},
		"an annotation of its own":   {answer: `{"auditAnnotations":{"k":"v"}}`, recorded: []string{"p/k"}},
		"a failure":                  {answer: "fails", refused: closed},
		"a failure that is ignored":  {policy: manifest.Ignore, answer: "fails", recorded: []string{"p/failed-open"}},
		"a failure in the shadow":    {mode: manifest.Shadow, answer: "fails"},
		"a failure that warns":       {mode: manifest.Warn, answer: "fails", warned: `plugin "p" would refuse this: Internal error occurred: ` + closed},
		"an answer that is none":     {answer: "x", refused: closed},
		"a patch that does not fit":  {answer: `{"patch":[{"op":"remove","path":"/data/none"}]}`, refused: closed},
		"another name":               {answer: `{"patch":[{"op":"replace","path":"/metadata/name","value":"b"}]}`, refused: `it changed metadata.name from "a" to "b"`},
		"another namespace, ignored": {policy: manifest.Ignore, answer: `{"patch":[{"op":"replace","path":"/metadata/namespace","value":"b"}]}`, recorded: []string{"p/failed-open"}},
	} {
		t.Run(name, func(t *testing.T) {
			guest := pointtest.Answers{"": tc.answer}
			if tc.answer == "fails" {
				guest = nil
			}
			if tc.mode == "" {
				tc.mode = manifest.Enforce
			}
			p := pointtest.Plugin(t, manifest.Entry{Mode: tc.mode, FailurePolicy: tc.policy},
				abi.Hook{Op: 1, Point: abi.AdmissionMutate, Match: everything}, guest)
			r := request()
			err := New(p, Cluster{}).(admission.Mutator).Mutate(t.Context(), r)
			if tc.refused == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.refused) {
				t.Errorf("error %v, want %q", err, tc.refused)
			}
			if got := strings.Join(r.Warnings(), "\n"); tc.warned == "" != (got == "") || !strings.Contains(got, tc.warned) {
				t.Errorf("warnings %q, want %q", got, tc.warned)
			}
			if got := slices.Sorted(maps.Keys(r.Annotations())); !slices.Equal(got, tc.recorded) {
				t.Errorf("annotations %v, want %v", r.Annotations(), tc.recorded)
			}
			if got := team(t, r); got != tc.team {
				t.Errorf("label %v, want %v", got, tc.team)
			}
		})
	}
}

func TestARefusalIsAStatus(t *testing.T) {
	p := pointtest.Plugin(t, manifest.Entry{Mode: manifest.Enforce}, abi.Hook{Op: 1, Point: abi.AdmissionValidate, Match: everything},
		pointtest.Answers{
			"": `{"allowed":false,"message":"too long","field":"data.a","code":422,"causes":[{"field":"data.b","message":"too","reason":"FieldValueTooLong"}]}`,
		})
	err := New(p, Cluster{}).(admission.Validator).Validate(t.Context(), request())
	var status *apierrors.StatusError
	if !errors.As(err, &status) || !apierrors.IsInvalid(err) || status.ErrStatus.Code != 422 {
		t.Fatalf("error %#v", err)
	}
	for _, want := range []string{"data.a: too long", "data.b: too"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
	causes := status.ErrStatus.Details.Causes
	if len(causes) != 2 || causes[0].Field != "data.a" || causes[1].Type != "FieldValueTooLong" {
		t.Errorf("causes %+v", causes)
	}
}

// Whoever asks for a dry run is to believe that nothing happened.
func TestADryRunReachesNoPluginWithSideEffects(t *testing.T) {
	r := request()
	r.DryRun = true
	for effects, refused := range map[abi.SideEffects]bool{abi.SomeSideEffects: true, "": false} {
		p := pointtest.Plugin(t, manifest.Entry{Mode: manifest.Enforce},
			abi.Hook{Op: 1, Point: abi.AdmissionValidate, Match: everything, SideEffects: effects}, pointtest.Answers{"": ""})
		err := New(p, Cluster{}).(admission.Validator).Validate(t.Context(), r)
		if apierrors.IsBadRequest(err) != refused || !refused && err != nil {
			t.Errorf("side effects %q: %v", effects, err)
		}
	}
}

// A plugin is asked about what both its module's rules and its entry's match.
func TestOthersAreNotAsked(t *testing.T) {
	for name, tc := range map[string]struct {
		hook  []abi.Rule
		asked bool
	}{
		"all":               {hook: everything, asked: true},
		"this kind":         {hook: []abi.Rule{{Resources: []string{"configmaps"}}}, asked: true},
		"another kind":      {hook: []abi.Rule{{Resources: []string{"secrets"}}}},
		"another group":     {hook: []abi.Rule{{Groups: []string{"apps"}, Resources: []string{"configmaps"}}}},
		"another operation": {hook: []abi.Rule{{Resources: []string{"configmaps"}, Operations: []string{"DELETE"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := pointtest.Plugin(t, manifest.Entry{Mode: manifest.Enforce}, abi.Hook{Op: 1, Point: abi.AdmissionValidate, Match: tc.hook},
				pointtest.Answers{"": denial})
			a := New(p, Cluster{})
			r := request()
			asked := a.Handles(r) && a.(admission.Validator).Validate(t.Context(), r) != nil
			if asked != tc.asked {
				t.Errorf("asked %t, want %t", asked, tc.asked)
			}
		})
	}
}

func TestAGroupIsAskedAsFarAsItMatters(t *testing.T) {
	member := func(answer string) *point.Plugin {
		guest := pointtest.Answers{"": answer}
		if answer == "fails" {
			guest = nil
		}
		return pointtest.Plugin(t, manifest.Entry{Mode: manifest.Enforce}, abi.Hook{Op: 1, Point: abi.AdmissionValidate, Match: everything},
			guest)
	}
	for name, tc := range map[string]struct {
		expression, a, b string
		refused          string
	}{
		"one of two":                     {"a || b()", denial, "", ""},
		"none of two":                    {"a() || b", denial, denial, "wanted (a: no owner; b: no owner)"},
		"both, and one denies":           {"a && b", "", denial, "wanted (b: no owner)"},
		"not that":                       {"!a", "", "", "wanted"},
		"a failure that is of no matter": {"a || b", "", "fails", ""},
		"a failure":                      {"a && b", "", "fails", "member b: "},
	} {
		t.Run(name, func(t *testing.T) {
			g := &manifest.Group{Expression: tc.expression, Message: "wanted", Members: map[string]manifest.Member{"a": {}, "b": {}}}
			verdicts, err := CompileGroup(g)
			if err != nil {
				t.Fatal(err)
			}
			p := member("")
			p.Swap(point.NewGroup(manifest.Entry{Name: "p", Mode: manifest.Enforce, Group: g, Match: manifest.Match{}}))
			err = NewGroup(p, verdicts, map[string]*point.Plugin{"a": member(tc.a), "b": member(tc.b)}, Cluster{}).(admission.Validator).Validate(
				t.Context(), request())
			if tc.refused == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.refused) {
				t.Errorf("error %v, want %q", err, tc.refused)
			}
			stands := NewGroup(p, verdicts, map[string]*point.Plugin{"a": member(tc.a), "b": member(tc.b)}, Cluster{}).(Standing)
			asked, against, failed := stands.Judge(t.Context(), request())
			if got := strings.Join(against, "; "); !asked || failed == nil && got != tc.refused ||
				failed != nil && (tc.refused == "" || !strings.Contains(failed.Error(), tc.refused)) {
				t.Errorf("of what is stored: asked %v, %q, %v, want %q", asked, got, failed, tc.refused)
			}
		})
	}
	for expression, want := range map[string]string{
		"a +":    "Syntax error",
		"c":      "undeclared reference to 'c'",
		"'text'": "a bool was expected",
	} {
		_, err := CompileGroup(&manifest.Group{Expression: expression, Members: map[string]manifest.Member{"a": {}}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", expression, err, want)
		}
	}
}
