// SPDX-License-Identifier: Apache-2.0

package native_test

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/framework/frameworktest"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
)

func pod(name string, tweak func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "default", UID: types.UID(name),
		Labels: map[string]string{"app": "web"},
	}}
	p.Spec.Containers = []corev1.Container{{Name: "a", Image: "web:1"}}
	if tweak != nil {
		tweak(p)
	}
	return p
}

func node(name string, tweak func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}}}
	n.Status.Allocatable = corev1.ResourceList{
		"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"),
		"pods": resource.MustParse("110"),
	}
	if tweak != nil {
		tweak(n)
	}
	return n
}

func cpu(amount string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(amount), "memory": resource.MustParse("1Gi")}
	}
}

func on(node string, tweak func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.NodeName = node
		if tweak != nil {
			tweak(p)
		}
	}
}

// cases are what single plugins have to say; all others have to bear them.
func cases() map[string][]frameworktest.Case {
	tainted := node("tainted", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "red", Effect: corev1.TaintEffectNoSchedule}}
	})
	disliked := node("disliked", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "old", Effect: corev1.TaintEffectPreferNoSchedule}}
	})
	ssd := node("ssd", func(n *corev1.Node) { n.Labels["disk"] = "ssd" })
	port := func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80, Protocol: corev1.ProtocolTCP}}
	}
	wantsSSD := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }
	apart := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{
			PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, TopologyKey: "kubernetes.io/hostname",
			}}},
		}
	}
	spread := func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: "kubernetes.io/hostname", WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		}}
	}
	return map[string][]frameworktest.Case{
		"NodeName": {{
			Name: "a pod that names its node", Pod: pod("web", on("b", nil)), Nodes: []*corev1.Node{node("a", nil), node("b", nil)},
			Refused: map[string]string{"a": "node(s) didn't match the requested node name"},
		}},
		"NodeUnschedulable": {{
			Name: "a node that is cordoned", Pod: pod("web", nil),
			Nodes:   []*corev1.Node{node("a", func(n *corev1.Node) { n.Spec.Unschedulable = true }), node("b", nil)},
			Refused: map[string]string{"a": "node(s) were unschedulable"},
		}},
		"TaintToleration": {{
			Name: "taints that bind, and taints that count", Pod: pod("web", nil), Nodes: []*corev1.Node{tainted, disliked, node("plain", nil)},
			Refused: map[string]string{"tainted": "untolerated taint"}, Order: []string{"plain", "disliked"},
		}},
		"NodeAffinity": {{
			Name: "a selector", Pod: pod("web", wantsSSD), Nodes: []*corev1.Node{ssd, node("plain", nil)},
			Refused: map[string]string{"plain": "node(s) didn't match Pod's node affinity/selector"},
		}},
		"NodePorts": {{
			Name: "a port that is taken", Pod: pod("web", port), Nodes: []*corev1.Node{node("a", nil), node("b", nil)},
			Running: []*corev1.Pod{pod("other", on("a", port))},
			Refused: map[string]string{"a": "node(s) didn't have free ports for the requested pod ports"},
		}},
		"NodeResourcesFit": {{
			Name: "a node that is full, and one that is emptier", Pod: pod("web", cpu("2")),
			Nodes:   []*corev1.Node{node("full", nil), node("half", nil), node("empty", nil)},
			Running: []*corev1.Pod{pod("a", on("full", cpu("3"))), pod("b", on("half", cpu("1")))},
			Refused: map[string]string{"full": "Insufficient cpu"}, Order: []string{"empty", "half"},
		}},
		"InterPodAffinity": {{
			Name: "away from its like", Pod: pod("web", apart), Nodes: []*corev1.Node{node("a", nil), node("b", nil)},
			Running: []*corev1.Pod{pod("other", on("a", nil))}, Refused: map[string]string{"a": "node(s) didn't match pod anti-affinity rules"},
		}},
		"PodTopologySpread": {{
			Name: "spread over nodes", Pod: pod("web", spread), Nodes: []*corev1.Node{node("a", nil), node("b", nil)},
			Running: []*corev1.Pod{pod("other", on("a", nil))},
			Refused: map[string]string{"a": "node(s) didn't match pod topology spread constraints"},
		}},
	}
}

// TestEveryNativePluginKeepsTheContract: the suite that the adapters of Wasm plugins pass, too.
func TestEveryNativePluginKeepsTheContract(t *testing.T) {
	all := cases()
	var others []frameworktest.Case
	for _, list := range all {
		for _, c := range list {
			c.Refused, c.Order = nil, nil
			others = append(others, c)
		}
	}
	client := fake.NewClientset()
	inf := informers.NewSharedInformerFactory(client, 0)
	told := 0
	for _, w := range native.Default(native.Config{Client: client, Informers: inf}) {
		t.Run(w.Plugin.Name(), func(t *testing.T) {
			frameworktest.Run(t, w.Plugin, all[w.Plugin.Name()]...)
			told += len(all[w.Plugin.Name()])
			for _, c := range others {
				frameworktest.Bear(t, w.Plugin, c)
			}
		})
	}
	if told != len(all) {
		t.Errorf("%d of %d cases were asked", told, len(all))
	}
}

// TestLocalPluginsLookAtOneNode: what is kept of a node is right for every pod with the same
// signature. Their filters need no PreFilter, and neither they nor their scores look at other nodes.
func TestLocalPluginsLookAtOneNode(t *testing.T) {
	client := fake.NewClientset()
	locals := 0
	for _, w := range native.Default(native.Config{Client: client, Informers: informers.NewSharedInformerFactory(client, 0)}) {
		l, ok := w.Plugin.(framework.Local)
		if !ok || !l.IsLocal() {
			continue
		}
		locals++
		for plugin, list := range cases() {
			for _, c := range list {
				pod, whole := framework.NewPodInfo(c.Pod), c.Snapshot()
				all := frameworktest.Ask(t.Context(), l, pod, whole)
				for i, n := range whole.Nodes {
					refusal := all.Nodes[i].Status
					alone := &framework.Snapshot{Nodes: whole.Nodes[i : i+1], Index: map[string]int{n.Node.Name: 0}}
					if one := frameworktest.Ask(t.Context(), l, pod, alone); !reflect.DeepEqual(one.Nodes[0].Status, refusal) {
						t.Errorf("%s about %s, case of %s: alone %v, among others %v", l.Name(), n.Node.Name, plugin, one.Nodes[0].Status, refusal)
					}
					f, ok := w.Plugin.(framework.Filter)
					if !ok {
						continue
					}
					if st := f.Filter(t.Context(), framework.NewState(), pod, n); st.IsSuccess() != refusal.IsSuccess() {
						t.Errorf("%s about %s, case of %s: without PreFilter %v, with it %v", l.Name(), n.Node.Name, plugin, st, refusal)
					}
				}
			}
		}
	}
	if locals < 7 {
		t.Errorf("%d plugins are local", locals)
	}
}
