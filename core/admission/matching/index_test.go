// SPDX-License-Identifier: Apache-2.0

package matching_test

import (
	"fmt"
	"slices"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
)

// ingresses are one resource in two groups, as some are.
type ingresses struct{ asked int }

func (i *ingresses) Equivalents(gvr schema.GroupVersionResource, _ string) []admission.Equivalent {
	i.asked++
	if gvr.Resource != "ingresses" {
		return []admission.Equivalent{{Resource: gvr}}
	}
	return []admission.Equivalent{
		{Resource: schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"}},
		{Resource: schema.GroupVersionResource{Group: "extensions", Version: "v1beta1", Resource: "ingresses"}},
	}
}

func match(group string, resources ...string) *admissionregistrationv1.MatchResources {
	rule := admissionregistrationv1.NamedRuleWithOperations{}
	rule.Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll}
	rule.APIGroups, rule.APIVersions, rule.Resources = []string{group}, []string{"*"}, resources
	return &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{rule}}
}

// TestAnIndexFindsWhoeverMayMatch: whoever matches a request is among those that the index finds, in the same order, and
// who cannot is not.
func TestAnIndexFindsWhoeverMayMatch(t *testing.T) {
	several := match("", "pods")
	several.ResourceRules = append(several.ResourceRules, match("apps", "deployments/scale").ResourceRules...)
	all := []*admissionregistrationv1.MatchResources{
		match("", "pods"), match("", "pods/status"), match("apps", "deployments"), match("*", "pods"), match("", "*"), match("", "*/status"),
		match("extensions", "ingresses"), several, nil, match("", "services", "pods/*"),
	}
	criteria := make([]*matching.Criteria, len(all))
	numbers := make([]int, len(all))
	for i, m := range all {
		c := matching.ForPolicy(m)
		criteria[i], numbers[i] = &c, i
	}
	x := matching.NewIndex(numbers, func(i int) []*matching.Criteria { return criteria[i : i+1] })
	for _, step := range []struct {
		group, version, resource, subresource string
		want                                  []int
	}{
		{"", "v1", "pods", "", []int{0, 1, 3, 4, 5, 7, 8, 9}},
		{"", "v1", "pods", "status", []int{0, 1, 3, 4, 5, 7, 8, 9}},
		{"apps", "v1", "deployments", "scale", []int{2, 3, 4, 5, 7, 8}},
		{"", "v1", "configmaps", "", []int{3, 4, 5, 8}},
		{"networking.k8s.io", "v1", "ingresses", "", []int{3, 4, 5, 6, 8}},
	} {
		resources := &ingresses{}
		gvr := schema.GroupVersionResource{Group: step.group, Version: step.version, Resource: step.resource}
		r := &admission.Request{Operation: admission.Create, Resource: gvr, Subresource: step.subresource}
		found := x.For(r, resources)
		if !slices.Equal(found, step.want) {
			t.Errorf("%s/%s: %v, want %v", gvr, step.subresource, found, step.want)
		}
		for i, c := range criteria {
			_, matches, err := c.Match(t.Context(), r, matching.Namespaces{}, resources)
			if err != nil {
				t.Fatal(err)
			}
			if matches && !slices.Contains(found, i) {
				t.Errorf("%s/%s: %d matches, and is not among %v", gvr, step.subresource, i, found)
			}
		}
		if resources.asked != 1 {
			t.Errorf("%s/%s: equivalent resources were looked up %d times for one request", gvr, step.subresource, resources.asked)
		}
	}
}

// BenchmarkIndex is what a thousand policies cost that are about other resources.
func BenchmarkIndex(b *testing.B) {
	criteria := make([]*matching.Criteria, 1000)
	for i := range criteria {
		c := matching.ForPolicy(match("example.com", fmt.Sprint("kind", i)))
		criteria[i] = &c
	}
	x := matching.NewIndex(criteria, func(c *matching.Criteria) []*matching.Criteria { return []*matching.Criteria{c} })
	for b.Loop() {
		r := &admission.Request{Operation: admission.Create, Resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}}
		if n := len(x.For(r, &ingresses{})); n > 0 {
			b.Fatal(n, " are found")
		}
	}
}
