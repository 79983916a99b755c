// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/reply"
)

// patience is how long a controller may take to write a first status.
const patience = 10 * time.Second

// explainOther answers about an object of any kind, by the conventions that most controllers keep.
func explainOther(ctx context.Context, c *Cluster, namespace, name string) (*Answer, error) {
	if c.Object == nil {
		return nil, &NotFoundError{Kind: "object", Namespace: namespace, Name: name, Unread: c.Unread}
	}
	e := &explainer{Cluster: c, ctx: ctx, in: c.Object.GetNamespace()}
	a := e.custom(c.Object)
	a.Object, a.Namespace = strings.ToLower(c.Object.GetKind())+"/"+name, e.in
	a.Unknown = append(a.Unknown, c.Unread...)
	return a, nil
}

func (e *explainer) custom(o *unstructured.Unstructured) *Answer {
	resource := facts.ResourceOf(e.Definition, o)
	if at := o.GetDeletionTimestamp(); at != nil {
		format, words := "kubectl patch %s %s", []any{resource, o.GetName()}
		if e.in != "" {
			format, words = format+" -n %s", append(words, e.in)
		}
		return reply.Stuck("it is being deleted and waits for whoever set its finalizers %s", strings.Join(o.GetFinalizers(), ", ")).
			Or("take the finalizers off, if nobody is there to do it", format+` --type=merge -p '{"metadata":{"finalizers":null}}'`, words...)
	}
	if a := e.unobserved(o); a != nil {
		return a
	}
	if a := unmet(o); a != nil {
		if ev := e.Last(o.GetKind(), o.GetNamespace(), o.GetName(), reasons(e, o)...); ev != nil && ev.Message != a.Cause {
			a.More("the last warning about it: %s: %s", ev.Reason, ev.Message)
		}
		return a
	}
	if _, written, _ := unstructured.NestedMap(o.Object, "status"); !written { //nolint:errcheck // a status of another form is written
		return e.silent(o)
	}
	return reply.Well("nothing that its status says keeps it from getting on")
}

// reasons of the warnings about an object.
func reasons(e *explainer, o *unstructured.Unstructured) (out []string) {
	for _, ev := range e.Events {
		if ev.InvolvedObject.UID == o.GetUID() && ev.Type == "Warning" && ev.Reason != "Why" {
			out = append(out, ev.Reason)
		}
	}
	return out
}

// unobserved: its controller has not seen the last change.
func (e *explainer) unobserved(o *unstructured.Unstructured) *Answer {
	seen, ok, err := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	if err != nil || !ok || seen >= o.GetGeneration() {
		return nil
	}
	a := reply.Stuck("its controller has not seen the last change: it is at generation %d, and saw %d", o.GetGeneration(), seen)
	if who, at := facts.Writer(o.GetManagedFields()); who != "" {
		a.More("%s wrote its status, at %s for the last time", who, at)
	}
	return a
}

// faults are conditions that say what is wrong when they are True.
var faults = []string{"Failed", "Failure", "Stalled", "Degraded", "Error", "ReconcileError"}

// unmet is a condition that says what is wrong; nil = none does.
func unmet(o *unstructured.Unstructured) *Answer {
	all, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	if err != nil {
		return nil
	}
	var found map[string]any
	for _, one := range all {
		c, ok := one.(map[string]any)
		if !ok {
			continue
		}
		fault := slices.Contains(faults, fmt.Sprint(c["type"]))
		if fault && c["status"] == "True" || !fault && c["status"] == "False" {
			if found == nil || c["type"] == "Ready" || fault {
				found = c
			}
		}
	}
	if found == nil {
		return nil
	}
	said := fmt.Sprint(found["reason"])
	if m, ok := found["message"].(string); ok && m != "" {
		said += ": " + m
	}
	return reply.Stuck("its condition %s is %s: %s", found["type"], found["status"], said)
}

// silent: nobody has written a status.
func (e *explainer) silent(o *unstructured.Unstructured) *Answer {
	if !facts.HasStatus(e.Definition, o) {
		a := reply.Well("nothing is known against it")
		a.Unknown = append(a.Unknown, "whether a controller looks after it: objects of its kind have no status")
		return a
	}
	age := e.Now.Sub(o.GetCreationTimestamp().Time)
	if age < patience {
		return reply.Stuck("its controller has not written a status yet: it was made %d seconds ago", int(age.Seconds()))
	}
	a := reply.Stuck("its controller is silent: nobody has written its status since it was made, %s ago", age.Round(time.Second))
	writers := map[string]string{}
	for _, s := range e.Siblings {
		if who, at := facts.Writer(s.ManagedFields); who != "" && at > writers[who] {
			writers[who] = at
		}
	}
	for who, at := range writers {
		a.More("the status of others of its kind was written by %s, at %s for the last time", who, at)
	}
	if len(writers) == 0 {
		a.More("no other object of its kind has a status either: probably no controller for %s runs", facts.ResourceOf(e.Definition, o))
	}
	return a.Or("see what runs in the cluster, and whether its controller is there", "kubectl get deployments,statefulsets,daemonsets -A").
		Or("see which controllers in Wasm there are", "wasmplane plugin list")
}
