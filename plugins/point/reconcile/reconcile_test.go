// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point/pointtest"
)

var (
	hook = abi.Hook{
		Op: 1, Point: abi.Reconcile, Primary: &abi.Watch{Version: "v1", Resource: "configmaps", Kind: "ConfigMap"},
		Owned: []abi.Watch{{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}},
	}
	snapshot = controllers.Snapshot{
		Namespace: "shop", Name: "a", Now: time.Unix(1e9, 0),
		Primary: &unstructured.Unstructured{Object: map[string]any{"kind": "ConfigMap"}},
	}
)

func adapterOf(t *testing.T, mode manifest.Mode, answer string) controllers.Reconciler {
	t.Helper()
	guest := pointtest.Answers{"": answer}
	if answer == "fails" {
		guest = nil
	}
	return New(pointtest.Plugin(t, manifest.Entry{Mode: mode}, hook, guest), nil)
}

func TestAPlanIsCompletedFromThePrimary(t *testing.T) {
	got, err := adapterOf(t, manifest.Enforce, `{
		"apply": [{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"ports":[{"port":80}]}},
			{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"other"}}],
		"patch": [{"apiVersion":"apps/v1","kind":"Deployment","name":"d","subresource":"scale",
			"patch":[{"op":"replace","path":"/spec/replicas","value":2}]}],
		"delete": [{"apiVersion":"v1","kind":"Pod","name":"old","uid":"u"},
			{"apiVersion":"v1","kind":"Pod","name":"older","resourceVersion":"7","propagationPolicy":"Foreground"}],
		"status": {"ready": 3}, "requeueSeconds": 1.5,
		"conditions": [{"type":"Ready","status":"True","reason":"Done","message":"m"}],
		"events": [{"type":"Normal","reason":"Made","message":"n"}]}`).Reconcile(t.Context(), snapshot)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Apply) != 2 || got.Apply[0].GetNamespace() != "shop" || got.Apply[1].GetNamespace() != "other" {
		t.Errorf("applied: %v", got.Apply)
	}
	ports, _, err := unstructured.NestedSlice(got.Apply[0].Object, "spec", "ports")
	if err != nil || !reflect.DeepEqual(ports, []any{map[string]any{"port": int64(80)}}) {
		t.Errorf("ports %v (%v): numbers are to be integers, as everywhere", ports, err)
	}
	wantPatch := []controllers.Patch{{
		Target: controllers.Target{Kind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, Namespace: "shop", Name: "d"},
		JSON:   []byte(`[{"op":"replace","path":"/spec/replicas","value":2}]`), Subresource: "scale",
	}}
	if !reflect.DeepEqual(got.Patch, wantPatch) {
		t.Errorf("patches %+v, want %+v", got.Patch, wantPatch)
	}
	pod := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	wantDelete := []controllers.Deletion{
		{Target: controllers.Target{Kind: pod, Namespace: "shop", Name: "old", UID: "u"}},
		{Target: controllers.Target{Kind: pod, Namespace: "shop", Name: "older"}, ResourceVersion: "7", Propagation: metav1.DeletePropagationForeground},
	}
	if !reflect.DeepEqual(got.Delete, wantDelete) {
		t.Errorf("deletions %+v, want %+v", got.Delete, wantDelete)
	}
	if !reflect.DeepEqual(got.Status, map[string]any{"ready": int64(3)}) || got.Requeue != 1500*time.Millisecond {
		t.Errorf("status %v, again after %s", got.Status, got.Requeue)
	}
	if len(got.Conditions) != 1 || got.Conditions[0].Reason != "Done" || len(got.Events) != 1 || got.Events[0].Reason != "Made" {
		t.Errorf("conditions %v, events %v", got.Conditions, got.Events)
	}
}

func TestWhatHasNoEffect(t *testing.T) {
	const deletes = `{"delete":[{"apiVersion":"v1","kind":"Pod","name":"old"}]}`
	for name, tc := range map[string]struct {
		mode   manifest.Mode
		answer string
		fails  bool
	}{
		"no answer":                  {manifest.Enforce, "", false},
		"a plan that only warns":     {manifest.Warn, deletes, false},
		"a plan in the shadow":       {manifest.Shadow, deletes, false},
		"a failure":                  {manifest.Enforce, "fails", true},
		"an answer that is none":     {manifest.Enforce, "[]", true},
		"a version that is none":     {manifest.Enforce, `{"delete":[{"apiVersion":"a/b/c","kind":"Pod","name":"old"}]}`, true},
		"a propagation that is none": {manifest.Enforce, `{"delete":[{"apiVersion":"v1","kind":"Pod","name":"old","propagationPolicy":"Maybe"}]}`, true},
		"the same, of what patches":  {manifest.Enforce, `{"patch":[{"apiVersion":"a/b/c","kind":"Pod","name":"old"}]}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := adapterOf(t, tc.mode, tc.answer).Reconcile(t.Context(), snapshot)
			if (err != nil) != tc.fails || !reflect.DeepEqual(got, controllers.Plan{}) {
				t.Errorf("plan %+v, %v", got, err)
			}
			if tc.answer == "fails" && !errors.Is(err, pointtest.ErrGuest) {
				t.Errorf("the error %v hides its cause", err)
			}
		})
	}
}

// Inputs are fixed while a reconciler runs: a version with the same ones takes over, and
// another one is a new reconciler.
func TestTheAdapterStaysWhileInputsAreTheSame(t *testing.T) {
	p := pointtest.Plugin(t, manifest.Entry{}, hook, nil)
	first := New(p, nil)
	if New(p, first) != first {
		t.Error("a new adapter, for the same inputs")
	}
	other := hook
	other.Owned = nil
	if q := pointtest.Plugin(t, manifest.Entry{}, other, nil); New(q, first) == first {
		t.Error("the adapter of other inputs stayed")
	}
	want := controllers.Inputs{
		Primary: controllers.Watched{Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Kind: "ConfigMap"},
		Owned: []controllers.Watched{{
			Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
			Kind:     "Deployment",
		}},
	}
	if got := first.Inputs(); !reflect.DeepEqual(got, want) {
		t.Errorf("inputs %+v, want %+v", got, want)
	}
}
