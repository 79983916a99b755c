// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func node(name string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastHeartbeatTime: metav1.Now()}},
		},
	}
}

func lease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NowMicro())},
	}
}

// renew is a kubelet that lives, until ctx ends.
func renew(ctx context.Context, c *controllertest.Cluster, name string) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Second):
		}
		l := lease(name)
		_, _ = c.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Update(ctx, l, metav1.UpdateOptions{})
	}
}

func podOn(nodeName string, tolerations ...corev1.Toleration) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
		Spec:       corev1.PodSpec{NodeName: nodeName, Tolerations: tolerations},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}

func readyOf(t *testing.T, c *controllertest.Cluster, name string) (corev1.NodeCondition, []string) {
	t.Helper()
	n, err := c.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, taint := range n.Spec.Taints {
		keys = append(keys, taint.Key+":"+string(taint.Effect))
	}
	slices.Sort(keys)
	return *condition(n, corev1.NodeReady), keys
}

func start(t *testing.T, c *controllertest.Cluster) {
	t.Helper()
	lc, err := New(c.Env(t), 2, Config{MonitorGrace: 40 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ev, err := NewEvictor(c.Env(t), 2)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, lc, ev)
}

// A kubelet falls silent: after the grace its node is Unknown, tainted, its pod is
// not ready any more, and is evicted when its toleration ends. The node that lives
// stays as it is.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stays := corev1.Toleration{
			Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			TolerationSeconds: ptr.To[int64](300),
		}
		c := controllertest.New(node("dead", corev1.ConditionTrue), node("alive", corev1.ConditionTrue), lease("dead"), lease("alive"),
			podOn("dead", stays))
		start(t, c)
		go renew(t.Context(), c, "alive")

		time.Sleep(35 * time.Second)
		synctest.Wait()
		if ready, taints := readyOf(t, c, "dead"); ready.Status != corev1.ConditionTrue || len(taints) > 0 {
			t.Fatalf("before the grace: %s, taints %v", ready.Status, taints)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		ready, taints := readyOf(t, c, "dead")
		if ready.Status != corev1.ConditionUnknown || ready.Reason != "NodeStatusUnknown" ||
			ready.Message != "Kubelet stopped posting node status." {
			t.Fatalf("after the grace: %+v", ready)
		}
		if want := []string{"node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"}; !slices.Equal(taints,
			want) {
			t.Fatalf("taints %v", taints)
		}
		pod, err := c.Client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil || controllers.PodReady(pod) {
			t.Fatalf("the pod still counts as ready: %v", err)
		}
		if ready, taints := readyOf(t, c, "alive"); ready.Status != corev1.ConditionTrue || len(taints) > 0 {
			t.Fatalf("the living: %s, %v", ready.Status, taints)
		}

		time.Sleep(285 * time.Second)
		synctest.Wait()
		if _, err := c.Client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{}); err != nil {
			t.Fatalf("evicted too early: %v", err)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if _, err := c.Client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{}); err == nil {
			t.Fatal("not evicted")
		}
	})
}

// The only node of a cluster: nobody is evicted, for there is nowhere to go, and it
// may be we who cannot see.
func TestNobodyIsEvictedWhenAllAreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(node("a", corev1.ConditionTrue), node("b", corev1.ConditionTrue), lease("a"), lease("b"))
		start(t, c)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		for _, name := range []string{"a", "b"} {
			_, taints := readyOf(t, c, name)
			if slices.Contains(taints, "node.kubernetes.io/unreachable:NoExecute") {
				t.Errorf("%s is evicted", name)
			}
			if !slices.Contains(taints, "node.kubernetes.io/unreachable:NoSchedule") {
				t.Errorf("%s: taints %v", name, taints)
			}
		}
	})
}

// While the server doesn't answer nobody is declared dead, and afterwards everybody
// has the whole grace again.
func TestOutageIsNotDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(node("a", corev1.ConditionTrue), lease("a"))
		var down atomic.Bool
		c.Client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			if down.Load() {
				return true, nil, errors.New("no answer")
			}
			return false, nil, nil
		})
		start(t, c)
		down.Store(true)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if ready, _ := readyOf(t, c, "a"); ready.Status != corev1.ConditionTrue {
			t.Fatalf("declared %s by a controller that cannot ask", ready.Status)
		}
		down.Store(false)
		go renew(t.Context(), c, "a")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if ready, _ := readyOf(t, c, "a"); ready.Status != corev1.ConditionTrue {
			t.Fatalf("declared %s though it renews", ready.Status)
		}
	})
}

func TestTaints(t *testing.T) {
	n := node("a", corev1.ConditionFalse)
	n.Spec.Unschedulable = true
	n.Spec.Taints = []corev1.Taint{
		{Key: "mine", Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute},
	}
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue})
	got, _ := taints(n, false, time.Now())
	var keys []string
	for _, taint := range got {
		keys = append(keys, taint.Key+":"+string(taint.Effect))
	}
	want := []string{
		"mine:NoSchedule", "node.kubernetes.io/not-ready:NoSchedule", "node.kubernetes.io/disk-pressure:NoSchedule",
		"node.kubernetes.io/unschedulable:NoSchedule", "node.kubernetes.io/not-ready:NoExecute",
	}
	if !slices.Equal(keys, want) {
		t.Errorf("got %v, want %v", keys, want)
	}
	if _, wants := taints(node("b", corev1.ConditionFalse), false, time.Now()); !wants {
		t.Error("a node that isn't ready does not want eviction")
	}
}

func TestEvictAt(t *testing.T) {
	since := time.Unix(1000, 0)
	taint := func(key string) corev1.Taint { return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute} }
	tolerates := func(key string, seconds *int64) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, TolerationSeconds: seconds}
	}
	for name, tc := range map[string]struct {
		taints      []corev1.Taint
		tolerations []corev1.Toleration
		at          int64
		leaves      bool
	}{
		"untainted":               {},
		"not tolerated":           {taints: []corev1.Taint{taint("a")}, at: 1000, leaves: true},
		"tolerated for ever":      {taints: []corev1.Taint{taint("a")}, tolerations: []corev1.Toleration{tolerates("a", nil)}},
		"tolerated for a while":   {taints: []corev1.Taint{taint("a")}, tolerations: []corev1.Toleration{tolerates("a", ptr.To[int64](30))}, at: 1030, leaves: true},
		"negative is at once":     {taints: []corev1.Taint{taint("a")}, tolerations: []corev1.Toleration{tolerates("a", ptr.To[int64](-5))}, at: 1000, leaves: true},
		"the shortest counts":     {taints: []corev1.Taint{taint("a"), taint("b")}, tolerations: []corev1.Toleration{tolerates("a", ptr.To[int64](30)), tolerates("b", ptr.To[int64](10))}, at: 1010, leaves: true},
		"one is not tolerated":    {taints: []corev1.Taint{taint("a"), taint("b")}, tolerations: []corev1.Toleration{tolerates("a", nil)}, at: 1000, leaves: true},
		"everything is tolerated": {taints: []corev1.Taint{taint("a"), taint("b")}, tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}},
	} {
		at, leaves := evictAt(tc.taints, tc.tolerations, func(corev1.Taint) time.Time { return since })
		if leaves != tc.leaves || (leaves && at.Unix() != tc.at) {
			t.Errorf("%s: leaves %v at %d", name, leaves, at.Unix())
		}
	}
}

// Each node's taints have their own times, which stay as long as the taint does.
func TestWhenTaintsWereFirstSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Evictor{firstSeen: map[string]map[taintName]time.Time{}}
		x, y := corev1.Taint{Key: "x", Value: "1"}, corev1.Taint{Key: "y"}
		began := time.Now()
		ago := func(node string, taint corev1.Taint, want time.Duration) {
			t.Helper()
			if got := e.since(node, taint).Sub(began); got != want {
				t.Errorf("%s of %s was first seen after %s, want %s", taint.Key, node, got, want)
			}
		}
		e.record("a", []corev1.Taint{x})
		time.Sleep(time.Second)
		e.record("b", []corev1.Taint{x})
		e.record("a", []corev1.Taint{x, y})
		time.Sleep(time.Second)
		ago("a", x, 0)
		ago("a", y, time.Second)
		ago("b", x, time.Second)
		e.record("a", []corev1.Taint{y})
		ago("a", x, 2*time.Second) // it came back
		e.forgetNode("b")
		e.forgetNode("a")
		if len(e.firstSeen) != 0 {
			t.Errorf("remembered: %v", e.firstSeen)
		}
	})
}

// counting counts how often all nodes are looked at.
type counting struct {
	corelisters.NodeLister
	nodes []*corev1.Node
	times int
}

func (c *counting) List(labels.Selector) ([]*corev1.Node, error) {
	c.times++
	return c.nodes, nil
}

// Nodes that fail at once are judged by one look at all of them, and those that fail later by another.
func TestManyFailAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lister := &counting{}
		for i := range 100 {
			status := corev1.ConditionFalse
			if i == 0 {
				status = corev1.ConditionTrue
			}
			lister.nodes = append(lister.nodes, node(strconv.Itoa(i), status))
		}
		c := &Controller{nodes: lister, nextFrom: map[string]time.Time{}}
		time.Sleep(time.Minute)
		for want := 1; want <= 2; want++ {
			began := 0
			for _, n := range lister.nodes[1:] {
				if _, ok := c.mayEvict(n, time.Now()); ok {
					began++
				}
			}
			if lister.times != want || began != 1 {
				t.Errorf("%d looks at all nodes, want %d; %d begin to be evicted", lister.times, want, began)
			}
			time.Sleep(secondaryEvictionInterval)
		}
	})
}
