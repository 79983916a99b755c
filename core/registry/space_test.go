// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/store"
)

// What a full store keeps back is for deletes, leases, states of nodes and
// administrators; nobody else's objects grow by it.
func TestWhatAFullStoreStillTakes(t *testing.T) {
	w := newWorld(t)
	maps, pods, leases, nodes := w.registry(t, "", "configmaps"), w.registry(t, "", "pods"), w.registry(t, "coordination.k8s.io",
		"leases"), w.registry(t, "", "nodes")
	create(t, maps, "a", `{"metadata":{"name":"held","finalizers":["example.com/x"]}}`)
	create(t, maps, "a", `{"metadata":{"name":"plain"}}`)
	create(t, leases, "a", `{"metadata":{"name":"mine"}}`)
	create(t, nodes, "", `{"metadata":{"name":"n1"}}`)
	create(t, pods, "a", `{"metadata":{"name":"p"},"spec":{"nodeName":"n1","containers":[{"name":"c","image":"x"}]}}`)
	w.room = func(x store.Write) error {
		if x.Reserved {
			return nil
		}
		return &store.FullError{Limit: store.Quota, Bytes: 8, Bound: 7}
	}
	as := func(r *registry.Request, name string, groups ...string) *registry.Request {
		r.User = &user.DefaultInfo{Name: name, Groups: groups}
		return r
	}
	sub := func(r *registry.Request, subresource string) *registry.Request {
		r.Subresource = subresource
		return r
	}
	merge := types.MergePatchType
	large := strings.Repeat("x", 8<<10)
	taken := map[string]error{}
	refused := map[string]error{}
	_, refused["a tenant's create"] = maps.Create(t.Context(), request("a", "", `{"metadata":{"name":"new"}}`, &metav1.CreateOptions{}))
	_, refused["a tenant's update"] = maps.Patch(t.Context(), patch("a", "plain", merge, `{"data":{"a":"b"}}`))
	_, refused["a component's create"] = maps.Create(t.Context(), as(request("a", "", `{"metadata":{"name":"new"}}`, &metav1.CreateOptions{}),
		"system:kube-controller-manager"))
	_, refused["a tenant's status"] = pods.Patch(t.Context(), sub(patch("a", "p", merge, `{"status":{"message":"x"}}`), "status"))
	_, refused["a lease made large"] = leases.Patch(t.Context(), patch("a", "mine", merge, `{"metadata":{"annotations":{"a":"`+large+`"}}}`))
	_, taken["an administrator's create"] = maps.Create(t.Context(),
		as(request("a", "", `{"metadata":{"name":"new"}}`, &metav1.CreateOptions{}), "ann", "admins"))
	_, taken["a tenant's lease"] = leases.Patch(t.Context(), patch("a", "mine", merge, `{"spec":{"holderIdentity":"me"}}`))
	_, taken["a node's status"] = pods.Patch(t.Context(), as(sub(patch("a", "p", merge, `{"status":{"message":"x"}}`), "status"),
		"system:node:n1", user.NodesGroup))
	_, taken["a delete"] = maps.Delete(t.Context(), request("a", "plain", "", &metav1.DeleteOptions{}))
	_, taken["the mark of a deletion"] = maps.Delete(t.Context(), request("a", "held", "", &metav1.DeleteOptions{}))
	_, refused["growth of what is being deleted"] = maps.Patch(t.Context(),
		patch("a", "held", merge, `{"data":{"a":"`+strings.Repeat("x", 300)+`"}}`))
	_, taken["the end of a finalizer"] = maps.Patch(t.Context(), patch("a", "held", merge, `{"metadata":{"finalizers":null}}`))
	for what, err := range taken {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range refused {
		if code := statusCode(err); code != http.StatusInsufficientStorage || !strings.Contains(err.Error(), store.Quota) {
			t.Errorf("%s: %v (%d), want 507 that names %s", what, err, code, store.Quota)
		}
	}

	// A namespace above its share is told as by a quota, with the limit's name.
	w.room = func(x store.Write) error {
		if x.Namespace != "a" || x.Bytes <= x.Before {
			return nil
		}
		return &store.FullError{Limit: store.NamespaceQuota, Namespace: "a", Bytes: 8, Bound: 7}
	}
	_, err := maps.Create(t.Context(), request("a", "", `{"metadata":{"name":"other"}}`, &metav1.CreateOptions{}))
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), store.NamespaceQuota) {
		t.Errorf("above the share: %v", err)
	}
	create(t, maps, "b", `{"metadata":{"name":"other"}}`)
}

func statusCode(err error) int32 {
	status, ok := err.(apierrors.APIStatus) // as it is handed to the client
	if !ok {
		return 0
	}
	return status.Status().Code
}

// The cache counts what each namespace's objects take.
func TestBytesOfANamespaceAreCounted(t *testing.T) {
	w := newWorld(t)
	maps := w.registry(t, "", "configmaps")
	create(t, maps, "a", `{"metadata":{"name":"one"},"data":{"x":"`+strings.Repeat("x", 5000)+`"}}`)
	result := create(t, maps, "b", `{"metadata":{"name":"two"}}`)
	caught := func(o registry.Result) {
		t.Helper()
		if o.Object == nil {
			return
		}
		if _, err := w.cache.Fresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	caught(result)
	a, b := w.cache.NamespaceBytes("a"), w.cache.NamespaceBytes("b")
	if a < 5000 || a > 6000 || b < 50 || b > 1000 {
		t.Errorf("namespaces take %d and %d", a, b)
	}
	result, err := maps.Patch(t.Context(), patch("a", "one", types.MergePatchType, `{"data":null}`))
	if err != nil {
		t.Fatal(err)
	}
	caught(result)
	if a := w.cache.NamespaceBytes("a"); a < 50 || a > 1000 {
		t.Errorf("after the patch the namespace takes %d", a)
	}
	if _, err := maps.Delete(t.Context(), request("a", "one", "", &metav1.DeleteOptions{})); err != nil {
		t.Fatal(err)
	}
	caught(result)
	if a := w.cache.NamespaceBytes("a"); a != 0 {
		t.Errorf("an empty namespace takes %d", a)
	}
}
