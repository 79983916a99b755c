// SPDX-License-Identifier: Apache-2.0

package presence

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/run"
)

const namespace = "wasmplane-plugins"

// process is one that runs until it is stopped (in order) or killed.
type process struct {
	*Keeper
	stop func()
}

func begin(t *testing.T, kube kubernetes.Interface, identity string, collect bool) *process {
	t.Helper()
	k := New(Config{Client: kube, Namespace: namespace, Group: "test", Identity: identity, Collect: collect})
	ctx, cancel := context.WithCancel(t.Context())
	done := run.Go("presence of "+identity, func() error { return k.Run(ctx) })
	var stopped bool
	p := &process{k, func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}}
	t.Cleanup(p.stop)
	return p
}

// kill ends a process that then has no time to release its lease.
func kill(p *process) {
	p.mu.Lock()
	p.renewed = time.Time{}
	p.mu.Unlock()
	p.stop()
}

// after lets a time pass, and everybody do what they do meanwhile.
func after(d time.Duration) {
	time.Sleep(d) // of the bubble
	synctest.Wait()
}

// askFor lets a time pass in which k is asked about somebody again and again.
func askFor(d time.Duration, k *process, identity string) {
	for range int(d / (20 * time.Second)) {
		after(20 * time.Second)
		k.State(identity)
	}
}

func leases(t *testing.T, kube kubernetes.Interface) []coordinationv1.Lease {
	t.Helper()
	l, err := kube.CoordinationV1().Leases(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

func expect(t *testing.T, k *process, identity string, want State) {
	t.Helper()
	if got := k.State(identity); got != want {
		t.Errorf("%s is in state %d, want %d", identity, got, want)
	}
}

// TestTheLivingAreToldFromTheDead by their leases, however long ago they were written about.
func TestTheLivingAreToldFromTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		a, b := begin(t, kube, "a", true), begin(t, kube, "b", false)
		expect(t, a, "nobody", Unknown)
		after(31 * time.Second) // each has looked after the other began
		if !a.Held() || !b.Held() {
			t.Fatal("the leases are not held")
		}
		expect(t, a, "b", Present)
		expect(t, b, "a", Present)
		expect(t, a, "nobody", Unlisted)
		after(time.Hour)
		expect(t, a, "b", Present)

		kill(b)
		after(75 * time.Second)
		expect(t, a, "b", Present) // it may have missed two renewals
		after(50 * time.Second)
		expect(t, a, "b", Gone)
		if n := len(leases(t, kube)); n != 1 {
			t.Errorf("%d leases, want that of a", n)
		}
		after(40 * time.Second)
		expect(t, a, "b", Gone) // its lease has gone too, and it is remembered

		// It comes back, and another one under a new name.
		b, c := begin(t, kube, "b", false), begin(t, kube, "c", false)
		after(time.Millisecond)
		expect(t, a, "c", Unknown)
		b.State("c") // it may have looked before c began, and a question makes it look again
		after(time.Second + time.Millisecond)
		expect(t, a, "b", Present)
		expect(t, a, "c", Present)
		expect(t, b, "c", Present)

		// One that ends in order need not be waited for.
		c.stop()
		after(31 * time.Second)
		expect(t, a, "c", Gone)
		expect(t, b, "c", Gone)
		if n := len(leases(t, kube)); n != 3 {
			t.Errorf("%d leases: a released one is kept for one that starts again", n)
		}
		begin(t, kube, "c", false)
		after(31 * time.Second)
		expect(t, a, "c", Present)
	})
}

// TestClocksOfOthersDoNotCount: a lease that changes holds, whatever time it tells.
func TestClocksOfOthersDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		a := begin(t, kube, "a", true)
		at := metav1.NewMicroTime(time.Now().Add(-48 * time.Hour))
		holder, seconds := "slow", int32(90)
		slow := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: a.leaseName("slow"), Labels: map[string]string{Label: "test"}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &at, LeaseDurationSeconds: &seconds},
		}
		if _, err := kube.CoordinationV1().Leases(namespace).Create(t.Context(), slow, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			after(30 * time.Second)
			expect(t, a, "slow", Present)
			at = metav1.NewMicroTime(at.Add(30 * time.Second))
			if _, err := kube.CoordinationV1().Leases(namespace).Update(t.Context(), slow, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		// One that tells a time to come, and does not change, is as dead as others; so is one that claims a year.
		at, seconds = metav1.NewMicroTime(time.Now().Add(48*time.Hour)), 365*24*3600
		if _, err := kube.CoordinationV1().Leases(namespace).Update(t.Context(), slow, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		after(14 * time.Minute)
		expect(t, a, "slow", Present)
		askFor(2*time.Minute, a, "slow")
		expect(t, a, "slow", Gone)
	})
}

// TestNobodyDiesOfAnOutage: when the API was away for longer than leases last, everybody has the time to
// come back that they had at the beginning.
func TestNobodyDiesOfAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube, away := fake.NewClientset(), false
		kube.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return away, nil, errors.New("away")
		})
		a, b := begin(t, kube, "a", true), begin(t, kube, "b", true)
		after(time.Minute)
		expect(t, a, "b", Present)
		away = true
		after(time.Hour)
		expect(t, a, "b", Present) // nobody can know
		if a.Held() {
			t.Error("a lease that cannot be renewed is said to be held")
		}
		away = false
		for range 200 { // whoever looks first
			after(time.Second)
			expect(t, a, "b", Present)
			expect(t, b, "a", Present)
		}
		kill(b)
		askFor(2*time.Minute, a, "b")
		expect(t, a, "b", Gone)
		after(10 * time.Minute)
		expect(t, a, "b", Unknown) // nobody asked, and nothing is left of it
	})
}

// TestWithoutRightsNothingIsClaimed: neither that this process shows that it lives, nor that others don't.
func TestWithoutRightsNothingIsClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		kube.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("forbidden")
		})
		a := begin(t, kube, "a", false)
		after(time.Hour)
		expect(t, a, "b", Unknown)
		if a.Held() {
			t.Error("held")
		}
	})
}

// TestOneWriteEachTime: what a process at rest costs.
func TestOneWriteEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		k := begin(t, kube, "a", true)
		after(time.Minute + time.Second)
		kube.ClearActions()
		for range 600 {
			after(time.Second)
			k.State("nobody")
			k.State("nobody else")
		}
		count := map[string]int{}
		for _, action := range kube.Actions() {
			count[action.GetVerb()]++
		}
		if count["update"] != 20 || count["list"] > 22 || len(count) != 2 {
			t.Errorf("in ten minutes: %v, want 20 updates, a list for each of them, and one for each question", count)
		}
		// Somebody deletes the lease: it is there again.
		if err := kube.CoordinationV1().Leases(namespace).Delete(t.Context(), k.leaseName("a"), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		after(31 * time.Second)
		if len(leases(t, kube)) != 1 {
			t.Error("a lease that was deleted stays away")
		}
	})
}

// TestOverAServer has two processes keep their leases in etcd, where versions and preconditions hold.
func TestOverAServer(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	set, err := client.New(s.Config("keeper"))
	if err != nil {
		t.Fatal(err)
	}
	keeper := func(identity string, collect bool) *Keeper {
		return New(Config{Client: set.Kube, Namespace: metav1.NamespaceDefault, Group: "test", Identity: identity, Collect: collect})
	}
	a, b := keeper("a", true), keeper("b", true)
	step := func(k *Keeper) {
		t.Helper()
		if err := k.Beat(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		step(a)
		step(b)
	}
	step(a)
	if a.State("b") != Present || b.State("a") != Present {
		t.Error("two that live do not see each other")
	}
	// A second process of the same name, as of a copied data directory, does not keep the first from renewing.
	step(keeper("a", true))
	step(a)

	// b is silent; whoever wants to delete its lease as it was seen does not meet one that has come back.
	list, err := set.Kube.CoordinationV1().Leases(
		metav1.NamespaceDefault,
	).List(
		t.Context(),
		metav1.ListOptions{LabelSelector: Label + "=test"},
	)
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("%v: %v", err, list)
	}
	silence(a, "b")
	over := a.see(list.Items, nil, time.Now())
	if len(over) != 1 || over[0].Name != b.leaseName("b") || a.State("b") != Gone {
		t.Fatalf("after silence: %v", over)
	}
	step(b)
	if err := a.collect(t.Context(), over); err != nil {
		t.Error(err)
	}
	step(a)
	if a.State("b") != Present {
		t.Error("who came back has lost its lease")
	}
	silence(a, "b")
	step(a)
	if _, err := set.Kube.CoordinationV1().Leases(
		metav1.NamespaceDefault,
	).Get(
		t.Context(),
		b.leaseName("b"),
		metav1.GetOptions{},
	); err == nil {
		t.Error("the lease of who is gone is still there")
	}
	b.leave(t.Context())
	a.leave(t.Context())
	step(b)
	if b.State("a") != Gone {
		t.Error("who has left is not known to be gone")
	}
}

// silence has k see that the process was silent for longer than its lease lasts.
func silence(k *Keeper, identity string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.others[k.leaseName(identity)]
	s.since, k.steady = time.Now().Add(-time.Hour), time.Now().Add(-time.Hour)
}
