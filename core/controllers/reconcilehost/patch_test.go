// SPDX-License-Identifier: Apache-2.0

package reconcilehost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

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

// TestADeletionIsGuarded by all that the plan says of the object: who wrote in between has the
// reconciler look again, and another object of the name is left alone.
func TestADeletionIsGuarded(t *testing.T) {
	w := newWorld(t, deployment("web", nil))
	h := start(t, w)
	var once sync.Once
	w.PrependReactor("delete", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
		conflict := false
		once.Do(func() { conflict = true })
		if conflict {
			return true, nil, apierrors.NewConflict(deployments.GroupResource(), "web", errors.New("the object has been modified"))
		}
		return false, nil, nil
	})
	deletes := &exposer{name: "deletes", plan: func(s controllers.Snapshot) (controllers.Plan, error) {
		if s.Primary == nil {
			return controllers.Plan{}, nil
		}
		return controllers.Plan{Delete: []controllers.Deletion{{
			Target:          controllers.Target{Kind: s.Primary.GroupVersionKind(), Name: s.Name, UID: string(s.Primary.GetUID())},
			ResourceVersion: s.Primary.GetResourceVersion(), Propagation: metav1.DeletePropagationForeground,
		}}}, nil
	}}
	if err := h.Set(deletes); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		_, err := w.Resource(deployments).Namespace("default").Get(context.WithoutCancel(t.Context()), "web", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading the Deployment, which is to be gone: %w", cmp.Or(err, errors.New("it is there")))
		}
		return nil
	})
	var tries int
	for _, action := range w.Actions() {
		d, ok := action.(clienttesting.DeleteActionImpl)
		if !ok {
			continue
		}
		tries++
		p := d.DeleteOptions.Preconditions
		if p == nil || p.UID == nil || *p.UID != "uid-web" || p.ResourceVersion == nil || *p.ResourceVersion != "1" ||
			*d.DeleteOptions.PropagationPolicy != metav1.DeletePropagationForeground {
			t.Errorf("deleted with %+v", d.DeleteOptions)
		}
	}
	if tries != 2 {
		t.Errorf("%d deletions, want one that met a conflict and one more", tries)
	}
	if s, _ := h.Status("deletes"); s.Failures != 0 {
		t.Errorf("a conflict counts as a failure: %+v", s)
	}
}
