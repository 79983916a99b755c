// SPDX-License-Identifier: Apache-2.0

// Package quota knows what counts against a ResourceQuota: which objects, how
// much of what, under which scopes. It is pure: admission charges with it, and the
// controller counts with it, so that the two can never disagree.
//
// Names, scopes and sums are upstream's. Every namespaced resource is counted as
// count/RESOURCE.GROUP; pods, Services, claims and the resources of the first days
// have more to measure.
package quota

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
)

// Measure says how objects of one resource count.
type Measure struct {
	Resource schema.GroupResource
	// names that are always known.
	names []corev1.ResourceName
	// more says of other names whether they are known.
	more func(corev1.ResourceName) bool
	// usage of one object, beside its count; nil: nothing.
	usage func(o runtime.Object, now time.Time) (corev1.ResourceList, error)
	// scope says whether the object is in a scope; nil: in none.
	scope func(s corev1.ScopedResourceSelectorRequirement, o runtime.Object) (bool, error)
	// required refuses an object that says too little to be counted; nil: none does.
	required func(names []corev1.ResourceName, o runtime.Object) error
	// changes says of an update whether it can change what is charged; nil: none can.
	changes func(subresource string, o, old runtime.Object) bool
	// releases says of an update that was seen whether what is used may have shrunk; nil: none does.
	releases func(o, old runtime.Object, now time.Time) bool
}

// CountName is the name under which objects of a resource are counted.
func CountName(gr schema.GroupResource) corev1.ResourceName {
	if gr.Group == "" {
		return corev1.ResourceName("count/" + gr.Resource)
	}
	return corev1.ResourceName("count/" + gr.Resource + "." + gr.Group)
}

// Counted reads a name of the form count/RESOURCE.GROUP.
func Counted(name corev1.ResourceName) (schema.GroupResource, bool) {
	rest, ok := strings.CutPrefix(string(name), "count/")
	if !ok || rest == "" {
		return schema.GroupResource{}, false
	}
	return schema.ParseGroupResource(rest), true
}

// Ignored resources were never counted.
func Ignored(gr schema.GroupResource) bool {
	switch gr.Group {
	case "":
		return gr.Resource == "bindings" || gr.Resource == "componentstatuses" || gr.Resource == "events"
	case "events.k8s.io":
		return gr.Resource == "events"
	case "authentication.k8s.io", "authorization.k8s.io":
		return true
	}
	return false
}

// For is the measure of a resource.
func For(gr schema.GroupResource) *Measure {
	for _, m := range special {
		if m.Resource == gr {
			return m
		}
	}
	return &Measure{Resource: gr, names: []corev1.ResourceName{CountName(gr)}}
}

// Updates says whether an update of a resource can change what is charged for an object.
func Updates(gr schema.GroupResource) bool {
	return slices.ContainsFunc(special, func(m *Measure) bool { return m.Resource == gr && m.changes != nil })
}

// special are the resources with more to measure than their number, or with
// another name for it. Nobody changes them.
var special = measures()

func measures() []*Measure {
	out := []*Measure{pods(), services(), claims(), resourceClaims()}
	for resource, alias := range map[string]corev1.ResourceName{
		"configmaps": corev1.ResourceConfigMaps, "resourcequotas": corev1.ResourceQuotas,
		"replicationcontrollers": corev1.ResourceReplicationControllers, "secrets": corev1.ResourceSecrets,
	} {
		gr := schema.GroupResource{Resource: resource}
		out = append(out, &Measure{Resource: gr, names: []corev1.ResourceName{CountName(gr), alias}})
	}
	return out
}

// Tracked lists what a quota that limits names measures. Names that nobody knows
// are left out.
func Tracked(names []corev1.ResourceName) []*Measure {
	out := slices.DeleteFunc(slices.Clone(special), func(m *Measure) bool { return len(m.Names(names)) == 0 })
	for _, n := range names {
		gr, ok := Counted(n)
		if ok && !Ignored(gr) && !slices.ContainsFunc(out, func(m *Measure) bool { return m.Resource == gr }) {
			out = append(out, For(gr))
		}
	}
	return out
}

// Names are those of names that the measure knows.
func (m *Measure) Names(names []corev1.ResourceName) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, n := range names {
		if slices.Contains(m.names, n) || m.more != nil && m.more(n) {
			out = append(out, n)
		}
	}
	return out
}

// Usage of one object.
func (m *Measure) Usage(o runtime.Object, now time.Time) (corev1.ResourceList, error) {
	if m.usage != nil {
		return m.usage(o, now)
	}
	out := corev1.ResourceList{}
	for _, n := range m.names {
		out[n] = one()
	}
	return out, nil
}

func one() resource.Quantity { return *resource.NewQuantity(1, resource.DecimalSI) }

// Typed says whether usage reads the object itself; else its metadata do.
func (m *Measure) Typed() bool { return m.usage != nil }

// Charges says whether an update can change what is charged.
func (m *Measure) Charges(subresource string, o, old runtime.Object) bool {
	return m.changes != nil && o != nil && old != nil && m.changes(subresource, o, old)
}

// Releases says whether an update that was seen may have released something.
func (m *Measure) Releases(o, old runtime.Object, now time.Time) bool {
	return m.releases != nil && m.releases(o, old, now)
}

// Scopes of a quota as selectors.
func Scopes(q *corev1.ResourceQuota) []corev1.ScopedResourceSelectorRequirement {
	var out []corev1.ScopedResourceSelectorRequirement
	for _, s := range q.Spec.Scopes {
		out = append(out, corev1.ScopedResourceSelectorRequirement{ScopeName: s, Operator: corev1.ScopeSelectorOpExists})
	}
	if q.Spec.ScopeSelector != nil {
		out = append(out, q.Spec.ScopeSelector.MatchExpressions...)
	}
	return out
}

// InScope says whether the object is in all of a quota's scopes.
func (m *Measure) InScope(q *corev1.ResourceQuota, o runtime.Object) (bool, error) {
	for _, s := range Scopes(q) {
		if m.scope == nil {
			return false, nil
		}
		if in, err := m.scope(s, o); err != nil || !in {
			return false, err
		}
	}
	return true, nil
}

// Matches says whether the quota limits anything of the object.
func (m *Measure) Matches(q *corev1.ResourceQuota, o runtime.Object) (bool, error) {
	if len(m.Names(quotav1.ResourceNames(q.Status.Hard))) == 0 {
		return false, nil
	}
	return m.InScope(q, o)
}

// Sum is what objects use of the names, those in the quota's scopes only.
func (m *Measure) Sum(q *corev1.ResourceQuota, names []corev1.ResourceName, objects []runtime.Object,
	now time.Time,
) (corev1.ResourceList, error) {
	known := m.Names(names)
	sum := corev1.ResourceList{}
	for _, n := range known {
		sum[n] = resource.Quantity{Format: resource.DecimalSI}
	}
	for _, o := range objects {
		in, err := m.InScope(q, o)
		if err != nil {
			return nil, err
		}
		if !in {
			continue
		}
		usage, err := m.Usage(o, now)
		if err != nil {
			return nil, err
		}
		sum = quotav1.Add(sum, quotav1.Mask(usage, known))
	}
	return sum, nil
}

// Refused is a refusal, for the caller to make Forbidden of.
type Refused struct{ Reason string }

func (r *Refused) Error() string { return r.Reason }

func refuse(format string, args ...any) error { return &Refused{fmt.Sprintf(format, args...)} }

// Change is a write, as far as quotas are concerned.
type Change struct {
	Object      runtime.Object
	Old         runtime.Object // nil for a create
	Subresource string
	Now         time.Time
}

// Charge holds a change against the quotas of its namespace. It returns them with
// what they would have used, sharing those that the change does not touch; an
// error refuses the change. What is limited may be used only where a quota covers it.
func (m *Measure) Charge(quotas []*corev1.ResourceQuota, limited []Limited, c Change) ([]*corev1.ResourceQuota, error) {
	limited = m.limited(limited)
	interested, err := m.interested(quotas, c)
	if err != nil || len(interested) == 0 && len(limited) == 0 {
		return quotas, err
	}
	usage, err := m.Usage(c.Object, c.Now)
	if err != nil {
		return nil, err
	}
	if negative := quotav1.IsNegative(usage); len(negative) > 0 {
		return nil, refuse("quota usage is negative for resource(s): %s", namesText(negative))
	}
	if err := m.covered(quotas, interested, limited, usage, c); err != nil {
		return nil, err
	}
	out := slices.Clone(quotas)
	for _, i := range interested {
		delta, err := m.delta(quotas[i], usage, c)
		if err != nil {
			return nil, err
		}
		if len(delta) == 0 {
			continue
		}
		if out[i], err = charged(quotas[i], delta, c.Subresource); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// interested are the indexes of the quotas that limit the object.
func (m *Measure) interested(quotas []*corev1.ResourceQuota, c Change) ([]int, error) {
	var out []int
	for i, q := range quotas {
		in, err := m.Matches(q, c.Object)
		if err != nil {
			return nil, fmt.Errorf("error matching scopes of quota %s, err: %w", q.Name, err)
		}
		if !in {
			continue
		}
		limited := m.Names(quotav1.ResourceNames(q.Status.Hard))
		if m.required != nil {
			if err := m.required(limited, c.Object); err != nil {
				return nil, refuse("failed quota: %s: %v", q.Name, err)
			}
		}
		for _, n := range limited {
			if _, known := q.Status.Used[n]; !known {
				return nil, refuse("status unknown for quota: %s, resources: %s", q.Name, namesText(limited))
			}
		}
		out = append(out, i)
	}
	return out, nil
}

// delta is what the change adds to a quota: all of a new object's usage, and of
// one that the quota had counted before only what it uses more.
func (m *Measure) delta(q *corev1.ResourceQuota, usage corev1.ResourceList, c Change) (corev1.ResourceList, error) {
	if c.Old != nil {
		counted, err := m.Matches(q, c.Old)
		if err != nil {
			return nil, err
		}
		if counted {
			before, err := m.Usage(c.Old, c.Now)
			if err != nil {
				return nil, err
			}
			usage = quotav1.SubtractWithNonNegativeResult(usage, before)
		}
	}
	return quotav1.RemoveZeros(usage), nil
}

func charged(q *corev1.ResourceQuota, delta corev1.ResourceList, subresource string) (*corev1.ResourceQuota, error) {
	requested := quotav1.Mask(delta, quotav1.ResourceNames(q.Status.Hard))
	used := quotav1.Add(q.Status.Used, requested)
	// What a controller reports has happened already: it is counted, not refused.
	if subresource != "status" {
		if ok, exceeded := quotav1.LessThanOrEqual(quotav1.Mask(used, quotav1.ResourceNames(requested)), q.Status.Hard); !ok {
			return nil, refuse("exceeded quota: %s, requested: %s, used: %s, limited: %s", q.Name,
				listText(quotav1.Mask(requested, exceeded)), listText(quotav1.Mask(q.Status.Used, exceeded)),
				listText(quotav1.Mask(q.Status.Hard, exceeded)))
		}
	}
	q = q.DeepCopy()
	q.Status.Used = used
	return q, nil
}

// namesText and listText are sorted, as clients and tests expect them.
func namesText(names []corev1.ResourceName) string {
	parts := make([]string, len(names))
	for i, n := range names {
		parts[i] = string(n)
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

func listText(l corev1.ResourceList) string {
	parts := make([]string, 0, len(l))
	for _, n := range sets.List(sets.KeySet(l)) {
		q := l[n]
		parts = append(parts, string(n)+"="+q.String())
	}
	return strings.Join(parts, ",")
}

// scopeSelector is a scope's requirement as a label selector over its name.
func scopeSelector(s corev1.ScopedResourceSelectorRequirement) (labels.Selector, error) {
	var op selection.Operator
	switch s.Operator {
	case corev1.ScopeSelectorOpIn:
		op = selection.In
	case corev1.ScopeSelectorOpNotIn:
		op = selection.NotIn
	case corev1.ScopeSelectorOpExists:
		op = selection.Exists
	case corev1.ScopeSelectorOpDoesNotExist:
		op = selection.DoesNotExist
	default:
		return nil, fmt.Errorf("%q is not a valid scope selector operator", s.Operator)
	}
	r, err := labels.NewRequirement(string(s.ScopeName), op, s.Values)
	if err != nil {
		return nil, err
	}
	return labels.NewSelector().Add(*r), nil
}

// as is o as a T, whatever the caller holds.
func as[T runtime.Object](o runtime.Object) (T, error) {
	t, ok := o.(T)
	if !ok {
		return t, fmt.Errorf("expected a %T, found a %T", t, o)
	}
	return t, nil
}

// resourceClaims count devices by class.
func resourceClaims() *Measure {
	gr := schema.GroupResource{Group: resourcev1.GroupName, Resource: "resourceclaims"}
	const suffix = ".deviceclass.resource.k8s.io/devices"
	return &Measure{
		Resource: gr, names: []corev1.ResourceName{CountName(gr)},
		more: func(n corev1.ResourceName) bool { return strings.HasSuffix(string(n), suffix) },
		usage: func(o runtime.Object, _ time.Time) (corev1.ResourceList, error) {
			claim, err := as[*resourcev1.ResourceClaim](o)
			if err != nil {
				return nil, err
			}
			out := corev1.ResourceList{CountName(gr): one()}
			for _, r := range claim.Spec.Devices.Requests {
				for class, n := range devices(r) {
					out = quotav1.Add(out, corev1.ResourceList{corev1.ResourceName(class + suffix): *resource.NewQuantity(n, resource.DecimalSI)})
				}
			}
			return out, nil
		},
	}
}

// devices that a request may get at most, by class.
func devices(r resourcev1.DeviceRequest) map[string]int64 {
	out := map[string]int64{}
	count := func(class string, mode resourcev1.DeviceAllocationMode, n int64) {
		if mode == resourcev1.DeviceAllocationModeAll {
			n = resourcev1.AllocationResultsMaxSize
		}
		out[class] = max(out[class], n) // only one of several alternatives is taken
	}
	if e := r.Exactly; e != nil {
		count(e.DeviceClassName, e.AllocationMode, e.Count)
	}
	for _, s := range r.FirstAvailable {
		count(s.DeviceClassName, s.AllocationMode, s.Count)
	}
	return out
}

// AsRefused is the refusal in err, if it is one.
func AsRefused(err error) (*Refused, bool) {
	var r *Refused
	return r, errors.As(err, &r)
}
