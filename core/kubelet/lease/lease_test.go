// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
			release := k.Hold(name, client, "uid")
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

func TestALeaseThatWasTakenAwayComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleClientset()
		k := lease.NewKeeper(lease.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = k.Run(ctx) }()
		release := k.Hold("n", client, "")
		synctest.Wait()
		leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
		if err := leases.Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		if _, err := leases.Get(ctx, "n", metav1.GetOptions{}); err != nil {
			t.Error(err)
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
