// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/registry/view"
)

var _ admission.Resources = (*view.View)(nil)

func TestAViewRefusesReadsUntilTheRegistriesAreMade(t *testing.T) {
	contract, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	v := view.New(contract)
	configMap := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	for name, read := range map[string]func() error{
		"set":      func() error { _, err := v.Set(); return err },
		"registry": func() error { _, err := v.Registry(corev1.Resource("configmaps")); return err },
		"find":     func() error { _, err := v.Find(corev1.SchemeGroupVersion, "ConfigMap", ""); return err },
		"resource": func() error { _, err := v.ResourceOf(configMap); return err },
		"get":      func() error { _, err := v.Get(t.Context(), configMap, "default", "a"); return err },
		"list":     func() error { _, err := v.List(t.Context(), configMap, "default", labels.Everything()); return err },
		"state":    func() error { _, err := v.State(configMap); return err },
		"revision": func() error { _, err := v.Revision(); return err },
	} {
		if err := read(); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("%s: %v; want ServiceUnavailable", name, err)
		}
	}
	if _, known := v.Namespaced(configMap); known {
		t.Error("a kind is known before anything is served")
	}
	if e := v.Equivalents(corev1.SchemeGroupVersion.WithResource("configmaps"), ""); e != nil {
		t.Errorf("equivalents before anything is served: %v", e)
	}
	if _, err := v.Types(configMap); err != nil {
		t.Errorf("the schema of a built-in kind: %v", err)
	}
}
