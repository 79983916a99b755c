// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/nodecache"
)

// templates are pods about which each native plugin has something to say.
var templates = []func(*corev1.Pod){
	func(*corev1.Pod) {},
	func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			"cpu": resource.MustParse("1500m"), "memory": resource.MustParse("4Gi"), "example.com/gpu": resource.MustParse("1"),
		}
	},
	func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80, ContainerPort: 80}}
	},
	func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		p.Spec.Tolerations = []corev1.Toleration{{Key: "team", Operator: corev1.TolerationOpExists}}
	},
	func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
		hasDisk := []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpExists}}
		p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{
			Weight: 10, Preference: corev1.NodeSelectorTerm{MatchExpressions: hasDisk},
		}}
	},
	func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{affinityTerm("lonely", corev1.LabelHostname)},
		}}
	},
	func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: apps("spread"),
		}}
	},
	func(p *corev1.Pod) { p.Spec.Containers[0].Image = "huge:1" },
	func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
		named := []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n03", "n11"}}}
		p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: named}},
		}
	},
	func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{affinityTerm("lonely", corev1.LabelTopologyZone)},
		}}
	},
}

func ofTemplate(i, template int) *corev1.Pod {
	p := pod(fmt.Sprintf("p%04d", i), "400m")
	p.Labels = map[string]string{"app": []string{"lonely", "spread", "other"}[template%3]}
	templates[template](p)
	return p
}

func randomNode(r *rand.Rand, name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelTopologyZone: []string{"a", "b", "c"}[r.IntN(3)],
	}}}
	n.Status.Allocatable = corev1.ResourceList{
		"cpu": resource.MustParse([]string{"2", "4", "8"}[r.IntN(3)]), "memory": resource.MustParse("16Gi"), "pods": resource.MustParse("8"),
		"example.com/gpu": resource.MustParse(fmt.Sprint(r.IntN(3))),
	}
	if r.IntN(3) == 0 {
		n.Labels["disk"] = "ssd"
	}
	if r.IntN(5) == 0 {
		effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule}
		n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "red", Effect: effects[r.IntN(2)]}}
	}
	if r.IntN(4) == 0 {
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"huge:1"}, SizeBytes: 500 << 20}}
	}
	n.Spec.Unschedulable = r.IntN(12) == 0
	return n
}

// What pods of one template share changes no decision: with what is kept from cycle to cycle, and without,
// the same snapshot and seed give the same nodes, refusals and scores, whatever happens to the cluster
// in between.
func TestSharedWorkChangesNoDecision(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // it is to be repeated
			plugins := native.Default(native.Config{Informers: informers.NewSharedInformerFactory(fake.NewClientset(), 0)})
			r.Shuffle(len(plugins), func(i, j int) { plugins[i], plugins[j] = plugins[j], plugins[i] })
			sharing, err := scheduler.Decider(plugins)
			if err != nil {
				t.Fatal(err)
			}
			plain, err := scheduler.Decider(plugins)
			if err != nil {
				t.Fatal(err)
			}
			cache, running := nodecache.New(), []types.UID{}
			for i := range 40 {
				cache.SetNode(randomNode(r, fmt.Sprintf("n%02d", i)))
			}
			placed, refused := 0, 0
			for i := range 400 {
				switch r.IntN(8) {
				case 0:
					cache.SetNode(randomNode(r, fmt.Sprintf("n%02d", r.IntN(44))))
				case 1:
					cache.RemoveNode(fmt.Sprintf("n%02d", r.IntN(44)))
				case 2, 3, 4:
					if len(running) > 0 {
						at := r.IntN(len(running))
						cache.RemovePod(running[at])
						running = slices.Delete(running, at, at+1)
					}
				}
				p := framework.NewPodInfo(ofTemplate(i, r.IntN(len(templates))))
				with := cache.Snapshot()
				without := *with
				without.Memo = nil
				d := sharing(t.Context(), p, with)
				if got, want := told(d), told(plain(t.Context(), p, &without)); got != want {
					t.Fatalf("step %d: with what is kept:\n%s\nwithout:\n%s", i, got, want)
				}
				if d.Node == "" {
					refused++
					continue
				}
				placed++
				if err := cache.Assume(p, d.Node); err != nil {
					t.Fatal(err)
				}
				running = append(running, p.Pod.UID)
			}
			if placed < 50 || refused < 20 {
				t.Fatalf("%d pods placed, %d refused: the history shows too little", placed, refused)
			}
		})
	}
}
