// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

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

// benchZones is how many zones the cluster of the decisions that are measured has.
const benchZones = 10

func benchNode(i int) *corev1.Node {
	name := fmt.Sprintf("node-%05d", i)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelTopologyZone: fmt.Sprint("zone-", i%benchZones),
		}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			"cpu": resource.MustParse("32"), "memory": resource.MustParse("256Gi"), "pods": resource.MustParse("110"),
		}},
	}
}

func benchPod(i int, kind string) *corev1.Pod {
	name := fmt.Sprintf("pod-%06d", i)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "default", UID: types.UID(name),
		Labels: map[string]string{"app": kind},
	}}
	p.Spec.Containers = []corev1.Container{{Name: "a", Image: "web:1", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi"),
	}}}}
	like := &metav1.LabelSelector{MatchLabels: map[string]string{"app": kind}}
	near := func(key string) []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{TopologyKey: key, LabelSelector: like}}
	}
	switch kind {
	case "anti-affinity":
		p.Spec.Affinity = &corev1.Affinity{
			PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: near(corev1.LabelHostname)},
		}
	case "affinity":
		p.Spec.Affinity = &corev1.Affinity{
			PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: near(corev1.LabelTopologyZone)},
		}
	case "spread":
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: like,
		}}
	}
	return p
}

// BenchmarkDecide is one decision and what the cache does for it, in a cluster where half
// as many pods of the same kind run as there are nodes, one coming for each that goes.
func BenchmarkDecide(b *testing.B) {
	for _, nodes := range []int{1000, 5000} {
		for _, kind := range []string{"plain", "anti-affinity", "affinity", "spread"} {
			b.Run(fmt.Sprintf("%s/nodes=%d", kind, nodes), func(b *testing.B) { decideOften(b, nodes, kind) })
		}
	}
}

func decideOften(b *testing.B, nodes int, kind string) {
	inf := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	decide, err := scheduler.Decider(native.Default(native.Config{Informers: inf}))
	if err != nil {
		b.Fatal(err)
	}
	cache := nodecache.New()
	for i := range nodes {
		cache.SetNode(benchNode(i))
	}
	one := func(i int) {
		p := framework.NewPodInfo(benchPod(i, kind))
		d := decide(b.Context(), p, cache.Snapshot())
		if d.Node == "" {
			b.Fatal(d.Message())
		}
		if err := cache.Assume(p, d.Node); err != nil {
			b.Fatal(err)
		}
	}
	half := nodes / 2
	for i := range half {
		one(i)
	}
	b.ReportAllocs()
	i, began := half, used(b)
	for b.Loop() {
		one(i)
		cache.RemovePod(types.UID(fmt.Sprintf("pod-%06d", i-half)))
		i++
	}
	b.ReportMetric(float64(used(b)-began)/float64(i-half), "cpu-ns/op")
}

// used is the CPU time of this process: unlike time on the wall, it says the same on a busy
// machine, or nearly.
func used(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkGang is a gang of 1,000 pods that come to 5,000 nodes: it is placed, or one pod too
// many for the cluster is in it, or it is placed within one of ten zones.
func BenchmarkGang(b *testing.B) {
	for _, kind := range []string{"placed", "refused", "in one zone"} {
		b.Run(kind, func(b *testing.B) {
			var began time.Duration
			for b.Loop() {
				b.StopTimer()
				w := newWorld(b, 1)
				for i := range 5000 {
					w.v.SetNode(benchNode(i))
				}
				if kind == "in one zone" {
					w.group("g", 1000, 0, within(corev1.LabelTopologyZone))
				} else {
					w.group("g", 1000, 0)
				}
				cpu := "4"
				if kind == "refused" {
					cpu = "160" // no node has it
				}
				w.members("g", 1000, cpu, 0)
				b.StartTimer()
				before := used(b)
				if _, worked, _ := w.v.Step(b.Context()); !worked {
					b.Fatal("nothing was tried")
				}
				began += used(b) - before
				b.StopTimer()
				if n, _ := w.on("g"); (n == 1000) == (kind == "refused") {
					b.Fatalf("%d pods have nodes: %s", n, w.told["group g"])
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(began)/float64(b.N), "cpu-ns/op")
		})
	}
}
