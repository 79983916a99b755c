// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
	"github.com/wasmplane/wasmplane/core/scheduler/report"
)

// cluster is a fake API with a running scheduler.
type cluster struct {
	t      *testing.T
	client *fake.Clientset
	pods   watch.Interface
	s      *scheduler.Scheduler

	metrics *prometheus.Registry
}

func start(t *testing.T, extra ...scheduler.Weighted) *cluster {
	t.Helper()
	return startWith(t, queue.Config{}, func(api report.Effects) report.Effects { return api }, extra...)
}

// startWith is start with another queue, and other effects than the API's.
func startWith(t *testing.T, waiting queue.Config, effects func(api report.Effects) report.Effects, extra ...scheduler.Weighted) *cluster {
	t.Helper()
	client := fake.NewClientset()
	client.PrependReactor("create", "pods/binding", func(a clienttesting.Action) (bool, runtime.Object, error) {
		b := a.(clienttesting.CreateAction).GetObject().(*corev1.Binding)
		o, err := client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), b.Namespace, b.Name)
		if err != nil {
			return true, nil, err
		}
		p := o.(*corev1.Pod).DeepCopy()
		p.Spec.NodeName, p.Annotations = b.Target.Name, b.Annotations
		return true, nil, client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, b.Namespace)
	})
	inf := informers.NewSharedInformerFactory(client, 0)
	metrics := prometheus.NewRegistry()
	s, err := scheduler.NewWith(scheduler.Config{
		Client: client, Informers: inf, Logger: slog.New(slog.DiscardHandler), Metrics: metrics, Queue: waiting,
		Profiles: []scheduler.Profile{{
			Name:    corev1.DefaultSchedulerName,
			Plugins: append(native.Default(native.Config{Client: client, Informers: inf}), extra...),
		}},
	}, effects(report.API{Client: client}))
	if err != nil {
		t.Fatal(err)
	}
	pods, err := client.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	inf.Start(ctx.Done())
	done := run.Go("scheduler", func() error { return s.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		inf.Shutdown()
		pods.Stop()
	})
	<-s.Ready()
	return &cluster{t, client, pods, s, metrics}
}

// node makes a node and returns once the scheduler has seen it.
func (c *cluster) node(name, cpu string, change ...func(*corev1.Node)) {
	c.t.Helper()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			"cpu": resource.MustParse(cpu), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110"),
		}},
	}
	for _, f := range change {
		f(n)
	}
	if _, err := c.client.CoreV1().Nodes().Create(c.t.Context(), n, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(c.t.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return c.s.Knows(name), nil
	})
	if err != nil {
		c.t.Fatalf("the scheduler does not see node %s: %v", name, err)
	}
}

func pod(name, cpu string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{
			SchedulerName: corev1.DefaultSchedulerName,
			Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)},
			}}},
		},
	}
}

func (c *cluster) create(p *corev1.Pod) {
	c.t.Helper()
	if _, err := c.client.CoreV1().Pods("default").Create(c.t.Context(), p, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// await returns the first state of the pod that satisfies ok.
func (c *cluster) await(name string, ok func(*corev1.Pod) bool) *corev1.Pod {
	c.t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case e := <-c.pods.ResultChan():
			if p, is := e.Object.(*corev1.Pod); is && p.Name == name && ok(p) {
				return p
			}
		case <-limit:
			c.t.Fatalf("pod %s did not get there", name)
		}
	}
}

func bound(p *corev1.Pod) bool { return p.Spec.NodeName != "" }

func refused(p *corev1.Pod) bool { return message(p) != "" }

func message(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	return ""
}

func TestPodsGoWhereThereIsRoom(t *testing.T) {
	c := start(t)
	c.node("small", "1")
	c.node("large", "4")
	c.create(pod("a", "2"))
	if p := c.await("a", bound); p.Spec.NodeName != "large" {
		t.Fatalf("a runs on %s", p.Spec.NodeName)
	}
}

func TestAPodThatFitsNowhereIsToldWhyAndGoesOnceANodeComes(t *testing.T) {
	c := start(t)
	c.node("small", "1")
	c.node("cordoned", "8", func(n *corev1.Node) { n.Spec.Unschedulable = true })
	c.node("tainted", "8", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "blue", Effect: corev1.TaintEffectNoSchedule}}
	})
	c.create(pod("a", "2"))
	want := "0/3 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {team: blue}, 1 node(s) were unschedulable. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
	if got := message(c.await("a", refused)); got != want {
		t.Fatalf("message:\n%s\nwant:\n%s", got, want)
	}
	c.node("new", "4")
	if p := c.await("a", bound); p.Spec.NodeName != "new" {
		t.Fatalf("a runs on %s", p.Spec.NodeName)
	}
}

func TestRoomThatAPodLeavesIsUsed(t *testing.T) {
	c := start(t)
	c.node("n", "2")
	c.create(pod("a", "2"))
	c.await("a", bound)
	c.create(pod("b", "1"))
	c.await("b", refused)
	if err := c.client.CoreV1().Pods("default").Delete(c.t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("b", bound)
}

// Room that a pod gives back without ending is used as soon as its node has taken note of it, and not before.
func TestRoomThatAPodGivesBackIsUsed(t *testing.T) {
	c := start(t)
	c.node("n", "2")
	c.create(pod("a", "2"))
	a := c.await("a", bound)
	changed := func(asks, has string) {
		t.Helper()
		list := func(cpu string) corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		}
		a = a.DeepCopy()
		a.Generation++
		a.Spec.Containers[0].Resources.Requests = list(asks)
		a.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: a.Spec.Containers[0].Name, AllocatedResources: list(has), Resources: &corev1.ResourceRequirements{Requests: list(has)},
		}}
		var err error
		if a, err = c.client.CoreV1().Pods("default").Update(t.Context(), a, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	changed("2", "2")
	changed("1", "2")
	c.create(pod("b", "1"))
	c.await("b", refused)
	changed("1", "1")
	c.await("b", bound)
}

// A label that a running pod gets lets those in that look for it, at once.
func TestALabelThatARunningPodGetsHelps(t *testing.T) {
	c := start(t)
	c.node("n", "4")
	c.create(pod("a", "1"))
	a := c.await("a", bound)
	near := pod("b", "1")
	near.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: "kubernetes.io/hostname", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cache"}},
		}},
	}}
	c.create(near)
	c.await("b", refused)
	a = a.DeepCopy()
	a.Labels = map[string]string{"app": "cache"}
	if _, err := c.client.CoreV1().Pods("default").Update(t.Context(), a, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("b", bound)
}

func TestNoNodesAtAll(t *testing.T) {
	c := start(t)
	c.create(pod("a", "1"))
	if got, want := message(c.await("a", refused)), "0/0 nodes are available: no nodes available to schedule pods."; got != want {
		t.Fatalf("message %q, want %q", got, want)
	}
}

// zone judges all nodes in one call: only nodes of its zone, the last in name best.
type zone struct{ name string }

func (zone) Name() string { return "zone" }
func (z zone) Judge(_ context.Context, _ *framework.PodInfo, s *framework.Snapshot) ([]framework.Verdict, *framework.Status) {
	out := make([]framework.Verdict, len(s.Nodes))
	for i, n := range s.Nodes {
		if n.Node.Labels["zone"] != z.name {
			out[i].Status = framework.NewStatus(framework.Unschedulable, "node(s) were in another zone")
			continue
		}
		_, _ = fmt.Sscanf(n.Node.Name, "n%d", &out[i].Score)
	}
	return out, nil
}

func TestAJudgeFiltersAndScoresAllNodesInOneCall(t *testing.T) {
	c := start(t, scheduler.Weighted{Plugin: zone{"east"}, Weight: 100})
	for i, z := range []string{"east", "east", "west"} {
		c.node(fmt.Sprintf("n%d", i), "4", func(n *corev1.Node) { n.Labels["zone"] = z })
	}
	c.create(pod("a", "1"))
	if p := c.await("a", bound); p.Spec.NodeName != "n1" {
		t.Fatalf("a runs on %s", p.Spec.NodeName)
	}
}

// broken fails as a plugin of a guest that traps does.
type broken struct{}

func (broken) Name() string { return "broken" }
func (broken) Filter(context.Context, *framework.State, *framework.PodInfo, *framework.NodeInfo) *framework.Status {
	return framework.AsStatus(fmt.Errorf("trap: unreachable"))
}

func TestAFailingPluginIsNamedAndThePodIsTriedAgain(t *testing.T) {
	c := start(t, scheduler.Weighted{Plugin: broken{}})
	c.node("n", "4")
	c.create(pod("a", "1"))
	p := c.await("a", refused)
	if got := message(p); !strings.Contains(got, "plugin broken: trap: unreachable") {
		t.Fatalf("message %q", got)
	}
}

func TestHostPortsAndSelectors(t *testing.T) {
	c := start(t)
	c.node("a", "4", func(n *corev1.Node) { n.Labels["disk"] = "ssd" })
	c.node("b", "4")
	p := pod("p", "1")
	p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80, ContainerPort: 80}}
	c.create(p)
	if p := c.await("p", bound); p.Spec.NodeName != "a" {
		t.Fatalf("p runs on %s", p.Spec.NodeName)
	}
	q := p.DeepCopy()
	q.Name, q.UID, q.Spec.NodeName = "q", "uid-q", ""
	c.create(q)
	want := "0/2 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, 1 node(s) didn't match Pod's node affinity/selector. " +
		"preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling."
	if got := message(c.await("q", refused)); got != want {
		t.Fatalf("message:\n%s\nwant:\n%s", got, want)
	}
}
