// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// Matches says whether the plugin would be asked about a request at a point, by
// its rules, selectors and conditions. Tools ask that of what New makes.
func (a *adapter) Matches(ctx context.Context, pt abi.Point, r *admission.Request) (bool, error) {
	v := a.plugin.Current()
	if v == nil || v.Hook(pt) == nil {
		return false, nil
	}
	return matcherOf(v).matches(ctx, pt, r, a.cluster)
}

// Matcher decides as admission does which requests a plugin sees, for the adapters
// of points that are asked about requests too.
type Matcher struct{ adapter }

// NewMatcher makes the matcher of a plugin, of whatever version is in force.
func NewMatcher(p *point.Plugin, c Cluster) *Matcher {
	return &Matcher{adapter{plugin: p, cluster: c}}
}

// Covers says whether the rules of a hook and of its entry name a resource, in
// some version and for some operation.
func (m *Matcher) Covers(pt abi.Point, gr schema.GroupResource) bool {
	v := m.plugin.Current()
	if v == nil || v.Hook(pt) == nil {
		return false
	}
	rules := matcherOf(v)
	names := func(rule abi.Rule) bool {
		return named(rule.Groups, gr.Group) && (len(rule.Resources) == 0 || slices.ContainsFunc(rule.Resources, func(r string) bool {
			return resourceOf(r) == "*" || resourceOf(r) == gr.Resource
		}))
	}
	return slices.ContainsFunc(rules.module[pt], names) &&
		(len(rules.entry) == 0 || slices.ContainsFunc(rules.entry, func(rule entryRule) bool { return names(rule.Rule) }))
}

// Document is a request as hooks see it.
func Document(r *admission.Request) (any, error) { return newDocument(r) }

// Worded is what an answer says of a refusal, its causes included.
func Worded(a *abi.AdmissionAnswer) string { return worded(a) }

type impliedKey struct{}

// Imply marks a request that nobody makes: it stands for one that somebody else's is going to lead to, as that for a
// Deployment leads to those for its pods. Conditions see it as request.implied.
func Imply(r *admission.Request) {
	r.Memo(impliedKey{}, func() any { return true })
}

func implied(r *admission.Request) bool {
	is, _ := r.Memo(impliedKey{}, func() any { return false }).(bool)
	return is
}
