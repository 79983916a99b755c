// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/admission/webhook"
	"github.com/wasmplane/wasmplane/core/object"
)

// widgets are a resource in two versions: what v1 calls size, v2 calls length.
type widgets struct{}

func (widgets) Equivalents(_ schema.GroupVersionResource, _ string) (out []admission.Equivalent) {
	for _, version := range []string{"v1", "v2"} {
		kind := schema.GroupVersionKind{Group: "example.com", Version: version, Kind: "Widget"}
		out = append(out, admission.Equivalent{
			Resource: kind.GroupVersion().WithResource("widgets"), Kind: kind,
			Convert: func(_ context.Context, o *object.Object) (*object.Object, error) {
				v, err := o.Versioned()
				if err != nil {
					return nil, err
				}
				u := v.DeepCopyObject().(*unstructured.Unstructured)
				from, to := "size", "length"
				if version == "v1" {
					from, to = to, from
				}
				if n, ok := u.Object[from]; ok {
					delete(u.Object, from)
					u.Object[to] = n
				}
				u.SetGroupVersionKind(kind)
				return object.FromVersioned(object.Unstructured{GVK: kind}, u), nil
			},
		})
	}
	return out
}

func widget() *admission.Request {
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	return &admission.Request{
		Operation: admission.Create, Kind: kind, Resource: kind.GroupVersion().WithResource("widgets"), Name: "w", User: admissiontest.Someone(),
		Object: object.FromTree(object.Unstructured{GVK: kind}, map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}, "size": int64(3),
		}),
	}
}

// A webhook for another version of the resource is shown that version, and its
// patch of it changes the version that was asked for.
func TestAWebhookSeesTheVersionThatItKnows(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *admissionv1.AdmissionReview) {
		var o map[string]any
		if err := json.Unmarshal(r.Request.Object.Raw, &o); err != nil || o["length"] != float64(3) || o["apiVersion"] != "example.com/v2" {
			http.Error(w, string(r.Request.Object.Raw), http.StatusBadRequest)
			return
		}
		patching(`[{"op":"replace","path":"/length","value":4}]`)(w, r)
	})
	configuration := s.mutating("x", func(h *admissionregistrationv1.MutatingWebhook) {
		h.Rules[0].APIGroups, h.Rules[0].APIVersions, h.Rules[0].Resources = []string{"example.com"}, []string{"v2"}, []string{"widgets"}
	})
	kube := fake.NewClientset(configuration)
	factory := informers.NewSharedInformerFactory(kube, 0)
	hooks, err := webhook.New(webhook.Config{Client: kube, Informers: factory, Authorizer: nobodyMay, Resources: widgets{}, Warm: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	factory.WaitForCacheSync(t.Context().Done())
	r := widget()
	if err := ask(t, hooks, r); err != nil {
		t.Fatal(err)
	}
	tree, err := r.Object.Tree()
	if err != nil || tree["size"] != int64(4) || tree["apiVersion"] != "example.com/v1" {
		t.Errorf("%v (%v)", tree, err)
	}
	q := s.questions()[0].Request
	if q.Resource.Version != "v2" || q.Kind.Version != "v2" || q.RequestResource.Version != "v1" || q.RequestKind.Version != "v1" {
		t.Errorf("asked about %v %v, requested %v %v", q.Resource, q.Kind, q.RequestResource, q.RequestKind)
	}
}
