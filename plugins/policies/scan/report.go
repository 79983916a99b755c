// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// Report is what policies have against one object, and how many have nothing.
type Report struct {
	About  Reference
	Passed int
	items  []finding
	sum    uint64
}

// ID names a report among all: the object's namespace and UID.
func (r *Report) ID() string { return id(&r.About) }

func id(about *Reference) string { return about.Namespace + "/" + about.UID }

// Labels and annotations of reports.
const (
	ManagedBy = "app.kubernetes.io/managed-by"
	managedBy = "wasmplane"
)

// mostResults is how many results a report has at most.
const mostResults = 200

// report brings the report about an object up to what is remembered of it.
func (s *Scanner) report(ctx context.Context, o *object) {
	if s.cfg.Reports == 0 {
		return
	}
	var want *Report
	if len(o.Findings) > 0 && o.About != nil && o.About.UID != "" {
		want = o.report()
	}
	switch {
	case want == nil && o.Written == 0:
		return
	case want == nil:
		if o.About == nil || s.written(ctx, o, s.cfg.Sink.Remove(ctx, id(o.About))) {
			s.count(o, -1)
			o.Written, o.About = 0, nil
			s.changed = true
		}
		return
	case want.sum == o.Written && s.known[want.ID()]:
		return
	case o.Written == 0 && s.reports >= s.cfg.Reports:
		s.tooMany(ctx, "", s.cfg.Reports)
		return
	case o.Written == 0 && s.cfg.Share > 0 && o.About.Namespace != "" && s.of[o.About.Namespace] >= s.cfg.Share:
		s.tooMany(ctx, o.About.Namespace, s.cfg.Share)
		return
	}
	if s.written(ctx, o, s.cfg.Sink.Write(ctx, want)) {
		if o.Written == 0 {
			s.count(o, 1)
		}
		o.Written, s.changed = want.sum, true
		s.known[want.ID()] = true
	}
}

// count counts the report about an object.
func (s *Scanner) count(o *object, n int) {
	s.reports += n
	if o.About != nil {
		s.of[o.About.Namespace] += n
	}
}

func (s *Scanner) tooMany(ctx context.Context, namespace string, most int) {
	if s.full[namespace] {
		return
	}
	s.full[namespace] = true
	s.cfg.Logger.WarnContext(ctx, "there are as many policy reports as there may be; further objects have none", "namespace", namespace,
		"reports", most)
}

// written logs what could not be written; the next pass tries again.
func (s *Scanner) written(ctx context.Context, o *object, err error) bool {
	if err != nil && ctx.Err() == nil {
		s.cfg.Logger.WarnContext(ctx, "a policy report could not be written; it will be", "kind", o.About.Kind,
			"namespace", o.About.Namespace, "name", o.About.Name, "error", err)
	}
	return err == nil
}

func (o *object) report() *Report {
	r := &Report{About: *o.About, items: o.Findings}
	against := map[string]bool{}
	for _, f := range o.Findings {
		against[f.Key] = true
	}
	for i := range len(o.Asked) * 8 {
		if o.asked(i) {
			r.Passed++
		}
	}
	r.Passed -= len(against)
	r.sum = sumOf(r.About, r.Passed, r.items)
	return r
}

// Object is the report in an open format.
func (r *Report) Object(f Format, now time.Time) *unstructured.Unstructured {
	summary := map[string]any{"pass": int64(r.Passed), "fail": int64(0), "warn": int64(0), "error": int64(0), "skip": int64(0)}
	var results []any
	for i, item := range r.items {
		result := "fail"
		switch {
		case item.Failed:
			result = "error"
		case item.Info.Warns:
			result = "warn"
		}
		n, _ := summary[result].(int64)
		summary[result] = n + 1
		if i >= mostResults {
			continue
		}
		one := map[string]any{
			"source": item.Info.Source, "policy": item.Info.Policy, "result": result, "message": item.Message, "scored": true,
			"timestamp": map[string]any{"seconds": now.Unix(), "nanos": int64(0)},
		}
		for key, text := range map[string]string{"category": item.Info.Category, "severity": item.Info.Severity} {
			if text != "" {
				one[key] = text
			}
		}
		results = append(results, one)
	}
	scope := map[string]any{"apiVersion": r.About.APIVersion, "kind": r.About.Kind, "name": r.About.Name, "uid": r.About.UID}
	if r.About.Namespace != "" {
		scope["namespace"] = r.About.Namespace
	}
	o := &unstructured.Unstructured{Object: map[string]any{"scope": scope, "summary": summary, "results": results}}
	if f == OpenReports {
		o.Object["source"] = managedBy
	}
	o.SetAPIVersion(f.resource(r.About.Namespace).GroupVersion().String())
	o.SetKind(f.kind(r.About.Namespace))
	o.SetNamespace(r.About.Namespace)
	o.SetName(r.About.UID)
	o.SetLabels(map[string]string{ManagedBy: managedBy})
	o.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: r.About.APIVersion, Kind: r.About.Kind, Name: r.About.Name, UID: types.UID(r.About.UID),
	}})
	return o
}
