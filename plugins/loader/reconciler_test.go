// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/reconcilertest"
)

func TestWasmReconcilersKeepTheContract(t *testing.T) {
	web := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": "web", "namespace": "default", "annotations": map[string]any{"wasmplane.dev/expose": "80"}},
		"spec": map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
			"template": map[string]any{
				"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "ports": []any{map[string]any{"containerPort": int64(8080)}}}}},
			},
		},
	}}
	reconcilertest.Run(t, func(t *testing.T) controllers.Reconciler {
		// Several calls at a time: a failure shows, a busy machine does not.
		return loaded(t, "service-for-deployment", "limits: {deadline: 30s}").Reconcilers()[0]
	}, web)
}
