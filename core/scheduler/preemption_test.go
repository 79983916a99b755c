// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// important makes a pod of a priority that runs on a node already, or waits (node "").
func important(name, cpu string, priority int32, node string, labels map[string]string) *corev1.Pod {
	p := pod(name, cpu)
	p.Spec.Priority, p.Spec.NodeName, p.Labels = &priority, node, labels
	return p
}

func (c *cluster) awaitGone(name string) {
	c.t.Helper()
	err := wait.PollUntilContextTimeout(c.t.Context(), 10*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := c.client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	if err != nil {
		c.t.Fatalf("pod %s is still there: %v", name, err)
	}
}

// TestAnImportantPodMakesRoomForItself: of two nodes the one is chosen where less
// important pods have to go, and of its pods no more than needed.
func TestAnImportantPodMakesRoomForItself(t *testing.T) {
	c := start(t)
	c.node("a", "4")
	c.node("b", "4")
	c.create(important("a-high", "3", 50, "a", nil))
	c.create(important("b-low", "2", 10, "b", nil))
	c.create(important("b-lower", "2", 5, "b", nil))
	c.settled("a-high", "b-low", "b-lower")
	c.create(important("vip", "2", 100, "", nil))
	nominated := c.await("vip", func(p *corev1.Pod) bool { return p.Status.NominatedNodeName != "" })
	if nominated.Status.NominatedNodeName != "b" {
		t.Errorf("nominated to %s, want b: its victim is the least important", nominated.Status.NominatedNodeName)
	}
	if p := c.await("vip", bound); p.Spec.NodeName != "b" {
		t.Errorf("it runs on %s", p.Spec.NodeName)
	}
	c.awaitGone("b-lower")
	for _, spared := range []string{"a-high", "b-low"} {
		if _, err := c.client.CoreV1().Pods("default").Get(t.Context(), spared, metav1.GetOptions{}); err != nil {
			t.Errorf("%s had to go needlessly: %v", spared, err)
		}
	}
}

// TestBudgetsAreViolatedLast: the node where a disruption budget would be violated is
// left alone while there is another, even one with a more important victim.
func TestBudgetsAreViolatedLast(t *testing.T) {
	c := start(t)
	c.node("a", "2")
	c.node("b", "2")
	if _, err := c.client.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.create(important("db", "2", 1, "a", map[string]string{"app": "db"}))
	c.create(important("web", "2", 9, "b", nil))
	c.settled("db", "web")
	c.create(important("vip", "1", 100, "", nil))
	if p := c.await("vip", bound); p.Spec.NodeName != "b" {
		t.Errorf("it runs on %s: the budget of db was violated without need", p.Spec.NodeName)
	}
}

// TestNobodyMakesRoomWhereItIsNotAllowed: equal priority, preemptionPolicy Never.
func TestNobodyMakesRoomWhereItIsNotAllowed(t *testing.T) {
	c := start(t)
	c.node("a", "2")
	c.create(important("old", "2", 10, "a", nil))
	c.settled("old")
	never := corev1.PreemptNever
	polite := important("polite", "1", 100, "", nil)
	polite.Spec.PreemptionPolicy = &never
	c.create(polite)
	if got, want := message(c.await("polite", refused)), "0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never."; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	c.create(important("equal", "1", 10, "", nil))
	if got, want := message(c.await("equal", refused)), "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
}

// settled waits until the scheduler counts these pods on their nodes.
func (c *cluster) settled(names ...string) {
	c.t.Helper()
	err := wait.PollUntilContextTimeout(c.t.Context(), 5*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		on := c.s.PodsOnNodes()
		return !slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(on, n) }), nil
	})
	if err != nil {
		c.t.Fatalf("the scheduler does not know of %v: %v", names, err)
	}
}

// scripted takes part at the points that the others of this file do not.
type scripted struct {
	gate   func(*corev1.Pod) bool
	rank   map[string]int64
	posted chan string
	permit chan string
}

func (scripted) Name() string                  { return "scripted" }
func (scripted) Hints() framework.ClusterEvent { return framework.NodeAdded }

func (s scripted) PreEnqueue(_ context.Context, p *framework.PodInfo) *framework.Status {
	if s.gate(p.Pod) {
		return framework.NewStatus(framework.Unschedulable, "the quota is used up")
	}
	return nil
}

func (s scripted) Rank(_ context.Context, p *framework.PodInfo, _ time.Time) (int64, *framework.Status) {
	return s.rank[p.Pod.Name], nil
}

func (s scripted) Permit(_ context.Context, _ *framework.State, p *framework.PodInfo, _ string) (*framework.Status, time.Duration) {
	if p.Pod.Labels["wait"] == "" {
		return nil, 0
	}
	select {
	case s.permit <- p.Pod.Name:
	default:
	}
	return framework.NewStatus(framework.Wait), time.Hour
}

func (s scripted) Bind(_ context.Context, _ *framework.State, p *framework.PodInfo, node string) (framework.Binding, *framework.Status) {
	return framework.Binding{Annotations: map[string]string{"example.com/slot": p.Pod.Name + "@" + node}}, nil
}

func (s scripted) PostBind(_ context.Context, _ *framework.State, p *framework.PodInfo, node string) {
	s.posted <- p.Pod.Name + "@" + node
}

// TestThePointsAroundTheCycle: a gate keeps a pod out without counting tries, ranks
// order the queue, a binding carries annotations, and whoever asked is told of it.
func TestThePointsAroundTheCycle(t *testing.T) {
	s := scripted{
		gate: func(p *corev1.Pod) bool { return p.Labels["quota"] == "none" },
		rank: map[string]int64{"second": 1, "first": 2}, posted: make(chan string, 8), permit: make(chan string, 8),
	}
	c := start(t, scheduler.Weighted{Plugin: s})
	gated := pod("gated", "1")
	gated.Labels = map[string]string{"quota": "none"}
	c.create(gated)
	p := c.await("gated", refused)
	if got := message(p); got != "the quota is used up" {
		t.Errorf("message %q", got)
	}
	if c := p.Status.Conditions[0]; c.Reason != corev1.PodReasonSchedulingGated {
		t.Errorf("reason %q", c.Reason)
	}
	c.node("n", "4")
	c.create(pod("plain", "1"))
	if got := <-s.posted; got != "plain@n" {
		t.Errorf("told of %s", got)
	}
	p = c.await("plain", bound)
	if p.Annotations["example.com/slot"] != "plain@n" {
		t.Errorf("annotations %v", p.Annotations)
	}
	p = gated.DeepCopy()
	p.Labels, p.Generation = map[string]string{}, 2
	if _, err := c.client.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("gated", bound)
}

// TestAPodThatWaitsForPermissionGivesWay: one of higher priority takes the room at once.
func TestAPodThatWaitsForPermissionGivesWay(t *testing.T) {
	s := scripted{gate: func(*corev1.Pod) bool { return false }, posted: make(chan string, 8), permit: make(chan string, 8)}
	c := start(t, scheduler.Weighted{Plugin: s})
	c.node("n", "2")
	low := important("low", "2", 1, "", map[string]string{"wait": "yes"})
	c.create(low)
	<-s.permit
	c.create(important("vip", "2", 100, "", nil))
	c.await("vip", bound)
	if p, err := c.client.CoreV1().Pods("default").Get(t.Context(), "low", metav1.GetOptions{}); err != nil || p.Spec.NodeName != "" {
		t.Errorf("low: %v, %v", p, err)
	}
}
