// SPDX-License-Identifier: Apache-2.0

package journey_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/trace/journey"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)

// recorder makes spans at given milliseconds after noon.
type recorder struct {
	spans []trace.Span
	n     int
}

// span records name from one moment to another and returns its identifier.
func (r *recorder) span(parent, component, name string, from, to float64, attrs ...attribute.KeyValue) string {
	r.n++
	s := trace.Span{
		Trace: "t", ID: fmt.Sprintf("s%03d", r.n), Parent: parent, Name: name, Start: at(from), End: at(to),
		Attrs: map[string]string{string(trace.ComponentKey): component},
	}
	for _, a := range attrs {
		s.Attrs[string(a.Key)] = a.Value.String()
	}
	if s.Attrs["error"] != "" {
		s.Error = s.Attrs["error"]
		delete(s.Attrs, "error")
	}
	r.spans = append(r.spans, s)
	return s.ID
}

func at(ms float64) time.Time { return noon.Add(time.Duration(ms * float64(time.Millisecond))) }

func object(kind, name, uid, owner string) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		trace.KindKey.String(kind), trace.NamespaceKey.String("default"), trace.NameKey.String(name),
		trace.UIDKey.String(uid),
	}
	if owner != "" {
		attrs = append(attrs, trace.OwnerUIDKey.String(owner))
	}
	return attrs
}

func failure(text string) attribute.KeyValue { return attribute.String("error", text) }

func (r *recorder) apply(from float64, generation int64) {
	req := r.span("", "apiserver", trace.Request, from, from+4.2, append(object("Deployment", "web", "d1", ""),
		trace.VerbKey.String("patch"), trace.ResourceKey.String("deployments.apps"), trace.UserKey.String("admin"),
		trace.StatusKey.Int(201), trace.GenerationKey.Int64(generation))...)
	r.span(req, "apiserver", trace.Authenticate, from+0.1, from+0.2, trace.UserKey.String("admin"))
	r.span(req, "apiserver", trace.Authorize, from+0.2, from+0.25, trace.PluginKey.String("rbac"), trace.DecisionKey.String("allow"))
	r.span(req, "apiserver", trace.AdmissionMutate, from+1, from+1.1, trace.PluginKey.String("add-team"), trace.DecisionKey.String("patch"),
		trace.PatchKey.String(`[{"op":"add","path":"/metadata/labels/example.com~1team","value":"web"}]`), trace.FuelKey.Int64(1234))
	r.span(req, "apiserver", trace.AdmissionValidate, from+1.2, from+1.3, trace.PluginKey.String("no-latest"),
		trace.DecisionKey.String("allow"))
	r.span(req, "apiserver", trace.StoreWrite, from+2, from+3, trace.RevisionKey.Int64(100+generation))
}

// rollout is what controllers, scheduler and kubelet do with one apply.
func (r *recorder) rollout(from float64, rs string, pods ...string) {
	r.span("", "controllers", trace.Reconcile, from+8, from+10, append(object("Deployment", "web", "d1", ""),
		trace.ControllerKey.String("deployment"), trace.MessageKey.String("created replica set "+rs))...)
	r.span("", "apiserver", trace.Request, from+8.5, from+9.5, append(object("ReplicaSet", rs, rs, "d1"), trace.VerbKey.String("create"),
		trace.ResourceKey.String("replicasets.apps"),
		trace.UserKey.String("system:serviceaccount:kube-system:deployment-controller"), trace.StatusKey.Int(201))...)
	for i, p := range pods {
		t := from + 20*float64(i+1)
		pod := func(more ...attribute.KeyValue) []attribute.KeyValue { return append(object("Pod", p, p, rs), more...) }
		r.span("", "apiserver", trace.Request, t, t+2, pod(trace.VerbKey.String("create"), trace.ResourceKey.String("pods"),
			trace.UserKey.String("system:serviceaccount:kube-system:replicaset-controller"), trace.StatusKey.Int(201))...)
		s := r.span("", "scheduler", trace.Schedule, t+3, t+5, pod(trace.NodeKey.String("node-1"))...)
		r.span(s, "scheduler", trace.Filter, t+3.1, t+3.2,
			trace.NodesKey.String("2 of 3 nodes fit; left out: node-3: Insufficient cpu [NodeResourcesFit]"))
		r.span(s, "scheduler", trace.Score, t+3.2, t+3.3, trace.ScoresKey.String(`{"node-2":{"total":90,"NodeResourcesFit":90},"node-1":{"total":130,"NodeResourcesFit":90,"ImageLocality":40}}`))
		r.span(s, "scheduler", trace.Bind, t+3.4, t+4.9, trace.NodeKey.String("node-1"))
		r.span("", "kubelet", trace.Admit, t+6, t+6.1, pod(trace.PluginKey.String("node-policy"), trace.DecisionKey.String("allow"))...)
		r.span("", "kubelet", trace.Sandbox, t+7, t+120, pod()...)
		r.span("", "kubelet", trace.Image, t+120, t+121, pod(trace.ContainerKey.String("nginx"), trace.ImageKey.String("nginx:1.14.2"),
			trace.MessageKey.String("already present"))...)
		r.span("", "kubelet", trace.ContainerStart, t+130, t+200, pod(trace.ContainerKey.String("nginx"))...)
		r.span("", "apiserver", trace.Request, t+201, t+202, pod(trace.VerbKey.String("patch"), trace.ResourceKey.String("pods/status"),
			trace.UserKey.String("system:node:node-1"), trace.StatusKey.Int(200))...)
		r.span("", "kubelet", trace.Running, t+6, t+203, pod()...)
	}
}

func render(t *testing.T, j *journey.Journey, o journey.RenderOptions) string {
	t.Helper()
	var b strings.Builder
	if err := journey.Render(&b, j, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var deployment = trace.Query{Kind: "Deployment", Namespace: "default", Name: "web"}

func story(t *testing.T, r *recorder, q trace.Query) *journey.Journey {
	t.Helper()
	clock := noon.Add(-time.Hour)
	s, err := trace.NewStore(trace.StoreConfig{Now: func() time.Time { return clock }})
	if err != nil {
		t.Fatal(err)
	}
	s.Add(r.spans...)
	j, err := journey.Of(s, q)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// golden compares with testdata/NAME; UPDATE=1 writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (UPDATE=1 rewrites it); got:\n%s", path, got)
	}
}

func TestJourneyOfAnApply(t *testing.T) {
	r := &recorder{}
	r.apply(0, 1)
	r.rollout(0, "web-abc", "web-abc-1", "web-abc-2")
	golden(t, "apply.txt", render(t, story(t, r, deployment), journey.RenderOptions{Width: 110}))
}

func TestJourneyShowsTheLatestGeneration(t *testing.T) {
	r := &recorder{}
	r.apply(0, 1)
	r.rollout(0, "web-abc", "web-abc-1")
	r.apply(10_000, 2)
	r.rollout(10_000, "web-def", "web-def-1")
	r.span("", "apiserver", trace.Request, 10_100, 10_101, append(object("Pod", "web-abc-1", "web-abc-1", "web-abc"),
		trace.VerbKey.String("delete"), trace.ResourceKey.String("pods"), trace.StatusKey.Int(200))...)
	// A controller writes the Deployment, too, without a new generation.
	r.span("", "apiserver", trace.Request, 10_150, 10_151, append(object("Deployment", "web", "d1", ""), trace.VerbKey.String("update"),
		trace.ResourceKey.String("deployments.apps"),
		trace.UserKey.String("system:serviceaccount:kube-system:deployment-controller"), trace.StatusKey.Int(200),
		trace.GenerationKey.Int64(2))...)
	golden(t, "second.txt", render(t, story(t, r, deployment), journey.RenderOptions{Width: 110}))
	all := deployment
	all.All = true
	text := render(t, story(t, r, all), journey.RenderOptions{})
	for _, want := range []string{"web-abc-1", "web-def-1", "patch pods/status", "+10.00s"} {
		if !strings.Contains(text, want) {
			t.Errorf("with --all, %q is missing in\n%s", want, text)
		}
	}
}

func TestJourneyOfAScale(t *testing.T) {
	r := &recorder{}
	r.apply(0, 1)
	r.rollout(0, "web-abc", "web-abc-1")
	r.span("", "apiserver", trace.Request, 5000, 5001, trace.NamespaceKey.String("default"), trace.NameKey.String("web"),
		trace.KindKey.String("Scale"), trace.UIDKey.String("d1"),
		trace.VerbKey.String("patch"), trace.ResourceKey.String("deployments.apps/scale"), trace.UserKey.String("admin"),
		trace.StatusKey.Int(200))
	r.rollout(5000, "web-abc", "web-abc-2")
	j := story(t, r, deployment)
	if j.Kind != "Deployment" || !j.Start.Equal(at(5000)) || j.Outcome != "1 of 1 pods running, the last after 223ms" {
		t.Errorf("got %s from %v: %s", j.Kind, j.Start, j.Outcome)
	}
}

func TestJourneyOfARefusal(t *testing.T) {
	r := &recorder{}
	req := r.span("", "apiserver", trace.Request, 0, 3, trace.NamespaceKey.String("default"), trace.NameKey.String("web"),
		trace.VerbKey.String("create"), trace.ResourceKey.String("deployments.apps"), trace.UserKey.String("admin"), trace.StatusKey.Int(403),
		failure("Forbidden"))
	r.span(req, "apiserver", trace.AdmissionValidate, 1, 2, trace.PluginKey.String("no-latest"), trace.DecisionKey.String("deny"),
		trace.MessageKey.String("image nginx:latest has no fixed version\x1b[31m"), failure("denied"))
	j := story(t, r, deployment)
	golden(t, "refused.txt", render(t, j, journey.RenderOptions{Width: 110}))
	if strings.Contains(render(t, j, journey.RenderOptions{}), "\x1b") {
		t.Error("a plugin's message reaches the terminal as a control sequence")
	}
}

func TestJourneySaysWhatItDoesNotKnow(t *testing.T) {
	j := story(t, &recorder{}, deployment)
	if j.Root != nil || len(j.Unknown) != 1 || !strings.Contains(j.Unknown[0],
		"Nothing is recorded about deployment/web in namespace default") {
		t.Errorf("of nothing: %+v", j)
	}
	r := &recorder{} // a server that was started after the apply
	r.rollout(0, "web-abc", "web-abc-1")
	j = story(t, r, deployment)
	if j.Root == nil || !strings.Contains(strings.Join(j.Unknown, " "), "The request that made deployment/web in namespace default as it is now is not known: recording began at 2026-03-01 11:00:00") {
		t.Errorf("of a late start: %v", j.Unknown)
	}
	if j.Outcome != "1 of 1 pods running, the last after 215ms" {
		t.Errorf("outcome: %s", j.Outcome)
	}
}

// Who recreates an object under its name gets the journey of the new one.
func TestJourneyOfARecreatedObject(t *testing.T) {
	r := &recorder{}
	write := func(from float64, uid, verb string) {
		r.span("", "apiserver", trace.Request, from, from+1, append(object("ConfigMap", "c", uid, ""), trace.VerbKey.String(verb),
			trace.ResourceKey.String("configmaps"), trace.UserKey.String("admin"), trace.StatusKey.Int(200))...)
	}
	write(0, "u1", "create")
	write(10, "u1", "delete")
	write(20, "u2", "create")
	q := trace.Query{Kind: "configmaps", Namespace: "default", Name: "c"}
	j := story(t, r, q)
	if j.Kind != "ConfigMap" || j.Root.UID != "u2" || len(j.Root.Steps) != 1 {
		t.Errorf("got %+v", j.Root)
	}
	q.All = true
	if j = story(t, r, q); len(j.Root.Steps) != 3 {
		t.Errorf("with --all: %d steps, want 3", len(j.Root.Steps))
	}
	q.All, q.UID = false, "u1"
	if j = story(t, r, q); len(j.Root.Steps) != 2 {
		t.Errorf("by uid: %d steps, want 2", len(j.Root.Steps))
	}
}
