// SPDX-License-Identifier: Apache-2.0

// Package authorization lets Wasm plugins decide who may do what: it is core's
// authz.Authorizer over a plugin.
//
// The hook sees the question under the names of a SubjectAccessReview's spec
// (user, groups, resourceAttributes, nonResourceAttributes). Requests that keep the
// cluster alive never reach it: the adapter stands behind authz.Guard. A plugin that fails denies, unless its
// failure policy is Ignore. What a pure hook answered is remembered, by the fields
// that it reads.
package authorization

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/selection"

	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// New makes the adapter of a plugin, behind the guard; nil where the plugin has
// no hook at authorization now.
func New(p *point.Plugin) authz.Authorizer {
	if v := p.Current(); v == nil || v.Hook(abi.Authorization) == nil {
		return nil
	}
	return authz.Guard(&adapter{plugin: p, cache: point.NewCache()})
}

type adapter struct {
	plugin *point.Plugin
	cache  *point.Cache
}

// Name implements authz.Authorizer.
func (a *adapter) Name() string { return a.plugin.Name() }

// document is the question as hooks see it: SubjectAccessReviewSpec's names.
type document struct {
	User        string              `json:"user,omitempty"`
	UID         string              `json:"uid,omitempty"`
	Groups      []string            `json:"groups,omitempty"`
	Extra       map[string][]string `json:"extra,omitempty"`
	Resource    *resource           `json:"resourceAttributes,omitempty"`
	NonResource *nonResource        `json:"nonResourceAttributes,omitempty"`
}

type resource struct {
	Namespace   string `json:"namespace,omitempty"`
	Verb        string `json:"verb,omitempty"`
	Group       string `json:"group,omitempty"`
	Version     string `json:"version,omitempty"`
	Resource    string `json:"resource,omitempty"`
	Subresource string `json:"subresource,omitempty"`
	Name        string `json:"name,omitempty"`
	// The selectors of a list, watch or deletecollection: what is asked for is no more than they select.
	FieldSelector *selector `json:"fieldSelector,omitempty"`
	LabelSelector *selector `json:"labelSelector,omitempty"`
}

type selector struct {
	Requirements []requirement `json:"requirements"`
}

type requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

type nonResource struct {
	Path string `json:"path,omitempty"`
	Verb string `json:"verb,omitempty"`
}

func newDocument(a authz.Attributes) *document {
	d := &document{}
	if u := a.GetUser(); u != nil {
		d.User, d.UID, d.Groups, d.Extra = u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra()
	}
	if !a.IsResourceRequest() {
		d.NonResource = &nonResource{Path: a.GetPath(), Verb: a.GetVerb()}
		return d
	}
	d.Resource = &resource{
		Namespace: a.GetNamespace(), Verb: a.GetVerb(), Group: a.GetAPIGroup(), Version: a.GetAPIVersion(),
		Resource: a.GetResource(), Subresource: a.GetSubresource(), Name: a.GetName(),
	}
	d.Resource.FieldSelector, d.Resource.LabelSelector = fieldSelector(a), labelSelector(a)
	return d
}

// fieldSelector has the requirements that could be read: each narrows the question.
func fieldSelector(a authz.Attributes) *selector {
	all, _ := a.GetFieldSelector()
	if len(all) == 0 {
		return nil
	}
	s := &selector{}
	for _, r := range all {
		op := "In"
		if r.Operator == selection.NotEquals {
			op = "NotIn"
		}
		s.Requirements = append(s.Requirements, requirement{r.Field, op, []string{r.Value}})
	}
	return s
}

func labelSelector(a authz.Attributes) *selector {
	all, _ := a.GetLabelSelector()
	if len(all) == 0 {
		return nil
	}
	s := &selector{}
	for _, r := range all {
		op, ok := labelOperators[r.Operator()]
		if !ok {
			continue
		}
		s.Requirements = append(s.Requirements, requirement{r.Key(), op, r.Values().List()})
	}
	return s
}

var labelOperators = map[selection.Operator]string{
	selection.In: "In", selection.Equals: "In", selection.DoubleEquals: "In", selection.NotIn: "NotIn", selection.NotEquals: "NotIn",
	selection.Exists: "Exists", selection.DoesNotExist: "DoesNotExist",
}

// Authorize implements authz.Authorizer.
func (a *adapter) Authorize(ctx context.Context, q authz.Attributes) (authz.Decision, string, error) {
	if v := a.plugin.Current(); v.Pending() {
		return held(ctx, v)
	}
	c := a.plugin.AskOnce(ctx, abi.Authorization, "", newDocument(q), a.cache)
	if c == nil {
		return authz.NoOpinion, "", nil
	}
	answer := abi.AuthorizationAnswer{Decision: "noOpinion"}
	if c.Err == nil {
		var err error
		if answer, err = abi.ParseAuthorization(c.Answer); err != nil {
			c.Fail(err)
		}
	}
	d, reason, err := a.decide(c, answer)
	c.Record(ctx, abi.Authorization, point.Outcome{Decision: authz.Text(d), Message: reason, Span: string(abi.Authorization)})
	if c.Mode() != manifest.Enforce {
		return authz.NoOpinion, "", nil
	}
	return d, reason, err
}

// held has a request wait for a plugin that is being loaded. What its writer may do, and
// others' writers, is asked without it: loads would wait for each other.
func held(ctx context.Context, v *point.Version) (authz.Decision, string, error) {
	if err := v.Held(); err != nil && !rights.Asked(ctx) {
		return authz.Deny, err.Error(), err
	}
	return authz.NoOpinion, "", nil
}

func (a *adapter) decide(c *point.Call, answer abi.AuthorizationAnswer) (authz.Decision, string, error) {
	switch {
	case c.Err != nil && c.Policy(manifest.Fail) == manifest.Ignore:
		return authz.NoOpinion, "", c.Err
	case c.Err != nil:
		return authz.Deny, fmt.Sprintf("authorization is closed because plugin %q failed, and its failurePolicy is Fail", a.Name()), c.Err
	case answer.Decision == "allow":
		return authz.Allow, a.reason(answer), nil
	case answer.Decision == "deny":
		return authz.Deny, a.reason(answer), nil
	}
	return authz.NoOpinion, answer.Reason, nil
}

// reason names the plugin: a user must know whom to ask.
func (a *adapter) reason(answer abi.AuthorizationAnswer) string {
	if answer.Reason == "" {
		return fmt.Sprintf("plugin %q", a.Name())
	}
	return fmt.Sprintf("plugin %q: %s", a.Name(), answer.Reason)
}
