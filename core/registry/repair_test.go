// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/registry"
)

// Services implements services.Cluster.
func (w *world) Services(ctx context.Context) ([]corev1.Service, error) {
	return everything[*corev1.Service](ctx, w, schema.GroupResource{Resource: "services"})
}

// IPAddresses implements services.Cluster.
func (w *world) IPAddresses(ctx context.Context) ([]networkingv1.IPAddress, error) {
	return everything[*networkingv1.IPAddress](ctx, w, schema.GroupResource{Group: "networking.k8s.io", Resource: "ipaddresses"})
}

func everything[P interface {
	*T
	runtime.Object
	metav1.Object
}, T any](ctx context.Context, w *world, gr schema.GroupResource) ([]T, error) {
	r, _ := w.For(gr)
	l, err := r.List(ctx, request("", "", "", nil), registry.ListOptions{})
	if err != nil {
		return nil, err
	}
	var out []T
	for _, item := range l.Items {
		m, err := item.Object.Meta()
		if err != nil {
			return nil, err
		}
		o, err := registry.Read[P](ctx, w.Set, gr, m.GetNamespace(), m.GetName())
		if err != nil {
			return nil, err
		}
		out = append(out, *o)
	}
	return out, nil
}

// A Service goes without its server's knowledge: its address and port are free again.
func TestClaimsOfALostServiceAreFreed(t *testing.T) {
	w := newWorld(t)
	services := w.registry(t, "", "services")
	body := func(name string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"type":"NodePort","clusterIP":"10.96.7.7","ports":[{"port":80,"nodePort":30777}]}}`
	}
	create(t, services, "ns", body("lost"))
	const key = "/registry/services/specs/ns/lost"
	kv, err := w.store.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Delete(t.Context(), key, kv.ModRevision); err != nil {
		t.Fatal(err)
	}
	if _, err := services.Create(t.Context(), request("ns", "", body("next"), &metav1.CreateOptions{})); err == nil {
		t.Fatal("the claims went with the Service: there is nothing to repair")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	var repairing sync.WaitGroup
	defer repairing.Wait()
	defer cancel()
	repairing.Go(func() { w.RepairServices(ctx, w, time.Millisecond) })
	for {
		_, err := services.Create(ctx, request("ns", "", body("next"), &metav1.CreateOptions{}))
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("what nobody uses stays claimed: %v", err)
		}
	}
}
