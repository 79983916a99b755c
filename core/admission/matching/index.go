// SPDX-License-Identifier: Apache-2.0

package matching

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
)

// Index finds those of many, policies say, that may be meant by a request, by the resources that their rules name: a request
// costs what those cost that are about its resource, however many others there are. It is safe for concurrent use.
type Index[T any] struct {
	all      []T
	anywhere []int // in all, of those whose rules do not say about which resources they are
	by       map[schema.GroupResource][]int
}

// NewIndex makes an index. criteria are those of one of them, of which one has to match.
func NewIndex[T any](all []T, criteria func(T) []*Criteria) *Index[T] {
	x := &Index[T]{all: all, by: map[schema.GroupResource][]int{}}
	for i, one := range all {
		resources, anywhere := resourcesOf(criteria(one))
		if anywhere {
			x.anywhere = append(x.anywhere, i)
			continue
		}
		for r := range resources {
			x.by[r] = append(x.by[r], i)
		}
	}
	return x
}

// every is what rules say of all groups and all resources.
const every = "*"

// resourcesOf are those that rules name; anywhere: they do not say which.
func resourcesOf(all []*Criteria) (out map[schema.GroupResource]bool, anywhere bool) {
	out = map[schema.GroupResource]bool{}
	for _, c := range all {
		if c.AnyResource {
			return nil, true
		}
		for i := range c.Rules {
			rule := &c.Rules[i]
			for _, resource := range rule.Resources {
				base, _, _ := strings.Cut(resource, "/")
				for _, group := range rule.APIGroups {
					if base == every || group == every {
						return nil, true
					}
					out[schema.GroupResource{Group: group, Resource: base}] = true
				}
			}
		}
	}
	return out, false
}

// All are all of them.
func (x *Index[T]) All() []T { return x.all }

// For are those that a request may be for, in the order of all. Whether it is, their criteria say.
func (x *Index[T]) For(r *admission.Request, resources admission.Resources) []T {
	if len(x.all) == 0 || len(x.anywhere) == len(x.all) {
		return x.all
	}
	own := r.Resource.GroupResource()
	found := [][]int{x.anywhere, x.by[own]}
	seen := []schema.GroupResource{own}
	for _, e := range equivalents(r, resources) {
		if gr := e.Resource.GroupResource(); !slices.Contains(seen, gr) {
			seen, found = append(seen, gr), append(found, x.by[gr])
		}
	}
	at := slices.Concat(found...)
	slices.Sort(at)
	at = slices.Compact(at)
	out := make([]T, len(at))
	for i, n := range at {
		out[i] = x.all[n]
	}
	return out
}

type equivalentsKey struct{}

// equivalents are the resources that are one with a request's, looked up once for all who ask.
func equivalents(r *admission.Request, resources admission.Resources) []admission.Equivalent {
	if resources == nil {
		return nil
	}
	return r.Memo(equivalentsKey{}, func() any { return resources.Equivalents(r.Resource, r.Subresource) }).([]admission.Equivalent)
}
