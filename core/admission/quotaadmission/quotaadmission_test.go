// SPDX-License-Identifier: Apache-2.0

package quotaadmission_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/admission/quotaadmission"
)

func limit(name string, hard, used int64) *corev1.ResourceQuota {
	h := corev1.ResourceList{"count/configmaps": *resource.NewQuantity(hard, resource.DecimalSI)}
	u := corev1.ResourceList{"count/configmaps": *resource.NewQuantity(used, resource.DecimalSI)}
	return &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "u", ResourceVersion: "1"},
		Spec:       corev1.ResourceQuotaSpec{Hard: h}, Status: corev1.ResourceQuotaStatus{Hard: h, Used: u},
	}
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
}

// swapping makes the fake client a compare-and-swap on resource versions, as the
// server is, and counts the writes.
func swapping(kube *fake.Clientset, writes *atomic.Int64) {
	var mu sync.Mutex
	version := int64(100)
	kube.PrependReactor("update", "resourcequotas", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		writes.Add(1)
		next := a.(clienttesting.UpdateAction).GetObject().(*corev1.ResourceQuota).DeepCopy()
		now, err := kube.Tracker().Get(a.GetResource(), next.Namespace, next.Name)
		if err != nil {
			return true, nil, err
		}
		if now.(*corev1.ResourceQuota).ResourceVersion != next.ResourceVersion {
			return true, nil, apierrors.NewConflict(corev1.Resource("resourcequotas"), next.Name, fmt.Errorf("old"))
		}
		version++
		next.ResourceVersion = fmt.Sprint(version)
		return true, next, kube.Tracker().Update(a.GetResource(), next, next.Namespace)
	})
}

func plugin(t *testing.T, kube *fake.Clientset) *quotaadmission.Plugin {
	t.Helper()
	factory := informers.NewSharedInformerFactory(kube, 0)
	p, err := quotaadmission.New(quotaadmission.Config{Client: kube, Informers: factory, Warm: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	factory.WaitForCacheSync(t.Context().Done())
	return p
}

func used(t *testing.T, kube *fake.Clientset, name string) int64 {
	t.Helper()
	q, err := kube.CoreV1().ResourceQuotas("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := q.Status.Used["count/configmaps"]
	return n.Value()
}

// Renewals of leases are most of what is written in a large cluster. No update of a lease is charged to any quota.
func TestAnUpdateThatNothingIsChargedForIsNotLookedAt(t *testing.T) {
	all := limit("q", 10, 0)
	all.Spec.Hard["count/leases.coordination.k8s.io"] = *resource.NewQuantity(1, resource.DecimalSI)
	p := plugin(t, fake.NewClientset(all))
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"}}
	if !p.Handles(admissiontest.Creating("leases", lease)) {
		t.Error("the creation of a lease is not charged")
	}
	if p.Handles(admissiontest.Updating("leases", lease, lease)) {
		t.Error("the update of a lease is looked at")
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"}}
	if !p.Handles(admissiontest.Updating("persistentvolumeclaims", claim, claim)) {
		t.Error("the growth of a claim is not charged")
	}
}

// Two servers, fifty creates, room for ten.
func TestExactlyAsManyAreAdmittedAsThereIsRoomFor(t *testing.T) {
	kube := fake.NewClientset(limit("q", 10, 0))
	var writes, admitted atomic.Int64
	swapping(kube, &writes)
	servers := []*quotaadmission.Plugin{plugin(t, kube), plugin(t, kube)}
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			err := servers[i%2].Validate(t.Context(), admissiontest.Creating("configmaps", configMap(fmt.Sprint("c", i))))
			switch {
			case err == nil:
				admitted.Add(1)
			case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=10, limited: count/configmaps=10"):
				t.Errorf("error %v", err)
			}
		})
	}
	all.Wait()
	if admitted.Load() != 10 || used(t, kube, "q") != 10 {
		t.Errorf("%d were admitted, %d are charged, want 10", admitted.Load(), used(t, kube, "q"))
	}
	if writes.Load() > 40 {
		t.Errorf("%d writes for 10 charges: nothing was charged together", writes.Load())
	}
}

func TestEveryQuotaOfTheNamespaceCounts(t *testing.T) {
	kube := fake.NewClientset(limit("wide", 10, 0), limit("tight", 1, 0))
	swapping(kube, &atomic.Int64{})
	p := plugin(t, kube)
	if err := p.Validate(t.Context(), admissiontest.Creating("configmaps", configMap("a"))); err != nil {
		t.Fatal(err)
	}
	if err := p.Validate(t.Context(), admissiontest.Creating("configmaps", configMap("b"))); err == nil || !strings.Contains(err.Error(),
		"exceeded quota: tight") {
		t.Errorf("error %v", err)
	}
	if used(t, kube, "wide") != 1 || used(t, kube, "tight") != 1 {
		t.Errorf("charged %d and %d", used(t, kube, "wide"), used(t, kube, "tight"))
	}
}

func TestADryRunIsHeldAgainstTheQuotaAndNotCharged(t *testing.T) {
	kube := fake.NewClientset(limit("q", 1, 0))
	swapping(kube, &atomic.Int64{})
	p := plugin(t, kube)
	dry := func(name string) error {
		r := admissiontest.Creating("configmaps", configMap(name))
		r.DryRun = true
		return p.Validate(t.Context(), r)
	}
	for _, name := range []string{"a", "b"} {
		if err := dry(name); err != nil {
			t.Error(err)
		}
	}
	if n := used(t, kube, "q"); n != 0 {
		t.Errorf("%d are charged", n)
	}
	if err := p.Validate(t.Context(), admissiontest.Creating("configmaps", configMap("c"))); err != nil {
		t.Error(err)
	}
	if err := dry("d"); !apierrors.IsForbidden(err) {
		t.Errorf("error %v", err)
	}
}

func TestAQuotaThatNobodyHasCountedRefuses(t *testing.T) {
	q := limit("q", 1, 0)
	q.Status.Used = nil
	p := plugin(t, fake.NewClientset(q))
	err := p.Validate(t.Context(), admissiontest.Creating("configmaps", configMap("a")))
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "status unknown for quota: q, resources: count/configmaps") {
		t.Errorf("error %v", err)
	}
}

func TestOnlyWhatCanBeChargedIsLookedAt(t *testing.T) {
	p := plugin(t, fake.NewClientset(limit("q", 1, 0)))
	elsewhere := configMap("a")
	elsewhere.Namespace = "other"
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"}}
	for _, c := range []struct {
		name string
		r    *admission.Request
		want bool
	}{
		{"a create", admissiontest.Creating("configmaps", configMap("a")), true},
		{"a delete", admissiontest.Deleting("configmaps", configMap("a")), false},
		{"an event", admissiontest.Creating("events", event), false},
		{"a scale", admissiontest.Updating("deployments", configMap("a"), configMap("a"), admissiontest.Subresource("scale")), false},
	} {
		if got := p.Handles(c.r); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if err := p.Validate(t.Context(), admissiontest.Updating("configmaps", configMap("a"), configMap("a"))); err != nil {
		t.Errorf("an update that changes no usage was refused: %v", err)
	}
}

// The server is asked once about a namespace for which the informer has no quota.
func TestANamespaceWithoutQuotasIsKnownAfterOneWrite(t *testing.T) {
	kube := fake.NewClientset()
	p := plugin(t, kube)
	create := admissiontest.Creating("configmaps", configMap("a"))
	if !p.Handles(create) {
		t.Fatal("the first write is not looked at: a quota may just have been made")
	}
	if err := p.Validate(t.Context(), create); err != nil {
		t.Fatal(err)
	}
	if p.Handles(create) {
		t.Error("the second write is looked at: the server said that there is no quota")
	}
}

// The informer never hears of the quota, and the server was asked before there was one.
func TestAQuotaCountsFromTheWriteOn(t *testing.T) {
	kube := fake.NewClientset()
	var writes atomic.Int64
	swapping(kube, &writes)
	kube.PrependWatchReactor("resourcequotas", clienttesting.DefaultWatchReactor(watch.NewFake(), nil))
	p := plugin(t, kube)
	create := func(name string) error {
		r := admissiontest.Creating("configmaps", configMap(name))
		if !p.Handles(r) {
			return nil
		}
		return p.Validate(t.Context(), r)
	}
	write := func(r *admission.Request) {
		t.Helper()
		if !p.Handles(r) {
			t.Fatalf("%s of a quota is not looked at", r.Operation)
		}
		if err := p.Validate(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := create("before"); err != nil {
		t.Fatal(err)
	}
	bare := limit("q", 1, 0)
	bare.Status = corev1.ResourceQuotaStatus{}
	quotas := kube.CoreV1().ResourceQuotas("default")
	write(admissiontest.Creating("resourcequotas", bare))
	if _, err := quotas.Create(t.Context(), bare, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	write(admissiontest.Updating("resourcequotas", bare, limit("q", 1, 0), admissiontest.Subresource("status")))
	if _, err := quotas.UpdateStatus(t.Context(), limit("q", 1, 0), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := create("fits"); err != nil {
		t.Errorf("after it was counted: %v", err)
	}
	if err := create("too many"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: q") {
		t.Errorf("after the charge: %v", err)
	}
	write(admissiontest.Deleting("resourcequotas", limit("q", 1, 1)))
	if err := quotas.Delete(t.Context(), "q", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := create("free"); err != nil {
		t.Errorf("after the delete: %v", err)
	}
}

func TestSuite(t *testing.T) {
	full := limit("full", 0, 0)
	kube := fake.NewClientset(full)
	admissiontest.Run(t, plugin(t, kube),
		admissiontest.Case{Name: "no room", Denied: "exceeded quota: full", Request: func() *admission.Request {
			return admissiontest.Creating("configmaps", configMap("a"))
		}},
		admissiontest.Case{Name: "not limited", Request: func() *admission.Request {
			return admissiontest.Creating("services", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"}})
		}},
	)
}
