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
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/reply"
	"github.com/wasmplane/wasmplane/core/why/trial"
)

type (
	// Answer says why.
	Answer = reply.Answer
	// Cluster is what the API stores, as far as somebody could read it.
	Cluster = facts.Cluster
	// Held is an object that waits for its finalizers.
	Held = facts.Held
	// Refusal is a filter's reason with the nodes that it holds for.
	Refusal = trial.Refusal
	// Change would let the object go on.
	Change = trial.Change
)

// Kinds that can be asked about.
var kinds = map[string]func(*explainer, string) *Answer{
	"pod": (*explainer).pod, "deployment": (*explainer).deployment, "replicaset": (*explainer).replicaSet,
	"statefulset": (*explainer).statefulSet, "daemonset": (*explainer).daemonSet, "job": (*explainer).job,
	"service": (*explainer).service, "persistentvolumeclaim": (*explainer).claim, "namespace": (*explainer).namespace,
	"node":          (*explainer).node,
	"networkpolicy": (*explainer).networkPolicy, "clusternetworkpolicy": (*explainer).clusterPolicy,
	"podgroup": (*explainer).podGroup,
	"cronjob":  (*explainer).cronJob, "resourcequota": (*explainer).quota, "resourceclaim": (*explainer).resourceClaim,
	"horizontalpodautoscaler": (*explainer).autoscaler, "poddisruptionbudget": (*explainer).budget, "ingress": (*explainer).ingress,
	"customresourcedefinition": (*explainer).definition, "apiservice": (*explainer).apiService,
	"validatingwebhookconfiguration": (*explainer).validatingWebhook, "mutatingwebhookconfiguration": (*explainer).mutatingWebhook,
}

// Other stands for every kind that has no name here: custom resources.
const Other = "resource"

// global are the kinds whose objects are in no namespace.
var global = []string{
	"namespace", "node", "customresourcedefinition", "apiservice", "validatingwebhookconfiguration", "mutatingwebhookconfiguration",
	"clusternetworkpolicy",
}

// Namespaced says whether a kind's objects are in namespaces.
func Namespaced(kind string) bool { return !slices.Contains(global, kind) }

var shortNames = map[string]string{
	"po": "pod", "deploy": "deployment", "rs": "replicaset", "sts": "statefulset", "ds": "daemonset", "svc": "service",
	"pvc": "persistentvolumeclaim", "ns": "namespace", "no": "node", "netpol": "networkpolicy", "networkpolicies": "networkpolicy",
	"cnp": "clusternetworkpolicy", "clusternetworkpolicies": "clusternetworkpolicy",
	"cj": "cronjob", "quota": "resourcequota", "hpa": "horizontalpodautoscaler", "pdb": "poddisruptionbudget",
	"ing": "ingress", "ingresses": "ingress", "crd": "customresourcedefinition", "crds": "customresourcedefinition",
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
	if kind == Other {
		return explainOther(ctx, c, namespace, name)
	}
	explain, ok := kinds[kind]
	if !ok {
		return nil, fmt.Errorf("kind %q is none of those that can be explained", kind)
	}
	if !Namespaced(kind) {
		namespace = ""
	}
	a := explain(&explainer{Cluster: c, ctx: ctx, in: namespace}, name)
	if a == nil {
		return nil, &NotFoundError{Kind: kind, Namespace: namespace, Name: name, Unread: c.Unread}
	}
	a.Object, a.Namespace, a.Unknown = kind+"/"+name, namespace, append(a.Unknown, c.Unread...)
	return a, nil
}

// NotFoundError is the error where there is no such object, as far as could be read.
type NotFoundError struct {
	Kind, Namespace, Name string
	Unread                []string
}

// Error implements error.
func (e *NotFoundError) Error() string {
	text := fmt.Sprintf("there is no %s %s", e.Kind, strings.TrimPrefix(e.Namespace+"/"+e.Name, "/"))
	if len(e.Unread) > 0 {
		text += ", as far as could be read (not known: " + strings.Join(e.Unread, "; ") + ")"
	}
	return text
}

// explainer is one question.
type explainer struct {
	*Cluster
	ctx context.Context //nolint:containedctx // an explainer lives for one call of Explain
	in  string          // the namespace
}
