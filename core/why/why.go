// SPDX-License-Identifier: Apache-2.0

// Package why finds out why an object makes no progress, and what would help: a pod that
// waits, a Deployment that does not progress, a Service without endpoints, a claim, a
// namespace or a node that hangs.
//
// It is pure: it works on what the API stores, handed to it as a Cluster, and asks nobody.
// For a pod that waits for a node it has the real scheduler decide, on the cluster as it is
// and on altered copies of it; a change is suggested only if it was found to help. What
// cannot be found out that way it says.
package why

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cluster is what the API stores, as far as somebody could read it.
type Cluster struct {
	Now         time.Time
	Nodes       []*corev1.Node
	Pods        []*corev1.Pod // of all namespaces: a pod waits because of others
	Namespaces  []*corev1.Namespace
	Claims      []*corev1.PersistentVolumeClaim
	Volumes     []*corev1.PersistentVolume
	Classes     []*storagev1.StorageClass
	Drivers     []*storagev1.CSIDriver
	DriverNodes []*storagev1.CSINode
	Room        []*storagev1.CSIStorageCapacity
	// What there is of devices, and who has them, of all namespaces.
	DeviceClaims    []*resourcev1.ResourceClaim
	DeviceTemplates []*resourcev1.ResourceClaimTemplate
	DeviceClasses   []*resourcev1.DeviceClass
	DeviceSlices    []*resourcev1.ResourceSlice
	DeviceTaints    []*resourcev1.DeviceTaintRule

	Services     []*corev1.Service
	Slices       []*discoveryv1.EndpointSlice
	Deployments  []*appsv1.Deployment
	ReplicaSets  []*appsv1.ReplicaSet
	StatefulSets []*appsv1.StatefulSet
	DaemonSets   []*appsv1.DaemonSet
	Jobs         []*batchv1.Job
	Controllers  []*corev1.ReplicationController
	Quotas       []*corev1.ResourceQuota
	Budgets      []*policyv1.PodDisruptionBudget
	Policies     []*networkingv1.NetworkPolicy
	Groups       []*schedulingv1beta1.PodGroup
	Events       []*corev1.Event // of the object's namespace
	// Held are the objects of a namespace that goes away which somebody holds by a finalizer.
	Held []Held
	// Refusals says which plugin gave which reason, as the trace has it.
	Refusals map[string]string
	// Partial: not all nodes or not all pods could be read. What the scheduler would decide
	// is not tried then.
	Partial bool
	// Unread says what could not be read, and so is not known.
	Unread []string
}

// Held is an object that waits for its finalizers.
type Held struct {
	Resource, Name string
	Finalizers     []string
}

// Answer says why.
type Answer struct {
	Object string `json:"object"` // kind/name
	// Namespace is empty for what has none.
	Namespace string `json:"namespace,omitempty"`
	// Well: nothing keeps the object from getting on.
	Well bool `json:"well"`
	// Cause in one sentence.
	Cause string `json:"cause"`
	// Because are sentences that say more.
	Because []string `json:"because,omitempty"`
	// Refused is which plugin keeps a pod from how many nodes.
	Refused []Refusal `json:"refused,omitempty"`
	// Changes that would let it go on, those that change least first.
	Changes []Change `json:"changes,omitempty"`
	// Unknown is what could not be found out.
	Unknown []string `json:"unknown,omitempty"`
}

// Refusal is a filter's reason with the nodes that it holds for.
type Refusal struct {
	Plugin string   `json:"plugin,omitempty"`
	Reason string   `json:"reason"`
	Nodes  []string `json:"nodes"`
}

// Change would let the object go on.
type Change struct {
	What    string `json:"what"`
	Command string `json:"command"`
	// Tried: the scheduler placed the pod on a copy of the cluster with this change.
	Tried bool `json:"tried"`
}

// Kinds that can be asked about.
var kinds = map[string]func(*explainer, string) *Answer{
	"pod": (*explainer).pod, "deployment": (*explainer).deployment, "replicaset": (*explainer).replicaSet,
	"statefulset": (*explainer).statefulSet, "daemonset": (*explainer).daemonSet, "job": (*explainer).job,
	"service": (*explainer).service, "persistentvolumeclaim": (*explainer).claim, "namespace": (*explainer).namespace,
	"node":          (*explainer).node,
	"networkpolicy": (*explainer).networkPolicy,
	"podgroup":      (*explainer).podGroup,
}

var shortNames = map[string]string{
	"po": "pod", "deploy": "deployment", "rs": "replicaset", "sts": "statefulset", "ds": "daemonset", "svc": "service",
	"pvc": "persistentvolumeclaim", "ns": "namespace", "no": "node", "netpol": "networkpolicy", "networkpolicies": "networkpolicy",
}

// Kind is the kind that a word means: its name, in the plural or short.
func Kind(word string) (string, error) {
	word = strings.ToLower(word)
	for _, candidate := range []string{word, shortNames[word], strings.TrimSuffix(word, "s")} {
		if kinds[candidate] != nil {
			return candidate, nil
		}
	}
	var known []string
	for kind := range kinds {
		known = append(known, kind)
	}
	slices.Sort(known)
	return "", fmt.Errorf("kind %q: expected one of %s", word, strings.Join(known, ", "))
}

// Explain answers about one object. kind is one that Kind returned.
func Explain(ctx context.Context, c *Cluster, kind, namespace, name string) (*Answer, error) {
	explain, ok := kinds[kind]
	if !ok {
		return nil, fmt.Errorf("kind %q is none of those that can be explained", kind)
	}
	if kind == "namespace" || kind == "node" {
		namespace = ""
	}
	a := explain(&explainer{Cluster: c, ctx: ctx, in: namespace}, name)
	if a == nil {
		return nil, fmt.Errorf("there is no %s %s", kind, strings.TrimPrefix(namespace+"/"+name, "/"))
	}
	a.Object, a.Namespace, a.Unknown = kind+"/"+name, namespace, append(a.Unknown, c.Unread...)
	return a, nil
}

// Write prints an answer for people. The first line is the cause.
func (a *Answer) Write(w io.Writer) {
	fmt.Fprintf(w, "%s: %s\n", strings.TrimPrefix(a.Namespace+"/", "/")+a.Object, a.Cause)
	for _, b := range a.Because {
		fmt.Fprintf(w, "  %s\n", b)
	}
	for _, r := range a.Refused {
		fmt.Fprintf(w, "  %s: %s: %d nodes (%s)\n", cmp.Or(r.Plugin, "a plugin"), r.Reason, len(r.Nodes), some(r.Nodes))
	}
	if len(a.Changes) > 0 {
		fmt.Fprintln(w, "What would let it go on:")
	}
	for _, c := range a.Changes {
		tried := ""
		if c.Tried {
			tried = " (tried on a copy of the cluster)"
		}
		fmt.Fprintf(w, "  %s%s:\n    %s\n", c.What, tried, c.Command)
	}
	for _, u := range a.Unknown {
		fmt.Fprintf(w, "Not known: %s\n", u)
	}
}

// some are the first few of many.
func some(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:few], ", ") + fmt.Sprintf(" and %d more", len(names)-few)
}

// explainer is one question.
type explainer struct {
	*Cluster
	ctx context.Context //nolint:containedctx // an explainer lives for one call of Explain
	in  string          // the namespace
}

func well(format string, args ...any) *Answer {
	return &Answer{Well: true, Cause: fmt.Sprintf(format, args...)}
}

func stuck(format string, args ...any) *Answer { return &Answer{Cause: fmt.Sprintf(format, args...)} }

// or suggests a change that was not tried.
func (a *Answer) or(what, format string, args ...any) *Answer {
	a.Changes = append(a.Changes, Change{What: what, Command: fmt.Sprintf(format, args...)})
	return a
}

func (a *Answer) because(format string, args ...any) *Answer {
	a.Because = append(a.Because, fmt.Sprintf(format, args...))
	return a
}

// of is the answer of an object that waits for another one.
func (a *Answer) of(format string, args ...any) *Answer {
	a.Cause = fmt.Sprintf(format, args...) + ": " + a.Cause
	return a
}

// find an object by namespace and name; nil where there is none.
func find[T metav1.Object](all []T, namespace, name string) (found T, ok bool) {
	for _, o := range all {
		if o.GetNamespace() == namespace && o.GetName() == name {
			return o, true
		}
	}
	return found, false
}

// last is the youngest event about an object with one of the reasons.
func (e *explainer) last(kind, namespace, name string, reasons ...string) *corev1.Event {
	var found *corev1.Event
	for _, ev := range e.Events {
		o := ev.InvolvedObject
		if o.Kind == kind && o.Namespace == namespace && o.Name == name && slices.Contains(reasons, ev.Reason) &&
			(found == nil || when(ev).After(when(found))) {
			found = ev
		}
	}
	return found
}

func when(ev *corev1.Event) time.Time {
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
