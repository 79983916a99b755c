// SPDX-License-Identifier: Apache-2.0

package native_test

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/framework/frameworktest"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
)

// spreader is the plugin as the scheduler has it, over a cluster with these objects.
func spreader(t *testing.T, constraints []corev1.TopologySpreadConstraint, objects ...k8sruntime.Object) framework.Plugin {
	t.Helper()
	inf := informers.NewSharedInformerFactory(fake.NewClientset(objects...), 0)
	for _, w := range native.Default(native.Config{Informers: inf, Spread: constraints}) {
		if w.Name() != "PodTopologySpread" {
			continue
		}
		inf.Start(t.Context().Done())
		inf.WaitForCacheSync(t.Context().Done())
		t.Cleanup(inf.Shutdown)
		return w.Plugin
	}
	t.Fatal("PodTopologySpread is not listed")
	return nil
}

func service(selector map[string]string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: corev1.ServiceSpec{Selector: selector}}
}

func replicaSet(labels map[string]string) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", Namespace: "default"},
		Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}
}

func ownedBy(kind, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: "owner", Controller: &yes}}
	}
}

func zone(name string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = name }
}

// What upstream documents for cluster-level default constraints.
func TestPodsWithoutConstraintsAreSpreadAsUpstreamDoes(t *testing.T) {
	app := map[string]string{"app": "web"}
	ab := []*corev1.Node{node("a", nil), node("b", nil)}
	zoned := []*corev1.Node{node("a", zone("east")), node("b", zone("west")), node("c", zone("east"))}
	strict := []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule}}
	own := func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: "rack", WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: app},
		}}
	}
	racks := []*corev1.Node{
		node("a", func(n *corev1.Node) { n.Labels["rack"] = "1" }), node("b", func(n *corev1.Node) { n.Labels["rack"] = "2" }), node("c", nil),
	}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec:       appsv1.StatefulSetSpec{Selector: &metav1.LabelSelector{MatchLabels: app}},
	}
	rc := &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec:       corev1.ReplicationControllerSpec{Selector: app},
	}
	rcOwned := func(p *corev1.Pod) {
		ownedBy("ReplicationController", "web")(p)
		p.OwnerReferences[0].APIVersion = "v1"
	}
	for _, c := range []struct {
		objects     []k8sruntime.Object
		constraints []corev1.TopologySpreadConstraint
		frameworktest.Case
	}{
		{objects: []k8sruntime.Object{service(app)}, Case: frameworktest.Case{
			Name: "pods of a Service, in a cluster without zones", Pod: pod("web", nil), Nodes: ab,
			Running: []*corev1.Pod{pod("other", on("a", nil))}, Order: []string{"b", "a"},
		}},
		{objects: []k8sruntime.Object{service(app)}, Case: frameworktest.Case{
			Name: "zones count too", Pod: pod("web", nil), Nodes: zoned,
			Running: []*corev1.Pod{pod("other", on("a", nil))}, Order: []string{"b", "c", "a"},
		}},
		{objects: []k8sruntime.Object{replicaSet(app)}, Case: frameworktest.Case{
			Name: "pods of a ReplicaSet", Pod: pod("web", ownedBy("ReplicaSet", "web-1")), Nodes: ab,
			Running: []*corev1.Pod{pod("other", on("a", nil))}, Order: []string{"b", "a"},
		}},
		{objects: []k8sruntime.Object{set}, Case: frameworktest.Case{
			Name: "pods of a StatefulSet", Pod: pod("web", ownedBy("StatefulSet", "web")), Nodes: ab,
			Running: []*corev1.Pod{pod("other", on("a", nil))}, Order: []string{"b", "a"},
		}},
		{objects: []k8sruntime.Object{rc}, Case: frameworktest.Case{
			Name: "pods of a ReplicationController", Pod: pod("web", rcOwned), Nodes: ab,
			Running: []*corev1.Pod{pod("other", on("a", nil))}, Order: []string{"b", "a"},
		}},
		{objects: []k8sruntime.Object{service(app)}, constraints: []corev1.TopologySpreadConstraint{}, Case: frameworktest.Case{
			Name: "an empty list spreads nothing", Pod: pod("web", nil), Nodes: ab, Running: []*corev1.Pod{pod("other", on("a", nil))},
		}},
		{objects: []k8sruntime.Object{service(app)}, constraints: strict, Case: frameworktest.Case{
			Name: "a list may refuse nodes", Pod: pod("web", nil), Nodes: ab,
			Running: []*corev1.Pod{pod("other", on("a", nil))},
			Refused: map[string]string{"a": "node(s) didn't match pod topology spread constraints"},
		}},
		{constraints: strict, Case: frameworktest.Case{
			Name: "a pod that is nobody's is not spread", Pod: pod("web", nil), Nodes: ab, Running: []*corev1.Pod{pod("other", on("a", nil))},
		}},
		{objects: []k8sruntime.Object{service(map[string]string{"app": "db"})}, constraints: strict, Case: frameworktest.Case{
			Name: "nor is one that a Service leaves out", Pod: pod("web", nil), Nodes: ab, Running: []*corev1.Pod{pod("other", on("a", nil))},
		}},
		{objects: []k8sruntime.Object{service(app)}, Case: frameworktest.Case{
			Name: "constraints of its own need all their keys", Pod: pod("web", own), Nodes: racks,
			Running: []*corev1.Pod{pod("other", on("a", nil))}, Order: []string{"b", "a", "c"},
		}},
	} {
		t.Run(c.Name, func(t *testing.T) {
			frameworktest.Run(t, spreader(t, c.constraints, c.objects...), c.Case)
			if len(c.Order) == 0 {
				return
			}
			var nodes []*framework.NodeInfo
			rating := map[string]int64{}
			for _, n := range c.Nodes {
				info := framework.NewNodeInfo(n)
				for _, r := range c.Running {
					if r.Spec.NodeName == n.Name {
						info = info.WithPod(framework.NewPodInfo(r))
					}
				}
				nodes = append(nodes, info)
			}
			for i, score := range scoresOf(t, spreader(t, c.constraints, c.objects...), nil, framework.NewPodInfo(c.Pod), nodes) {
				rating[nodes[i].Node.Name] = score
			}
			if first, last := c.Order[0], c.Order[len(c.Order)-1]; rating[first] >= rating[last] {
				t.Errorf("before they are turned round, %s is to have less than %s: %v", first, last, rating)
			}
		})
	}
}

// Counts that are kept from cycle to cycle are those that counting anew gives.
func TestKeptCountsFollowTheCluster(t *testing.T) {
	objects := []k8sruntime.Object{service(map[string]string{"app": "web"})}
	plugin, memo := spreader(t, nil, objects...), framework.NewMemo()
	nodes := []*framework.NodeInfo{}
	for i := range 6 {
		nodes = append(nodes, framework.NewNodeInfo(node(fmt.Sprint("n", i), zone(fmt.Sprint("z", i%2)))))
	}
	p := framework.NewPodInfo(pod("web", nil))
	change := []func(){
		func() {},
		func() { nodes[0] = nodes[0].WithPod(framework.NewPodInfo(pod("one", nil))) },
		func() {
			nodes[1] = nodes[1].WithPod(framework.NewPodInfo(pod("two", nil))).WithPod(framework.NewPodInfo(pod("three", nil)))
		},
		func() { nodes[0] = nodes[0].WithoutPod(nodes[0].Pods[0]) },
		func() { nodes = append(nodes, framework.NewNodeInfo(node("late", zone("z3")))) },
		func() { nodes[5] = framework.NewNodeInfo(node("n5", zone("z4"))) },
		func() { nodes = nodes[1:] },
	}
	for step, do := range change {
		do()
		got, want := scoresOf(t, plugin, memo, p, nodes), scoresOf(t, plugin, nil, p, nodes)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("after step %d: %v, counted anew %v", step, got, want)
		}
	}
}

func scoresOf(t *testing.T, plugin framework.Plugin, memo *framework.Memo, p *framework.PodInfo, nodes []*framework.NodeInfo) []int64 {
	t.Helper()
	state := framework.NewState()
	snap := &framework.Snapshot{Nodes: append([]*framework.NodeInfo(nil), nodes...), Index: map[string]int{}, Memo: memo}
	for i, n := range nodes {
		snap.Index[n.Node.Name] = i
	}
	if _, st := plugin.(framework.PreFilter).PreFilter(t.Context(), state, p, snap); !st.IsSuccess() && st.Code != framework.Skip {
		t.Fatal(st.Reasons)
	}
	if st := plugin.(framework.PreScore).PreScore(t.Context(), state, p, snap.Nodes); !st.IsSuccess() {
		t.Fatal(st.Reasons)
	}
	scores := make([]int64, len(nodes))
	for i, n := range nodes {
		score, st := plugin.(framework.Score).Score(t.Context(), state, p, n)
		if !st.IsSuccess() {
			t.Fatal(st.Reasons)
		}
		scores[i] = score
	}
	return scores
}
