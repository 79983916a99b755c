// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func terminating(name string) *corev1.Namespace {
	deleted := metav1.Now()
	return &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name, DeletionTimestamp: &deleted, Finalizers: []string{"x"}},
		Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
	}
}

func object(apiVersion, kind, name string, finalizers ...string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiVersion, Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: "play", Name: name, Finalizers: finalizers},
	}
}

var resources = []*metav1.APIResourceList{
	{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: metav1.Verbs{"delete", "deletecollection", "list"}},
		{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: metav1.Verbs{"delete", "deletecollection", "list"}},
		{Name: "bindings", Kind: "Binding", Namespaced: true, Verbs: metav1.Verbs{"create"}},
	}},
	{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{
		{Name: "widgets", Kind: "Widget", Namespaced: true, Verbs: metav1.Verbs{"delete", "list"}},
	}},
}

// world is a cluster whose objects with finalizers stay until told otherwise.
type world struct {
	*controllertest.Cluster
	metadata *metadatafake.FakeMetadataClient

	mu  sync.Mutex
	log []string
}

func newWorld(t *testing.T, discoverErr func() error, objects ...runtime.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	w := &world{Cluster: controllertest.New(terminating("play")), metadata: metadatafake.NewSimpleMetadataClient(scheme, objects...)}
	drop := func(gvr schema.GroupVersionResource, name string) {
		obj, err := w.metadata.Tracker().Get(gvr, "play", name)
		if err != nil {
			return
		}
		if m, ok := obj.(*metav1.PartialObjectMetadata); ok && len(m.Finalizers) == 0 {
			w.mu.Lock()
			w.log = append(w.log, gvr.Resource)
			w.mu.Unlock()
			_ = w.metadata.Tracker().Delete(gvr, "play", name)
		}
	}
	w.metadata.PrependReactor("delete", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if d, ok := a.(clienttesting.DeleteAction); ok {
			drop(a.GetResource(), d.GetName())
		}
		return true, nil, nil
	})
	w.metadata.PrependReactor("delete-collection", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		for _, obj := range objects {
			if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
				drop(a.GetResource(), m.Name)
			}
		}
		return true, nil, nil
	})
	c, err := New(w.Env(t), 2, w.metadata, func() ([]*metav1.APIResourceList, error) { return resources, discoverErr() })
	if err != nil {
		t.Fatal(err)
	}
	w.Start(t, c)
	return w
}

func (w *world) namespace(t *testing.T) *corev1.Namespace {
	t.Helper()
	ns, err := w.Client.CoreV1().Namespaces().Get(t.Context(), "play", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func condition(ns *corev1.Namespace, kind corev1.NamespaceConditionType) string {
	for _, c := range ns.Status.Conditions {
		if c.Type == kind {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return ""
}

// Pods go before everything else; what has a finalizer keeps the namespace, which
// says so; when that is gone the namespace is released.
func TestEmptied(t *testing.T) {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	w := newWorld(t, func() error { return nil },
		object("v1", "Pod", "p"), object("v1", "ConfigMap", "c"), object("example.com/v1", "Widget", "w", "example.com/wait"))
	controllertest.Eventually(t, func() error {
		ns := w.namespace(t)
		want := "True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: example.com/wait in 1 resource instances"
		if got := condition(ns, corev1.NamespaceFinalizersRemaining); got != want {
			return errors.New(got)
		}
		if got := condition(ns, corev1.NamespaceContentRemaining); got != "True SomeResourcesRemain: Some resources are remaining: widgets.example.com has 1 resource instances" {
			return errors.New(got)
		}
		return nil
	})
	w.mu.Lock()
	if !slices.Contains(w.log, "configmaps") || w.log[0] != "pods" {
		t.Errorf("deleted in this order: %v", w.log)
	}
	w.mu.Unlock()
	if n := len(w.namespace(t).Spec.Finalizers); n != 1 {
		t.Fatal("released with content in it")
	}
	if err := w.metadata.Tracker().Delete(widgets, "play", "w"); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		ns, err := w.Client.CoreV1().Namespaces().Get(t.Context(), "play", metav1.GetOptions{})
		if apierrors.IsNotFound(err) || (err == nil && len(ns.Spec.Finalizers) == 0) {
			return nil
		}
		return fmt.Errorf("finalizers %v, %w", ns.Spec.Finalizers, err)
	})
}

// As long as some group cannot be discovered, it may hold something.
func TestDiscoveryFailureKeeps(t *testing.T) {
	w := newWorld(t, func() error { return errors.New("metrics.k8s.io is not there") })
	controllertest.Eventually(t, func() error {
		got := condition(w.namespace(t), corev1.NamespaceDeletionDiscoveryFailure)
		if got != "True DiscoveryFailed: metrics.k8s.io is not there" {
			return errors.New(got)
		}
		return nil
	})
	if len(w.namespace(t).Spec.Finalizers) != 1 {
		t.Error("released")
	}
}
