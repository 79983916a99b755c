// SPDX-License-Identifier: Apache-2.0

package servicecidr

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func claim(address, by string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: address, Labels: map[string]string{networkingv1.LabelManagedBy: by}}}
}

type world struct {
	*controllertest.Cluster
	t *testing.T
}

// state is the reason of a range's condition, and "gone" where it is held up by nobody.
func (w world) state(name string) string {
	w.t.Helper()
	time.Sleep(time.Second) // of the bubble
	synctest.Wait()
	r, err := w.Client.NetworkingV1().ServiceCIDRs().Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	if !slices.Contains(r.Finalizers, finalizer) {
		return "gone"
	}
	c := meta.FindStatusCondition(r.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	if c == nil {
		return "unjudged"
	}
	return string(c.Status) + "/" + c.Reason
}

func (w world) update(r *networkingv1.ServiceCIDR, change func(*networkingv1.ServiceCIDR)) {
	w.t.Helper()
	now, err := w.Client.NetworkingV1().ServiceCIDRs().Get(w.t.Context(), r.Name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	change(now)
	if _, err := w.Client.NetworkingV1().ServiceCIDRs().Update(w.t.Context(), now, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// A range's life: made, ready, deleted while a Service has an address of it, gone with the Service.
func TestARangeWaitsForItsServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fresh := cidr("second", "203.0.113.0/24")
		fresh.Finalizers = nil
		w := world{controllertest.New(fresh, claim("203.0.113.7", managedBy), claim("203.0.113.8", "somebody-else")), t}
		ctl, err := New(w.Env(t), Config{Pods: []string{"10.244.0.0/16"}})
		if err != nil {
			t.Fatal(err)
		}
		w.Start(t, ctl)
		if got := w.state("second"); got != "True/NetworkReady" {
			t.Error(got)
		}
		w.update(fresh, func(r *networkingv1.ServiceCIDR) { now := metav1.Now(); r.DeletionTimestamp = &now })
		if got := w.state("second"); got != "False/Terminating" {
			t.Error(got)
		}
		time.Sleep(time.Hour)
		if got := w.state("second"); got != "False/Terminating" {
			t.Errorf("an hour later, with the Service: %s", got)
		}
		if err := w.Client.NetworkingV1().IPAddresses().Delete(t.Context(), "203.0.113.7", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := w.state("second"); got != "gone" {
			t.Errorf("without the Service: %s", got)
		}
	})
}

// A server that does not know of the deletion yet has time to give an address, which counts:
// the last look is at the server, not at the cache.
func TestTheLastLookIsAtTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := cidr("second", "203.0.113.0/24")
		w := world{controllertest.New(r), t}
		// From then on the store has a claim, and no event of it comes.
		var late atomic.Bool
		w.Client.PrependReactor("list", "ipaddresses", func(clienttesting.Action) (bool, runtime.Object, error) {
			return late.Load(), &networkingv1.IPAddressList{Items: []networkingv1.IPAddress{*claim("203.0.113.7", managedBy)}}, nil
		})
		ctl, err := New(w.Env(t), Config{})
		if err != nil {
			t.Fatal(err)
		}
		w.Start(t, ctl)
		if got := w.state("second"); got != "True/NetworkReady" {
			t.Errorf("before: %s", got)
		}
		w.update(r, func(r *networkingv1.ServiceCIDR) { now := metav1.Now(); r.DeletionTimestamp = &now })
		if got := w.state("second"); got != "True/NetworkReady" {
			t.Errorf("at once: %s", got)
		}
		late.Store(true)
		time.Sleep(time.Minute)
		if got := w.state("second"); got != "False/Terminating" {
			t.Errorf("with an address that was given late: %s", got)
		}
	})
}

// A node that comes with an address of the range: nobody else gets addresses there.
func TestANodeInTheRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world{controllertest.New(cidr("second", "203.0.113.0/24"), cidr("pods", "10.244.0.0/24")), t}
		ctl, err := New(w.Env(t), Config{Pods: []string{"10.244.0.0/16"}})
		if err != nil {
			t.Fatal(err)
		}
		w.Start(t, ctl)
		if first, second := w.state("second"), w.state("pods"); first != "True/NetworkReady" || second != "False/OverlapsCluster" {
			t.Error(first, second)
		}
		nodes := w.Client.CoreV1().Nodes()
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		node.Status.Addresses = []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "203.0.113.9"}, {Type: corev1.NodeHostName, Address: "n1"},
		}
		if _, err := nodes.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := w.state("second"); got != "False/OverlapsCluster" {
			t.Error(got)
		}
		if err := nodes.Delete(context.WithoutCancel(t.Context()), "n1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := w.state("second"); got != "True/NetworkReady" {
			t.Errorf("without the node: %s", got)
		}
		if n := len(w.Events.Events); n != 2 {
			t.Errorf("%d events, want one for each range that became unusable", n)
		}
	})
}
