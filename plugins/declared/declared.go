// SPDX-License-Identifier: Apache-2.0

// Package declared says which kinds of objects a plugin watches, reads and writes, by what its
// module says of its hooks and what its entry grants. What a reconciler may write besides is known
// to RBAC alone: it writes with the rights of its service account.
package declared

import (
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/core/accessgraph"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Kinds of objects, by their names in package accessgraph: "jobs.batch"; "*" is all.
type Kinds struct {
	// Watches: a change of one has the plugin called.
	Watches []string `json:"watches,omitempty"`
	// Reads besides.
	Reads []string `json:"reads,omitempty"`
	// Writes: objects that it makes, and those that it changes on their way into the store.
	Writes []string `json:"writes,omitempty"`
	// Account (NAMESPACE/NAME) as which a reconciler writes.
	Account string `json:"account,omitempty"`
}

// Of are the kinds of a module, as an entry lets it take part.
func Of(m *abi.Manifest, e *manifest.Entry) Kinds {
	var k Kinds
	for i := range m.Hooks {
		if h := &m.Hooks[i]; e.Wants(h.Point) {
			k.hook(h, e)
		}
	}
	for _, g := range e.Grants.Read {
		k.Reads = append(k.Reads, names(g.APIGroups, g.Resources)...)
	}
	if e.Grants.Events {
		k.Writes = append(k.Writes, "events")
	}
	k.Watches, k.Reads, k.Writes = distinct(k.Watches), distinct(k.Reads), distinct(k.Writes)
	return k
}

func (k *Kinds) hook(h *abi.Hook, e *manifest.Entry) {
	switch {
	case h.Point == abi.Reconcile:
		k.Account = e.Reconcile.ServiceAccount
		if h.Primary != nil {
			k.Watches = append(k.Watches, accessgraph.Kind(h.Primary.Group, h.Primary.Resource))
		}
		for _, w := range h.Owned {
			kind := accessgraph.Kind(w.Group, w.Resource)
			k.Watches, k.Writes = append(k.Watches, kind), append(k.Writes, kind)
		}
	case h.Point == abi.AdmissionMutate:
		k.Watches, k.Writes = append(k.Watches, matched(h, e)...), append(k.Writes, matched(h, e)...)
	case h.Point == abi.AdmissionValidate, h.Point == abi.CustomResourceConvert, h.Point == abi.CustomResourceValidate:
		k.Reads = append(k.Reads, matched(h, e)...)
	case h.Point == abi.SchedulingBind, h.Point == abi.SchedulingPostFilter:
		k.Reads, k.Writes = append(k.Reads, "pods", "nodes"), append(k.Writes, "pods")
	case strings.HasPrefix(string(h.Point), "scheduling."), h.Point == abi.NodeAdmission:
		k.Reads = append(k.Reads, "pods", "nodes")
	}
}

// matched are the resources of the hook's rules, or of the entry's where it has some: they narrow.
func matched(h *abi.Hook, e *manifest.Entry) []string {
	rules := h.Match
	if len(e.Match.Rules) > 0 && (len(rules) == 0 || slices.ContainsFunc(rules, everything)) {
		rules = nil
		for _, r := range e.Match.Rules {
			rules = append(rules, abi.Rule{Groups: r.APIGroups, Resources: r.Resources})
		}
	}
	if len(rules) == 0 {
		return []string{accessgraph.Every}
	}
	var out []string
	for _, r := range rules {
		out = append(out, names(r.Groups, r.Resources)...)
	}
	return out
}

func everything(r abi.Rule) bool {
	return len(r.Resources) == 0 || slices.Contains(r.Resources, accessgraph.Every)
}

// names of all resources in all groups. No groups are the core group, or all of them (of rules): a
// kind has the same name in both.
func names(groups, resources []string) []string {
	if len(groups) == 0 {
		groups = []string{""}
	}
	if len(resources) == 0 {
		resources = []string{accessgraph.Every}
	}
	var out []string
	for _, r := range resources {
		for _, g := range groups {
			out = append(out, accessgraph.Kind(g, r))
		}
	}
	return out
}

func distinct(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}
