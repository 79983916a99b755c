// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/registry"
)

func TestAViewReadsObjectsWithTheirKind(t *testing.T) {
	w := newWorld(t)
	maps := w.registry(t, "", "configmaps")
	create(t, maps, "default", `{"metadata":{"name":"a","labels":{"is":"a"}}}`)
	create(t, maps, "default", `{"metadata":{"name":"b"}}`)
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")

	o, err := w.view.Get(t.Context(), kind, "default", "a")
	if err != nil {
		t.Fatal(err)
	}
	if got := o.GetObjectKind().GroupVersionKind(); got != kind {
		t.Errorf("the kind of what was read: %v", got)
	}
	if _, err := w.view.Get(t.Context(), kind, "default", "c"); !apierrors.IsNotFound(err) {
		t.Errorf("reading what does not exist: %v", err)
	}
	if _, err := w.view.Get(t.Context(), schema.GroupVersionKind{Group: "none", Version: "v1", Kind: "None"}, "",
		"c"); !apierrors.IsNotFound(err) {
		t.Errorf("reading a kind that is not served: %v", err)
	}
	if _, err := maps.List(t.Context(), &registry.Request{Version: "v1"}, registry.ListOptions{}); err != nil {
		t.Fatal(err) // a consistent list waits for the cache
	}
	all, err := w.view.List(t.Context(), kind, "default", labels.SelectorFromSet(labels.Set{"is": "a"}))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].(metav1.Object).GetName() != "a" || all[0].GetObjectKind().GroupVersionKind() != kind {
		t.Errorf("listed %v", all)
	}
	none, err := w.view.List(t.Context(), schema.GroupVersionKind{Group: "none", Version: "v1", Kind: "None"}, "", labels.Everything())
	if err != nil || none != nil {
		t.Errorf("listing a kind that is not served: %v, %v", none, err)
	}
	if namespaced, known := w.view.Namespaced(corev1.SchemeGroupVersion.WithKind("Node")); namespaced || !known {
		t.Errorf("nodes: namespaced %v, known %v", namespaced, known)
	}
	if _, err := w.view.Find(corev1.SchemeGroupVersion, "", "bindings"); !apierrors.IsNotFound(err) {
		t.Errorf("finding a resource that stores nothing: %v", err)
	}
}
