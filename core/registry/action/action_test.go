// SPDX-License-Identifier: Apache-2.0

package action_test

import (
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/registry/action"
)

// world is the registries of a server, and their actions.
type world struct {
	*action.Actions
	*registry.Set
}

func newWorld(t *testing.T) world {
	t.Helper()
	s := apiservertest.Start(t, apiservertest.Options{})
	return world{
		action.New(action.Config{Contract: s.Contract, Registries: s.Registries, Authorizer: s.Authorizer, Now: time.Now}),
		s.Registries,
	}
}

func (w world) registry(t *testing.T, gr schema.GroupResource) *registry.Registry {
	t.Helper()
	r, err := w.Builtin(gr)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func request(name, subresource, body string) *registry.Request {
	return &registry.Request{
		Version: "v1", Namespace: "ns", Name: name, Subresource: subresource,
		User:    &user.DefaultInfo{Name: "tester", Groups: []string{"testers"}},
		Options: &metav1.CreateOptions{}, Manager: "tester", Body: []byte(body), MediaType: object.JSON,
	}
}

func TestWhatNoActionIsForIsRefused(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		resource          schema.GroupResource
		subresource, verb string
	}{
		"another verb":        {corev1.Resource("pods"), "binding", "update"},
		"another subresource": {corev1.Resource("pods"), "status", "create"},
		"another resource":    {corev1.Resource("services"), "eviction", "create"},
		"no issuer":           {corev1.Resource("serviceaccounts"), "token", "create"},
	} {
		_, err := w.Do(t.Context(), w.registry(t, c.resource), c.verb, request("a", c.subresource, `{}`))
		if !apierrors.IsMethodNotSupported(err) {
			t.Errorf("%s: %v; want MethodNotAllowed", name, err)
		}
	}
}

func TestAReviewStoresNothing(t *testing.T) {
	w := newWorld(t)
	reviews := w.registry(t, schema.GroupResource{Group: authenticationv1.GroupName, Resource: "selfsubjectreviews"})
	o, err := w.Do(t.Context(), reviews, "create", request("", "", `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`))
	if err != nil {
		t.Fatal(err)
	}
	review, ok := o.(*authenticationv1.SelfSubjectReview)
	if !ok || review.Status.UserInfo.Username != "tester" || len(review.Status.UserInfo.Groups) != 1 || review.CreationTimestamp.IsZero() {
		t.Errorf("answered %+v", o)
	}
	tokens := w.registry(t, schema.GroupResource{Group: authenticationv1.GroupName, Resource: "tokenreviews"})
	if _, err := w.Do(t.Context(), tokens, "create", request("", "", `{"spec":{"token":"x"}}`)); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("a token review without a reviewer: %v", err)
	}
}

func TestAScaleIsPatchedThroughItsObject(t *testing.T) {
	w := newWorld(t)
	controllers := w.registry(t, corev1.Resource("replicationcontrollers"))
	body := `{"metadata":{"name":"rc"},"spec":{"replicas":1,"selector":{"a":"b"},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`
	if _, err := controllers.Create(t.Context(), request("", "", body)); err != nil {
		t.Fatal(err)
	}
	for kind, body := range map[types.PatchType]string{
		types.MergePatchType:          `{"spec":{"replicas":2}}`,
		types.JSONPatchType:           `[{"op":"replace","path":"/spec/replicas","value":3}]`,
		types.StrategicMergePatchType: `{"spec":{"replicas":4}}`,
	} {
		req := request("rc", "scale", body)
		req.PatchType, req.Options = kind, &metav1.PatchOptions{}
		o, err := w.Do(t.Context(), controllers, "patch", req)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		wanted := o.(*autoscalingv1.Scale).Spec.Replicas
		rc, err := registry.Read[*corev1.ReplicationController](t.Context(), w.Set, corev1.Resource("replicationcontrollers"), "ns", "rc")
		if err != nil || *rc.Spec.Replicas != wanted || wanted < 2 {
			t.Errorf("%s: the scale says %d, the object %d, %v", kind, wanted, *rc.Spec.Replicas, err)
		}
	}
	if _, err := w.Do(t.Context(), controllers,
		"update", request("rc", "scale", `{"metadata":{"name":"other"},"spec":{"replicas":1}}`)); !apierrors.IsBadRequest(err) {
		t.Errorf("a scale of another name: %v", err)
	}
	if _, err := w.Do(t.Context(), controllers, "get", request("none", "scale", "")); !apierrors.IsNotFound(err) {
		t.Errorf("the scale of nothing: %v", err)
	}
}
