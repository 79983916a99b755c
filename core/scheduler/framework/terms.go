// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Terms are a pod's pod affinity and anti-affinity, read once.
type Terms struct {
	// Affinity and Anti must hold; Preferred weigh, those of anti-affinity negatively.
	Affinity, Anti, Preferred []*Term
	// Err is why the terms cannot be read; there are none then.
	Err error
}

// Term is one term of a pod. Nobody changes it.
type Term struct {
	TopologyKey string
	// Selector of pods, with what matchLabelKeys and mismatchLabelKeys mean for the pod.
	Selector labels.Selector
	// Namespaces in which it looks: those named, and those whose labels InNamespace
	// selects (nil: no others).
	Namespaces  map[string]bool
	InNamespace labels.Selector
	Weight      int32
	// Pods identifies the pods that the term speaks of: terms with the same Pods and
	// the same TopologyKey mean the same.
	Pods string
	// Anchor is a label, "key=value", that every pod of the term has; "" = none is known.
	Anchor string
}

// NewTerms reads a pod's terms; nil where it has none.
func NewTerms(p *corev1.Pod) *Terms {
	a := p.Spec.Affinity
	if a == nil || a.PodAffinity == nil && a.PodAntiAffinity == nil {
		return nil
	}
	r := termReader{pod: p}
	var out Terms
	if near := a.PodAffinity; near != nil {
		out.Affinity = r.required(near.RequiredDuringSchedulingIgnoredDuringExecution)
		out.Preferred = r.preferred(near.PreferredDuringSchedulingIgnoredDuringExecution, 1)
	}
	if away := a.PodAntiAffinity; away != nil {
		out.Anti = r.required(away.RequiredDuringSchedulingIgnoredDuringExecution)
		out.Preferred = append(out.Preferred, r.preferred(away.PreferredDuringSchedulingIgnoredDuringExecution, -1)...)
	}
	if r.err != nil {
		return &Terms{Err: r.err}
	}
	return &out
}

// Speaks says whether a pod is one that the term means. namespaceLabels answers the
// labels of a namespace.
func (t *Term) Speaks(of *corev1.Pod, namespaceLabels func(string) labels.Set) bool {
	if !t.Namespaces[of.Namespace] && (t.InNamespace == nil || !t.InNamespace.Matches(namespaceLabels(of.Namespace))) {
		return false
	}
	return t.Selector.Matches(labels.Set(of.Labels))
}

// termReader reads terms until one fails.
type termReader struct {
	pod *corev1.Pod
	err error
}

func (r *termReader) required(terms []corev1.PodAffinityTerm) []*Term {
	var out []*Term
	for i := range terms {
		out = append(out, r.read(&terms[i], 0))
	}
	return out
}

func (r *termReader) preferred(terms []corev1.WeightedPodAffinityTerm, sign int32) []*Term {
	var out []*Term
	for i := range terms {
		out = append(out, r.read(&terms[i].PodAffinityTerm, sign*terms[i].Weight))
	}
	return out
}

func (r *termReader) read(t *corev1.PodAffinityTerm, weight int32) *Term {
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		r.err = fmt.Errorf("read an affinity term's labelSelector: %w", err)
		return nil
	}
	out := &Term{
		TopologyKey: t.TopologyKey, Selector: WithOwnLabels(selector, r.pod, t.MatchLabelKeys, t.MismatchLabelKeys),
		Namespaces: map[string]bool{}, Weight: weight,
	}
	for _, ns := range t.Namespaces {
		out.Namespaces[ns] = true
	}
	if t.NamespaceSelector != nil {
		if out.InNamespace, err = metav1.LabelSelectorAsSelector(t.NamespaceSelector); err != nil {
			r.err = fmt.Errorf("read an affinity term's namespaceSelector: %w", err)
			return nil
		}
	} else if len(t.Namespaces) == 0 {
		out.Namespaces[r.pod.Namespace] = true
	}
	out.identify()
	return out
}

func (t *Term) identify() {
	var b strings.Builder
	for _, ns := range slices.Sorted(maps.Keys(t.Namespaces)) {
		b.WriteString(ns + ",")
	}
	if t.InNamespace != nil {
		b.WriteString("(" + strconv.Quote(t.InNamespace.String()) + ")")
	}
	b.WriteString("/")
	requirements, selectable := t.Selector.Requirements()
	if !selectable { // it selects nothing, and prints as the selector of everything
		b.WriteString("!")
	}
	b.WriteString(t.Selector.String())
	t.Pods = b.String()
	for _, r := range requirements {
		switch r.Operator() { //nolint:exhaustive // the others ask for no label of one value
		case selection.In, selection.Equals, selection.DoubleEquals:
			if values := r.ValuesUnsorted(); len(values) == 1 {
				t.Anchor = r.Key() + "=" + values[0]
				return
			}
		}
	}
}

// WithOwnLabels adds to a selector what matchLabelKeys and mismatchLabelKeys mean for a
// pod: its own values of these labels. The API merges them when a pod is made; one made
// before that has them yet to come.
func WithOwnLabels(s labels.Selector, p *corev1.Pod, match, mismatch []string) labels.Selector {
	add := func(keys []string, op selection.Operator) {
		for _, key := range keys {
			if v, ok := p.Labels[key]; ok {
				if r, err := labels.NewRequirement(key, op, []string{v}); err == nil {
					s = s.Add(*r)
				}
			}
		}
	}
	add(match, selection.In)
	add(mismatch, selection.NotIn)
	return s
}
