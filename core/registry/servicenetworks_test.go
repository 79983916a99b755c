// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/registry"
)

// ServiceCIDRs say which addresses Services get: those that are ready and stay.
func TestServiceCIDRsGiveAddresses(t *testing.T) {
	w := newWorld(t)
	services, ranges := w.registry(t, "", "services"), w.registry(t, "networking.k8s.io", "servicecidrs")
	try := func(name, ip string) error {
		t.Helper()
		_, err := services.Create(t.Context(), request("ns", "",
			fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"clusterIP":%q,"ports":[{"port":80}]}}`, name, ip), &metav1.CreateOptions{}))
		return err
	}
	judge := func(name, status string) {
		t.Helper()
		p := patch("", name, types.MergePatchType,
			`{"status":{"conditions":[{"type":"Ready","status":"`+status+`","reason":"Test","message":"",`+
				`"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
		p.Subresource = "status"
		if _, err := ranges.Patch(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		w.catchUp(t, ranges, name)
	}
	refused := func(err error) bool {
		return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "not in the valid range")
	}
	create(t, ranges, "", `{"metadata":{"name":"second","finalizers":["example.com/stay"]},"spec":{"cidrs":["203.0.113.0/24"]}}`)
	w.catchUp(t, ranges, "second")
	if err := try("early", "203.0.113.7"); !refused(err) {
		t.Errorf("of a range that nobody has judged: %v", err)
	}
	judge("second", "True")
	if err := try("a", "203.0.113.7"); err != nil {
		t.Errorf("of a range that is ready: %v", err)
	}
	judge("second", "False")
	if err := try("b", "203.0.113.8"); !refused(err) {
		t.Errorf("of a range that is not ready: %v", err)
	}
	judge("second", "True")
	if _, err := ranges.Delete(t.Context(), request("", "second", "", &metav1.DeleteOptions{})); err != nil {
		t.Fatal(err)
	}
	w.catchUp(t, ranges, "second")
	if err := try("c", "203.0.113.9"); !refused(err) {
		t.Errorf("of a range that is being deleted: %v", err)
	}
	if err := try("d", "10.96.0.9"); err != nil {
		t.Errorf("of the configured range, of which there is no object: %v", err)
	}
	create(t, ranges, "", `{"metadata":{"name":"kubernetes"},"spec":{"cidrs":["10.200.0.0/24"]}}`)
	w.catchUp(t, ranges, "kubernetes")
	if err := try("e", "10.96.0.10"); err != nil {
		t.Errorf("of the configured range, while nobody has judged the default one: %v", err)
	}
	judge("kubernetes", "True")
	if err := try("f", "10.96.0.11"); !refused(err) {
		t.Errorf("of the configured range, where the cluster has another one: %v", err)
	}
	if err := try("g", "10.200.0.11"); err != nil {
		t.Errorf("of the cluster's: %v", err)
	}
	if _, err := services.Delete(t.Context(), request("ns", "a", "", &metav1.DeleteOptions{})); err != nil {
		t.Fatal(err)
	}
	addresses := w.registry(t, "networking.k8s.io", "ipaddresses")
	if _, err := addresses.Get(t.Context(), request("", "203.0.113.7", "", nil), ""); !apierrors.IsNotFound(err) {
		t.Errorf("the address of a range that is leaving, after its Service: %v", err)
	}
}

// catchUp waits until the cache has a write.
func (w *world) catchUp(t *testing.T, r *registry.Registry, name string) {
	t.Helper()
	o, err := r.Get(t.Context(), request("", name, "", nil), "")
	if err != nil {
		t.Fatal(err)
	}
	// A read that is not older than the write waits for it.
	if _, err := r.Get(t.Context(), request("", name, "", nil), metaOf(t, o).GetResourceVersion()); err != nil {
		t.Fatal(err)
	}
}
