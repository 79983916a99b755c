// SPDX-License-Identifier: Apache-2.0

// Package reconcile lets Wasm plugins be control loops: it is core's
// controllers.Reconciler over a plugin.
//
// The hook sees one snapshot (namespace, name, primary, owned, now) and answers
// a plan. Watching, queueing, retrying and writing are core's. A reconciler keeps no state, so
// that it costs nothing while nothing happens.
package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// New makes the adapter of a plugin; nil where it has no hook at reconcile now.
// before is the adapter made earlier, which stays where inputs have not changed:
// inputs are fixed while a reconciler runs.
func New(p *point.Plugin, before controllers.Reconciler) controllers.Reconciler {
	v := p.Current()
	if v == nil || v.Err != nil || v.Hook(abi.Reconcile) == nil {
		return nil
	}
	in := inputs(v)
	if before != nil && reflect.DeepEqual(before.Inputs(), in) {
		return before
	}
	return &adapter{plugin: p, inputs: in}
}

type adapter struct {
	plugin *point.Plugin
	inputs controllers.Inputs
}

// Name implements controllers.Reconciler.
func (a *adapter) Name() string { return a.plugin.Name() }

// Inputs implements controllers.Reconciler.
func (a *adapter) Inputs() controllers.Inputs { return a.inputs }

func inputs(v *point.Version) controllers.Inputs {
	h := v.Hook(abi.Reconcile)
	in := controllers.Inputs{Primary: watched(*h.Primary), ServiceAccount: v.Entry.Reconcile.ServiceAccount}
	for _, w := range h.Owned {
		in.Owned = append(in.Owned, watched(w))
	}
	return in
}

func watched(w abi.Watch) controllers.Watched {
	return controllers.Watched{
		Resource: schema.GroupVersionResource{Group: w.Group, Version: w.Version, Resource: w.Resource},
		Kind:     w.Kind, Selector: w.Selector,
	}
}

// document is the snapshot as hooks see it. primary is null when it is gone.
type document struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	Primary   map[string]any   `json:"primary"`
	Owned     []map[string]any `json:"owned"`
	Now       string           `json:"now"`
}

// Reconcile implements controllers.Reconciler.
func (a *adapter) Reconcile(ctx context.Context, s controllers.Snapshot) (controllers.Plan, error) {
	doc := &document{Namespace: s.Namespace, Name: s.Name, Owned: []map[string]any{}, Now: s.Now.UTC().Format(time.RFC3339)}
	if s.Primary != nil {
		doc.Primary = s.Primary.Object
	}
	for _, o := range s.Owned {
		doc.Owned = append(doc.Owned, o.Object)
	}
	c := a.plugin.Ask(ctx, abi.Reconcile, a.inputs.Primary.Kind, doc)
	if c == nil {
		return controllers.Plan{}, nil
	}
	var answer abi.PlanAnswer
	if c.Err == nil {
		var err error
		if answer, err = abi.ParsePlan(c.Answer); err != nil {
			c.Fail(err)
		}
	}
	outcome := point.Outcome{Decision: "no change"}
	if n := len(answer.Apply) + len(answer.Patch) + len(answer.Delete); n > 0 {
		outcome = point.Outcome{Decision: "plan", Message: summary(&answer), Span: string(abi.Reconcile)}
	} else if c.Err != nil {
		outcome.Span = string(abi.Reconcile)
	}
	c.Record(ctx, abi.Reconcile, outcome)
	if c.Err != nil {
		return controllers.Plan{}, fmt.Errorf("reconcile %s/%s: %w", s.Namespace, s.Name, c.Err)
	}
	if c.Mode() != manifest.Enforce {
		return controllers.Plan{}, nil
	}
	return plan(&answer, s.Namespace)
}

func summary(p *abi.PlanAnswer) string {
	var text string
	for _, o := range p.Apply {
		u := unstructured.Unstructured{Object: o}
		text += fmt.Sprintf("apply %s %s; ", u.GetKind(), u.GetName())
	}
	for _, d := range p.Patch {
		text += fmt.Sprintf("patch %s %s; ", d.Kind, d.Name)
	}
	for _, d := range p.Delete {
		text += fmt.Sprintf("delete %s %s; ", d.Kind, d.Name)
	}
	return text[:max(0, len(text)-2)]
}

// plan turns an answer into core's plan. Objects without a namespace go into the primary's.
func plan(a *abi.PlanAnswer, namespace string) (controllers.Plan, error) {
	p := controllers.Plan{Status: a.Status, Requeue: time.Duration(a.RequeueSeconds * float64(time.Second))}
	for _, o := range a.Apply {
		u := &unstructured.Unstructured{Object: abi.Integers(o).(map[string]any)}
		if u.GetNamespace() == "" && namespace != "" {
			u.SetNamespace(namespace)
		}
		p.Apply = append(p.Apply, u)
	}
	if p.Status != nil {
		p.Status = abi.Integers(p.Status).(map[string]any)
	}
	for _, d := range a.Patch {
		t, err := target(&d.ObjectTarget, namespace)
		if err != nil {
			return controllers.Plan{}, fmt.Errorf("the plan patches %s %s: %w", d.Kind, d.Name, err)
		}
		data, err := json.Marshal(d.Patch)
		if err != nil {
			return controllers.Plan{}, fmt.Errorf("the plan patches %s %s: %w", d.Kind, d.Name, err)
		}
		p.Patch = append(p.Patch, controllers.Patch{Target: t, Subresource: d.Subresource, JSON: data})
	}
	for _, d := range a.Delete {
		t, err := target(&d.ObjectTarget, namespace)
		if err != nil {
			return controllers.Plan{}, fmt.Errorf("the plan deletes %s %s: %w", d.Kind, d.Name, err)
		}
		p.Delete = append(p.Delete, controllers.Deletion{
			Target: t, ResourceVersion: d.ResourceVersion, Propagation: metav1.DeletionPropagation(d.PropagationPolicy),
		})
	}
	for _, c := range a.Conditions {
		p.Conditions = append(p.Conditions, metav1.Condition{
			Type: c.Type, Status: metav1.ConditionStatus(c.Status), Reason: c.Reason,
			Message: c.Message,
		})
	}
	for _, e := range a.Events {
		p.Events = append(p.Events, controllers.Event{Type: e.Type, Reason: e.Reason, Message: e.Message})
	}
	return p, nil
}

// target is an object that a plan names, in the primary's namespace where it names none.
func target(d *abi.ObjectTarget, namespace string) (controllers.Target, error) {
	gv, err := schema.ParseGroupVersion(d.APIVersion)
	if err != nil {
		return controllers.Target{}, err
	}
	if d.Namespace == "" {
		d.Namespace = namespace
	}
	return controllers.Target{Kind: gv.WithKind(d.Kind), Namespace: d.Namespace, Name: d.Name, UID: d.UID}, nil
}
