// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/kubelet/lease"
)

// A thousand leases are all renewed in time, and not one is written more often than need be.
func TestLeasesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 100
		client := fake.NewSimpleClientset() // managed fields are of no interest here
		k := lease.NewKeeper(lease.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = k.Run(ctx) }()
		for i := range nodes {
			name := fmt.Sprint("n", i)
			release := k.Hold(name, client, func() types.UID { return "uid" })
			if i == 0 {
				defer release()
			}
		}
		time.Sleep(65 * time.Second)
		synctest.Wait()
		for i := range nodes {
			l, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, fmt.Sprint("n", i), metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if age := time.Since(l.Spec.RenewTime.Time); age > 10*time.Second || *l.Spec.LeaseDurationSeconds != 40 ||
				*l.Spec.HolderIdentity != l.Name || l.OwnerReferences[0].UID != "uid" {
				t.Errorf("lease of age %v: %+v", age, l)
			}
		}
		writes := 0
		for _, a := range client.Actions() {
			if a.GetVerb() == "update" || a.GetVerb() == "create" {
				writes++
			}
		}
		if writes < 6*nodes || writes > 7*nodes {
			t.Errorf("%d writes for %d leases in 65 s", writes, nodes)
		}
		cancel()
		<-done
	})
}

// A node that was deleted and registered again has another UID, and its lease is collected.
func TestALeaseThatWasTakenAwayComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleClientset()
		k := lease.NewKeeper(lease.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = k.Run(ctx) }()
		var node atomic.Value
		node.Store(types.UID("old"))
		release := k.Hold("n", client, func() types.UID { return node.Load().(types.UID) })
		synctest.Wait()
		leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
		if err := leases.Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		node.Store(types.UID("new"))
		time.Sleep(15 * time.Second)
		if l, err := leases.Get(ctx, "n", metav1.GetOptions{}); err != nil || len(l.OwnerReferences) != 1 || l.OwnerReferences[0].UID != "new" {
			t.Errorf("%+v, %v", l, err)
		}
		release()
		before := len(client.Actions())
		time.Sleep(time.Minute)
		if n := len(client.Actions()) - before; n > 1 {
			t.Errorf("%d writes after its release", n)
		}
		cancel()
		<-done
	})
}
