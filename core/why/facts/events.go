// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The events of pods that somebody else has removed.
const (
	Preempted    = "Preempted"
	TaintEvicted = "TaintManagerEviction"
)

// Last is the youngest event about an object with one of the reasons.
func (e *Cluster) Last(kind, namespace, name string, reasons ...string) *corev1.Event {
	var found *corev1.Event
	for _, ev := range e.Events {
		o := ev.InvolvedObject
		if o.Kind == kind && o.Namespace == namespace && o.Name == name && slices.Contains(reasons, ev.Reason) &&
			(found == nil || When(ev).After(When(found))) {
			found = ev
		}
	}
	return found
}

// Removal says in words who removed a pod.
func (e *Cluster) Removal(ev *corev1.Event, in string) string {
	if ev.Reason == Preempted {
		return e.Preemptor(ev.Message, in) + " got its place (preemption)"
	}
	return "it did not tolerate a NoExecute taint of its node"
}

// Preemptor names who took the place of a pod, by the event of that: "Preempted by pod UID on node NAME".
func (e *Cluster) Preemptor(message, in string) string {
	_, about, _ := strings.Cut(message, "by pod ")
	uid, where, _ := strings.Cut(about, " ")
	for _, p := range e.Pods {
		if p.UID == types.UID(uid) {
			if p.Namespace != in { // the cause becomes an event, which is read by those who may not read that one
				return fmt.Sprintf("a pod of another namespace with priority %d", Priority(p))
			}
			return fmt.Sprintf("pod %s of priority %d", p.Name, Priority(p))
		}
	}
	return strings.TrimSpace("a pod that is more important " + where)
}

// When an event happened last.
func When(ev *corev1.Event) time.Time {
	at := ev.EventTime.Time
	for _, t := range []time.Time{ev.LastTimestamp.Time, ev.FirstTimestamp.Time} {
		if t.After(at) {
			at = t
		}
	}
	if ev.Series != nil && ev.Series.LastObservedTime.After(at) {
		at = ev.Series.LastObservedTime.Time
	}
	return at
}

// Amounts reads "requested: cpu=500m,pods=1, used: ..." of a quota's refusal.
func Amounts(text, after string) map[string]resource.Quantity {
	out := map[string]resource.Quantity{}
	_, list, _ := strings.Cut(text, after)
	list, _, _ = strings.Cut(list, ", ")
	for _, pair := range strings.Split(list, ",") {
		name, amount, ok := strings.Cut(pair, "=")
		if q, err := resource.ParseQuantity(strings.TrimSpace(amount)); ok && err == nil {
			out[name] = q
		}
	}
	return out
}

// Writer is who wrote a status last, and when.
func Writer(all []metav1.ManagedFieldsEntry) (who, at string) {
	for _, m := range all {
		if m.Subresource != "status" || m.Time == nil {
			continue
		}
		if t := m.Time.UTC().Format("2006-01-02 15:04:05 UTC"); t > at {
			who, at = m.Manager, t
		}
	}
	return who, at
}

// HasStatus says whether objects of a definition have a status.
func HasStatus(d *apiextensionsv1.CustomResourceDefinition, o *unstructured.Unstructured) bool {
	if d == nil {
		return true
	}
	for _, v := range d.Spec.Versions {
		if v.Name == o.GroupVersionKind().Version {
			return v.Subresources != nil && v.Subresources.Status != nil
		}
	}
	return true
}

// Rule is what a budget asks for, in words.
func Rule(b *policyv1.PodDisruptionBudget) string {
	show := func(what string, v *intstr.IntOrString) string { return fmt.Sprintf("%s: %s", what, v.String()) }
	switch {
	case b.Spec.MinAvailable != nil:
		return show("minAvailable", b.Spec.MinAvailable)
	case b.Spec.MaxUnavailable != nil:
		return show("maxUnavailable", b.Spec.MaxUnavailable)
	}
	return "neither minAvailable nor maxUnavailable"
}

// Since when a condition is as it is, in words.
func Since(c corev1.NodeCondition) string {
	at := c.LastHeartbeatTime
	if at.IsZero() {
		at = c.LastTransitionTime
	}
	return metav1.Time{Time: at.UTC()}.Format("2006-01-02 15:04:05 UTC")
}

// ResourceOf is what kubectl calls the kind.
func ResourceOf(d *apiextensionsv1.CustomResourceDefinition, o *unstructured.Unstructured) string {
	if d != nil {
		return d.Name
	}
	return strings.ToLower(o.GetKind())
}

// Modes lists the access modes of a claim.
func Modes(c *corev1.PersistentVolumeClaim) string {
	var out []string
	for _, m := range c.Spec.AccessModes {
		out = append(out, string(m))
	}
	return strings.Join(out, ", ")
}

// NodeCondition is the condition of a node with the type; zero = it has none.
func NodeCondition(n *corev1.Node, t corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return corev1.NodeCondition{}
}
