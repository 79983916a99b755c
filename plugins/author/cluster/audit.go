// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/author"
)

// Finding is what a validating plugin thinks of one stored object.
type Finding struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Namespace  string   `json:"namespace,omitempty"`
	Name       string   `json:"name"`
	UID        string   `json:"uid,omitempty"`
	Result     string   `json:"result"` // pass, fail, warn or error
	Message    string   `json:"message,omitempty"`
	Field      string   `json:"field,omitempty"`
	Warnings   []string `json:"warnings,omitempty"`
}

// Audit is what came of asking about everything that is stored.
type Audit struct {
	Plugin   string         `json:"plugin"`
	Digest   string         `json:"digest"`
	Time     time.Time      `json:"time"`
	Summary  map[string]int `json:"summary"` // by result
	Findings []Finding      `json:"findings"`
	// Unread are the resources that could not be listed, with the reason.
	Unread []string `json:"unread,omitempty"`
}

// Results of a finding.
const (
	ResultPass  = "pass"
	ResultFail  = "fail"
	ResultWarn  = "warn"
	ResultError = "error"
)

// RunAudit asks a validating plugin about every object of a cluster (of one
// namespace, where it is given) that it matches, as if the object were made anew now. It reads
// through the API, in pages, and changes nothing. progress is told what is being read.
func RunAudit(ctx context.Context, cfg author.Config, cl *Cluster, namespace string, progress func(string)) (out *Audit, err error) {
	cfg.Objects, cfg.Namespaces = cl, cl.Namespaces
	p, err := author.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close(ctx)) }()
	if !p.TakesPartAt(abi.AdmissionValidate) {
		return nil, fmt.Errorf("plugin %q takes no part at %s; it does at %s: only validating plugins can be asked about what is stored", p.Name(), abi.AdmissionValidate, p.PointNames())
	}
	resources, err := cl.resources()
	if err != nil {
		return nil, err
	}
	out = &Audit{Plugin: p.Name(), Digest: p.Digest(), Time: time.Now().UTC(), Summary: map[string]int{}}
	for _, r := range resources {
		operation := wouldSee(p, r)
		if operation == "" || !slices.Contains([]string(r.Verbs), "list") || namespace != "" && !r.Namespaced {
			continue
		}
		gvr := schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Name}
		progress(fmt.Sprintf("reading %s", gvr.GroupResource()))
		err := cl.each(ctx, gvr, namespace, func(tree map[string]any) error {
			return out.judge(ctx, p, gvr, operation, tree)
		})
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			out.Unread = append(out.Unread, err.Error())
		}
	}
	return out, nil
}

// wouldSee says by which operation the plugin's rules cover a resource; "" = by none.
func wouldSee(p *author.Plugin, r metav1.APIResource) admission.Operation {
	for _, op := range []admission.Operation{admission.Create, admission.Update} {
		request := &admission.Request{
			Operation: op, Kind: schema.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind},
			Resource: schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Name},
		}
		if p.Handles(request) {
			return op
		}
	}
	return ""
}

func (a *Audit) judge(ctx context.Context, p *author.Plugin, gvr schema.GroupVersionResource, op admission.Operation,
	tree map[string]any,
) error {
	doc := map[string]any{
		"object": tree, "operation": string(op),
		"resource": map[string]any{"group": gvr.Group, "version": gvr.Version, "resource": gvr.Resource},
		"userInfo": map[string]any{"username": "wasmplane:plugin-audit", "groups": []any{"system:authenticated"}},
	}
	if op == admission.Update {
		doc["oldObject"] = tree
	}
	d, err := p.Ask(ctx, abi.AdmissionValidate, doc)
	if err != nil {
		return err
	}
	if d.Decision == author.NotAsked {
		return nil
	}
	f := finding(tree)
	f.Warnings = d.Warnings
	switch {
	case d.Decision == author.Deny:
		f.Result, f.Message, f.Field = ResultFail, d.Message, d.Field
	case d.Decision == author.Failed:
		f.Result, f.Message = ResultError, d.Error
	case len(d.Warnings) > 0:
		f.Result, f.Message = ResultWarn, d.Warnings[0]
	default:
		f.Result = ResultPass
	}
	a.Summary[f.Result]++
	a.Findings = append(a.Findings, f)
	return nil
}

func finding(tree map[string]any) Finding {
	text := func(m map[string]any, key string) string { s, _ := m[key].(string); return s }
	meta, _ := tree["metadata"].(map[string]any)
	return Finding{
		APIVersion: text(tree, "apiVersion"), Kind: text(tree, "kind"),
		Namespace: text(meta, "namespace"), Name: text(meta, "name"), UID: text(meta, "uid"),
	}
}

// PolicyReports are the findings in the open format of the policy working group
// (wgpolicyk8s.io/v1alpha2): a PolicyReport for each namespace, a ClusterPolicyReport for what has none.
func (a *Audit) PolicyReports() map[string]any {
	by := map[string][]Finding{}
	for _, f := range a.Findings {
		by[f.Namespace] = append(by[f.Namespace], f)
	}
	var items []any
	for _, ns := range slices.Sorted(maps.Keys(by)) {
		items = append(items, a.report(ns, by[ns]))
	}
	if items == nil {
		items = []any{}
	}
	return map[string]any{"apiVersion": "v1", "kind": "List", "items": items}
}

func (a *Audit) report(namespace string, findings []Finding) map[string]any {
	kind, meta := "ClusterPolicyReport", map[string]any{
		"name": "wasmplane-" + a.Plugin, "labels": map[string]any{"app.kubernetes.io/managed-by": "wasmplane"},
	}
	if namespace != "" {
		kind, meta["namespace"] = "PolicyReport", namespace
	}
	summary := map[string]int{ResultPass: 0, ResultFail: 0, ResultWarn: 0, ResultError: 0, "skip": 0}
	var results []any
	for _, f := range findings {
		summary[f.Result]++
		resource := map[string]any{"apiVersion": f.APIVersion, "kind": f.Kind, "name": f.Name}
		for key, v := range map[string]string{"namespace": f.Namespace, "uid": f.UID} {
			if v != "" {
				resource[key] = v
			}
		}
		r := map[string]any{
			"source": "wasmplane", "policy": a.Plugin, "result": f.Result, "scored": true, "resources": []any{resource},
			"timestamp":  map[string]any{"seconds": a.Time.Unix(), "nanos": 0},
			"properties": map[string]any{"digest": a.Digest},
		}
		if f.Message != "" {
			r["message"] = f.Message
		}
		if f.Field != "" {
			r["rule"] = f.Field
		}
		results = append(results, r)
	}
	return map[string]any{"apiVersion": "wgpolicyk8s.io/v1alpha2", "kind": kind, "metadata": meta, "summary": summary, "results": results}
}
