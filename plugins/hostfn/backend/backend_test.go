// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"bytes"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/registry/view"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// A plugin that is loaded before the server is whole hears that, and no wrong answer.
func TestAServerThatStartsRefuses(t *testing.T) {
	objects := Cached{View: view.New(nil)}
	if _, err := objects.Find(t.Context(), schema.GroupVersion{Version: "v1"}, "Pod", ""); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("objects: %v", err)
	}
	access := &ChainAccess{}
	question := authorizationv1.SubjectAccessReviewSpec{
		User:                  "alice",
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/x", Verb: "get"},
	}
	if _, err := access.Review(t.Context(), question); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("authorizers: %v", err)
	}
	chain, err := authz.NewChain()
	if err != nil {
		t.Fatal(err)
	}
	access.Use(chain)
	if status, err := access.Review(t.Context(), question); err != nil || status.Allowed {
		t.Errorf("%+v, %v", status, err)
	}
}

// Two processes keep the state of one plugin: what the other wrote meanwhile stays.
func TestStateInAConfigMapIsMergedOnAConflict(t *testing.T) {
	kube := fake.NewClientset()
	s := ConfigMapState{Kube: kube}
	if kept, err := s.Sync(t.Context(), "a_b", nil); err != nil || len(kept) != 0 {
		t.Fatalf("%v, %v", kept, err)
	}
	if _, err := s.Sync(t.Context(), "a_b", map[string][]byte{"x": []byte("1"), "y": []byte("2")}); err != nil {
		t.Fatal(err)
	}
	conflicts := 1
	kube.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts--; conflicts < 0 {
			return false, nil, nil
		}
		other := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: stateName("a_b"), Namespace: manifest.StateNamespace},
			BinaryData: map[string][]byte{"x": []byte("1"), "y": []byte("2"), "z": []byte("3")},
		}
		if err := kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), other, manifest.StateNamespace); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewConflict(corev1.Resource("configmaps"), other.Name, nil)
	})
	kept, err := s.Sync(t.Context(), "a_b", map[string][]byte{"x": nil})
	if err != nil || len(kept) != 2 || !bytes.Equal(kept["y"], []byte("2")) || !bytes.Equal(kept["z"], []byte("3")) {
		t.Errorf("%q, %v", kept, err)
	}
}
