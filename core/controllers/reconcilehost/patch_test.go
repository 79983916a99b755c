// SPDX-License-Identifier: Apache-2.0

package reconcilehost

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

// TestAPlanPatchesWhatItDoesNotOwn, guarded by the object's UID: another object of the
// same name is left alone, and the reconciler's status says why.
func TestAPlanPatchesWhatItDoesNotOwn(t *testing.T) {
	theirs := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{
			"name": "shared", "namespace": "default", "uid": "uid-shared",
			"resourceVersion": "1",
		},
		"spec": map[string]any{"port": "80"},
	}}
	w := newWorld(t, deployment("web", nil), theirs)
	h := start(t, w)
	patches := func(uid string) func(controllers.Snapshot) (controllers.Plan, error) {
		return func(s controllers.Snapshot) (controllers.Plan, error) {
			return controllers.Plan{Patch: []controllers.Patch{{
				Target: controllers.Target{Kind: schema.GroupVersionKind{Version: "v1", Kind: "Service"}, Name: "shared", UID: uid},
				JSON:   []byte(`[{"op":"replace","path":"/spec/port","value":"` + s.Name + `"}]`),
			}}}, nil
		}
	}
	if err := h.Set(&exposer{name: "patcher", plan: patches("uid-shared")}); err != nil {
		t.Fatal(err)
	}
	port := func() (string, error) {
		s, err := w.Resource(services).Namespace("default").Get(context.WithoutCancel(t.Context()), "shared", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		p, _, _ := unstructured.NestedString(s.Object, "spec", "port")
		return p, nil
	}
	controllertest.Eventually(t, func() error {
		p, err := port()
		if err != nil || p != "web" {
			return fmt.Errorf("port %q, %w", p, err)
		}
		return nil
	})
	if err := h.Set(&exposer{name: "late", plan: patches("uid-of-another")}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		if s, ok := h.Status("late"); !ok || s.Failures == 0 {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
}
