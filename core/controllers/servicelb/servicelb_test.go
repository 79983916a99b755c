// SPDX-License-Identifier: Apache-2.0

package servicelb

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	servicehelper "k8s.io/cloud-provider/service/helpers"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
	"github.com/wasmplane/wasmplane/core/loadbalancer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func lan(t *testing.T, addresses string) Config {
	t.Helper()
	return Config{Pools: []loadbalancer.Pool{pool(t, "lan", addresses)}}
}

func started(t *testing.T, cfg Config, objects ...runtime.Object) *controllertest.Cluster {
	t.Helper()
	c := controllertest.New(objects...)
	lb, err := New(c.Env(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, lb)
	return c
}

func get(t *testing.T, c *controllertest.Cluster, name string) *corev1.Service {
	t.Helper()
	s, err := c.Client.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// reads waits until a Service's addresses, or the reason of its condition, are these.
func reads(t *testing.T, c *controllertest.Cluster, name, want string) {
	t.Helper()
	controllertest.Eventually(t, func() error {
		s, err := c.Client.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var all []string
		for _, in := range s.Status.LoadBalancer.Ingress {
			all = append(all, in.IP)
		}
		if condition := meta.FindStatusCondition(s.Status.Conditions, Condition); len(all) == 0 && condition != nil {
			all = []string{condition.Reason}
		}
		if got := strings.Join(all, " "); got != want {
			return fmt.Errorf("%s has %q, want %q", name, got, want)
		}
		return nil
	})
}

func TestAServiceGetsAnAddress(t *testing.T) {
	c := started(t, lan(t, "192.0.2.10-192.0.2.11"), node("a", true, "192.0.2.1"), balanced("old", has("192.0.2.10")), balanced("new"),
		balanced("third"),
		balanced("other", func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.com/lb") }))
	reads(t, c, "old", "192.0.2.10")
	waits := "third"
	controllertest.Eventually(t, func() error {
		for name, other := range map[string]string{"new": "third", "third": "new"} {
			if len(get(t, c, name).Status.LoadBalancer.Ingress) == 1 {
				waits = other
				return nil
			}
		}
		return fmt.Errorf("nobody has the other one")
	})
	reads(t, c, waits, "NoFreeAddress")
	controllertest.Eventually(t, func() error {
		s := get(t, c, "old")
		if in := s.Status.LoadBalancer.Ingress[0]; in.IPMode == nil || *in.IPMode != corev1.LoadBalancerIPModeVIP {
			return fmt.Errorf("%+v", in)
		}
		if !servicehelper.HasLBFinalizer(s) || s.Annotations[loadbalancer.NodeAnnotation] != "a" {
			return fmt.Errorf("finalizers %v, annotations %v", s.Finalizers, s.Annotations)
		}
		return nil
	})
	// It is of another type: its address is another's, and nothing of ours is left.
	s := get(t, c, "old")
	s.Spec.Type = corev1.ServiceTypeClusterIP
	if _, err := c.Client.CoreV1().Services("default").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	reads(t, c, waits, "192.0.2.10")
	s = get(t, c, "old")
	if servicehelper.HasLBFinalizer(s) || len(s.Status.LoadBalancer.Ingress)+len(s.Status.Conditions)+len(s.Annotations) > 0 {
		t.Errorf("%+v %+v", s.ObjectMeta, s.Status)
	}
	if s := get(t, c, "other"); len(s.Finalizers)+len(s.Status.LoadBalancer.Ingress)+len(s.Status.Conditions) > 0 {
		t.Errorf("another's Service was touched: %+v %+v", s.ObjectMeta, s.Status)
	}
}

// A Service that is deleted gives its address back when it goes.
func TestDeletion(t *testing.T) {
	leaving := balanced("leaving", has("192.0.2.10"))
	leaving.Finalizers = []string{servicehelper.LoadBalancerCleanupFinalizer, "example.com/other"}
	leaving.DeletionTimestamp = ptr.To(metav1.Now())
	c := started(t, lan(t, "192.0.2.10"), leaving, balanced("next"))
	reads(t, c, "next", "192.0.2.10")
	if s := get(t, c, "leaving"); fmt.Sprint(s.Finalizers) != "[example.com/other]" || len(s.Status.LoadBalancer.Ingress) > 0 {
		t.Errorf("%v %v", s.Finalizers, s.Status)
	}
	if err := c.Client.CoreV1().Services("default").Delete(t.Context(), "next", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client.CoreV1().Services("default").Create(t.Context(), balanced("last"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	reads(t, c, "last", "192.0.2.10")
}

// Without pools Services share the nodes' addresses by their ports, and follow the nodes.
func TestNodesComeAndGo(t *testing.T) {
	c := started(t, Config{}, node("a", true, "192.0.2.1"), node("b", false, "192.0.2.2"), balanced("web"))
	reads(t, c, "web", "192.0.2.1")
	if _, err := c.Client.CoreV1().Services("default").Create(t.Context(), balanced("same"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	reads(t, c, "same", "PortTaken")
	if event := <-c.Events.Events; event != "Normal EnsuredLoadBalancer Ensured load balancer: 192.0.2.1" {
		t.Error(event)
	}
	if event := <-c.Events.Events; !strings.HasPrefix(event, "Warning SyncLoadBalancerFailed another Service has port 80/TCP") {
		t.Error(event)
	}
	update := func(ready bool, address string) {
		t.Helper()
		n, err := c.Client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Status = node("b", ready, address).Status
		if _, err := c.Client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	update(true, "192.0.2.2")
	reads(t, c, "web", "192.0.2.1 192.0.2.2")
	update(false, "192.0.2.2")
	reads(t, c, "web", "192.0.2.1")
	update(true, "192.0.2.3")
	reads(t, c, "web", "192.0.2.1 192.0.2.3")
	update(true, "192.0.2.2")
	reads(t, c, "web", "192.0.2.1 192.0.2.2")
	if err := c.Client.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	reads(t, c, "web", "192.0.2.2")
	// Traffic that stays on the node comes to those with endpoints.
	s := get(t, c, "web")
	local(s)
	if _, err := c.Client.CoreV1().Services("default").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	reads(t, c, "web", "NoNode")
	if _, err := c.Client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), endpointsOn("web", "b"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	reads(t, c, "web", "192.0.2.2")
}

// Switched off, it takes back what is its own, and touches nothing else.
func TestOff(t *testing.T) {
	ours, theirs := balanced("ours", has("192.0.2.10")), balanced("theirs", has("203.0.113.1"))
	ours.Status.Conditions = []metav1.Condition{{Type: Condition, Status: metav1.ConditionTrue, Reason: "Assigned"}}
	ours.Finalizers, theirs.Finalizers = []string{servicehelper.LoadBalancerCleanupFinalizer}, []string{
		servicehelper.LoadBalancerCleanupFinalizer,
	}
	c := started(t, Config{Off: true}, ours, theirs)
	controllertest.Eventually(t, func() error {
		if s := get(t, c, "ours"); len(s.Finalizers)+len(s.Status.LoadBalancer.Ingress) > 0 {
			return fmt.Errorf("%v %v", s.Finalizers, s.Status)
		}
		return nil
	})
	if s := get(t, c, "theirs"); len(s.Finalizers) != 1 || len(s.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("%v %v", s.Finalizers, s.Status)
	}
}
