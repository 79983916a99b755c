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
	"unicode"

	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/trial"
)

type (
	// Cluster is what the API stores, as far as somebody could read it.
	Cluster = facts.Cluster
	// Held is an object that waits for its finalizers.
	Held = facts.Held
	// Refusal is a filter's reason with the nodes that it holds for.
	Refusal = trial.Refusal
	// Change would let the object go on.
	Change = trial.Change
)

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
	// Preemption is why no pods of lower priority are removed for a pod, by nodes.
	Preemption []Refusal `json:"preemption,omitempty"`
	// Changes that would let it go on, those that change least first.
	Changes []Change `json:"changes,omitempty"`
	// Unknown is what could not be found out.
	Unknown []string `json:"unknown,omitempty"`

	public string // see Public
}

// Public is the cause for everybody who reads events of the object's namespace, who may read less than
// whoever asked: without objects of other namespaces.
func (a *Answer) Public() string { return cmp.Or(a.public, a.Cause) }

// publicly says how much of the cause others may read.
func (a *Answer) publicly(format string, args ...any) *Answer {
	a.public = fmt.Sprintf(format, args...)
	return a
}

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

// Write prints an answer for people. The first line is the cause.
func (a *Answer) Write(w io.Writer) {
	write := func(format string, words ...any) {
		for i, word := range words {
			if text, ok := word.(string); ok {
				words[i] = printable(text)
			}
		}
		fmt.Fprintf(w, format, words...)
	}
	write("%s: %s\n", strings.TrimPrefix(a.Namespace+"/", "/")+a.Object, a.Cause)
	for _, b := range a.Because {
		write("  %s\n", b)
	}
	for _, r := range a.Refused {
		write("  %s: %s: %d nodes (%s)\n", cmp.Or(r.Plugin, "a plugin"), r.Reason, len(r.Nodes), facts.Some(r.Nodes))
	}
	for _, r := range a.Preemption {
		write("  preemption: %s: %d nodes (%s)\n", r.Reason, len(r.Nodes), facts.Some(r.Nodes))
	}
	if len(a.Changes) > 0 {
		write("What would let it go on:\n")
	}
	for _, c := range a.Changes {
		tried := ""
		if c.Tried {
			tried = " (tried on a copy of the cluster)"
		}
		write("  %s%s:\n    %s\n", c.What, tried, c.Command)
	}
	for _, u := range a.Unknown {
		write("Not known: %s\n", u)
	}
}

// explainer is one question.
type explainer struct {
	*Cluster
	ctx context.Context //nolint:containedctx // an explainer lives for one call of Explain
	in  string          // the namespace
}

// printable is what somebody wrote, on one line and without what a terminal obeys.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return unicode.ReplacementChar
	}, text)
}

func well(format string, args ...any) *Answer {
	return &Answer{Well: true, Cause: fmt.Sprintf(format, args...)}
}

func stuck(format string, args ...any) *Answer { return &Answer{Cause: fmt.Sprintf(format, args...)} }

// or suggests a change that was not tried.
func (a *Answer) or(what, format string, words ...any) *Answer {
	command, ok := facts.Command(format, words...)
	if !ok {
		a.Unknown = append(a.Unknown, "the command to "+what+": a name in it has characters that shells or programs would interpret")
		return a
	}
	a.Changes = append(a.Changes, Change{What: what, Command: command})
	return a
}

func (a *Answer) because(format string, args ...any) *Answer {
	a.Because = append(a.Because, fmt.Sprintf(format, args...))
	return a
}

// of is the answer of an object that waits for another one.
func (a *Answer) of(format string, args ...any) *Answer {
	if a.public != "" {
		a.public = fmt.Sprintf(format, args...) + ": " + a.public
	}
	a.Cause = fmt.Sprintf(format, args...) + ": " + a.Cause
	return a
}
