// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// budgets makes a PodDisruptionBudget for each Deployment.
type budgets struct{}

func (budgets) Name() string { return "budgets" }

func (budgets) Inputs() controllers.Inputs {
	return controllers.Inputs{
		Primary: controllers.Watched{
			Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
			Kind:     "Deployment",
		},
		Owned: []controllers.Watched{
			{Resource: schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}, Kind: "PodDisruptionBudget"},
		},
		ServiceAccount: "kube-system/budgets",
	}
}

func (budgets) Reconcile(_ context.Context, s controllers.Snapshot) (controllers.Plan, error) {
	if s.Primary == nil {
		return controllers.Plan{}, nil // what it owned is collected with it
	}
	selector, found, err := unstructured.NestedMap(s.Primary.Object, "spec", "selector")
	if err != nil || !found {
		return controllers.Plan{}, fmt.Errorf("deployment %s/%s has no selector", s.Namespace, s.Name)
	}
	return controllers.Plan{Apply: []*unstructured.Unstructured{{Object: map[string]any{
		"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
		"metadata": map[string]any{"name": s.Name, "namespace": s.Namespace},
		"spec":     map[string]any{"maxUnavailable": int64(1), "selector": selector},
	}}}}, nil
}

// A reconciler turns a snapshot into a plan. Watching, queueing, retrying and writing
// are its host's (package reconcilehost).
func ExampleReconciler() {
	var r controllers.Reconciler = budgets{}
	web := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "web", "namespace": "default"},
		"spec": map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": "web"}}},
	}}
	plan, err := r.Reconcile(context.Background(), controllers.Snapshot{Namespace: "default", Name: "web", Primary: web})
	for _, o := range plan.Apply {
		fmt.Println("apply", o.GetKind(), o.GetNamespace()+"/"+o.GetName())
	}
	fmt.Println("error:", err)
	// Output:
	// apply PodDisruptionBudget default/web
	// error: <nil>
}
