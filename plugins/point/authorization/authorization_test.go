// SPDX-License-Identifier: Apache-2.0

package authorization

import (
	"errors"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point/pointtest"
)

var question = authorizer.AttributesRecord{
	User: &user.DefaultInfo{Name: "jane", Groups: []string{"staff"}}, Verb: "get", Resource: "pods", APIVersion: "v1", ResourceRequest: true,
}

func TestAuthorize(t *testing.T) {
	allow := pointtest.Answers{"": `{"decision":"allow"}`}
	deny := pointtest.Answers{"": `{"decision":"deny","reason":"it is night"}`}
	for name, tc := range map[string]struct {
		mode   manifest.Mode
		policy manifest.FailurePolicy
		guest  pointtest.Answers
		want   authz.Decision
		reason string
		fails  bool
	}{
		"no answer":                  {guest: pointtest.Answers{"": ""}, want: authz.NoOpinion},
		"no opinion":                 {guest: pointtest.Answers{"": `{"decision":"noOpinion","reason":"who knows"}`}, want: authz.NoOpinion, reason: "who knows"},
		"it allows":                  {guest: allow, want: authz.Allow, reason: `plugin "p"`},
		"it denies":                  {guest: deny, want: authz.Deny, reason: `plugin "p": it is night`},
		"it would allow":             {mode: manifest.Audit, guest: allow, want: authz.NoOpinion},
		"it would deny":              {mode: manifest.Shadow, guest: deny, want: authz.NoOpinion},
		"a failure denies":           {want: authz.Deny, reason: `authorization is closed because plugin "p" failed, and its failurePolicy is Fail`, fails: true},
		"a failure that is ignored":  {policy: manifest.Ignore, want: authz.NoOpinion, fails: true},
		"a failure in the shadow":    {mode: manifest.Shadow, want: authz.NoOpinion},
		"a decision that is unknown": {guest: pointtest.Answers{"": `{"decision":"maybe"}`}, want: authz.Deny, reason: `authorization is closed because plugin "p" failed, and its failurePolicy is Fail`, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.mode == "" {
				tc.mode = manifest.Enforce
			}
			a := New(pointtest.Plugin(t, manifest.Entry{Mode: tc.mode, FailurePolicy: tc.policy}, abi.Hook{Op: 1, Point: abi.Authorization},
				tc.guest))
			d, reason, err := a.Authorize(t.Context(), question)
			if d != tc.want || reason != tc.reason || (err != nil) != tc.fails {
				t.Errorf("decision %v, reason %q, error %v", d, reason, err)
			}
			if tc.fails && tc.guest == nil && !errors.Is(err, pointtest.ErrGuest) {
				t.Errorf("the error %v hides its cause", err)
			}
		})
	}
}

// What keeps the cluster alive is nothing that a plugin could take away.
func TestTheGuardStandsBefore(t *testing.T) {
	a := New(pointtest.Plugin(t, manifest.Entry{Mode: manifest.Enforce}, abi.Hook{Op: 1, Point: abi.Authorization}, nil))
	q := question
	q.User = &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	if d, _, err := a.Authorize(t.Context(), q); d != authz.NoOpinion || err != nil {
		t.Errorf("decision %v, %v", d, err)
	}
}

func TestTheQuestionHasTheReviewsNames(t *testing.T) {
	requirement1, err := labels.NewRequirement("app", selection.In, []string{"web"})
	if err != nil {
		t.Fatal(err)
	}
	requirement2, err := labels.NewRequirement("gone", selection.DoesNotExist, nil)
	if err != nil {
		t.Fatal(err)
	}
	q := question
	q.Verb, q.Namespace, q.Subresource, q.Name = "list", "shop", "status", "a"
	q.FieldSelectorRequirements = fields.Requirements{{Field: "spec.nodeName", Operator: selection.NotEquals, Value: "n"}}
	q.LabelSelectorRequirements = labels.Requirements{*requirement1, *requirement2}
	want := &document{User: "jane", Groups: []string{"staff"}, Resource: &resource{
		Namespace: "shop", Verb: "list", Version: "v1", Resource: "pods", Subresource: "status", Name: "a",
		FieldSelector: &selector{Requirements: []requirement{{"spec.nodeName", "NotIn", []string{"n"}}}},
		LabelSelector: &selector{Requirements: []requirement{{"app", "In", []string{"web"}}, {"gone", "DoesNotExist", []string{}}}},
	}}
	if got := newDocument(q); !reflect.DeepEqual(got, want) {
		t.Errorf("document %+v, resource %+v; want %+v", got, got.Resource, want.Resource)
	}
	path := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "jane"}, Verb: "get", Path: "/metrics"}
	if got := newDocument(path); got.Resource != nil || !reflect.DeepEqual(got.NonResource, &nonResource{Path: "/metrics", Verb: "get"}) {
		t.Errorf("document %+v", got)
	}
}
