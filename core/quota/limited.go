// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
)

// Limited is what may be used only where a quota covers it; upstream's
// LimitedResource of the ResourceQuota plugin's configuration.
type Limited struct {
	Resource schema.GroupResource
	// Contains: every resource whose name has one of these in it is limited.
	Contains []string
	// Scopes: every object in one of these is limited.
	Scopes []corev1.ScopedResourceSelectorRequirement
}

// limited are those that concern the measure.
func (m *Measure) limited(all []Limited) (out []Limited) {
	for _, l := range all {
		if l.Resource == m.Resource {
			out = append(out, l)
		}
	}
	return out
}

// Limits says whether any of the limited concerns the resource.
func Limits(all []Limited, gr schema.GroupResource) bool {
	return slices.ContainsFunc(all, func(l Limited) bool { return l.Resource == gr })
}

// covered refuses what is limited and what no quota covers.
func (m *Measure) covered(quotas []*corev1.ResourceQuota, interested []int, limited []Limited, usage corev1.ResourceList, c Change) error {
	if len(limited) == 0 {
		return nil
	}
	if c.Old != nil {
		before, err := m.Usage(c.Old, c.Now)
		if err != nil {
			return err
		}
		// An update that takes nothing more is as good as what is there already.
		if len(quotav1.RemoveZeros(quotav1.SubtractWithNonNegativeResult(usage, before))) == 0 {
			return nil
		}
	}
	covered := sets.New[corev1.ResourceName]()
	for _, i := range interested {
		covered.Insert(m.Names(quotav1.ResourceNames(quotas[i].Status.Hard))...)
	}
	if open := limitedNames(limited, usage).Difference(covered); len(open) > 0 {
		return refuse("insufficient quota to consume: %s", namesText(open.UnsortedList()))
	}
	return m.scopesCovered(quotas, limited, c)
}

// limitedNames are those that the usage takes something of.
func limitedNames(limited []Limited, usage corev1.ResourceList) sets.Set[corev1.ResourceName] {
	out := sets.New[corev1.ResourceName]()
	for _, l := range limited {
		for name, q := range usage {
			if q.Sign() > 0 && slices.ContainsFunc(l.Contains, func(part string) bool { return strings.Contains(string(name), part) }) {
				out.Insert(name)
			}
		}
	}
	return out
}

func (m *Measure) scopesCovered(quotas []*corev1.ResourceQuota, limited []Limited, c Change) error {
	have := sets.New[corev1.ResourceQuotaScope]()
	for _, q := range quotas {
		in, err := m.matching(Scopes(q), c)
		if err != nil {
			return fmt.Errorf("error matching scopes of quota %s, err: %w", q.Name, err)
		}
		for _, s := range in {
			have.Insert(s.ScopeName)
		}
	}
	var open []corev1.ScopedResourceSelectorRequirement
	for _, l := range limited {
		in, err := m.matching(l.Scopes, c)
		if err != nil {
			return err
		}
		for _, s := range in {
			if !have.Has(s.ScopeName) {
				open = append(open, s)
			}
		}
	}
	if len(open) > 0 {
		return refuse("insufficient quota to match these scopes: %v", open)
	}
	return nil
}

// matching are those of scopes that the object is in.
func (m *Measure) matching(scopes []corev1.ScopedResourceSelectorRequirement,
	c Change,
) (out []corev1.ScopedResourceSelectorRequirement, err error) {
	for _, s := range scopes {
		if m.scope == nil {
			return nil, nil
		}
		in, err := m.scope(s, c.Object)
		if err != nil {
			return nil, err
		}
		if in {
			out = append(out, s)
		}
	}
	return out, nil
}
