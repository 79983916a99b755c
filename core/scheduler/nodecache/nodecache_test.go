// SPDX-License-Identifier: Apache-2.0

package nodecache

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

func node(i int) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i), Labels: map[string]string{corev1.LabelTopologyZone: fmt.Sprintf("z%d", i%2)}},
		Status:     corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: []string{fmt.Sprintf("image-%d", i%2)}, SizeBytes: 1}}},
	}
}

func pod(i, on int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i), UID: types.UID(fmt.Sprintf("p%d", i))},
		Spec: corev1.PodSpec{NodeName: fmt.Sprintf("n%d", on), Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": *resource.NewMilliQuantity(int64(100+i), resource.DecimalSI)},
		}}}},
	}
}

// TestTheIncrementalPictureIsTheTruth: whatever happens in whatever order, a
// snapshot equals one worked out from nothing, and earlier ones stay as they were.
func TestTheIncrementalPictureIsTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := New()
		nodes, pods := map[int]bool{}, map[int]int{}
		type frozen struct {
			snap *framework.Snapshot
			want string
		}
		var earlier []frozen
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, 5).Draw(t, "which")
			switch rapid.SampledFrom([]string{"set node", "remove node", "set pod", "remove pod", "assume", "snapshot"}).Draw(t, "what") {
			case "set node":
				c.SetNode(node(i))
				nodes[i] = true
			case "remove node":
				c.RemoveNode(fmt.Sprintf("n%d", i))
				delete(nodes, i)
			case "set pod":
				on := rapid.IntRange(0, 5).Draw(t, "on")
				c.SetPod(pod(i, on))
				pods[i] = on
			case "remove pod":
				c.RemovePod(types.UID(fmt.Sprintf("p%d", i)))
				delete(pods, i)
			case "assume":
				on := rapid.IntRange(0, 5).Draw(t, "on")
				if err := c.Assume(framework.NewPodInfo(pod(i, on)), fmt.Sprintf("n%d", on)); err == nil {
					pods[i] = on
				}
			case "snapshot":
				s := c.Snapshot()
				earlier = append(earlier, frozen{s, render(s)})
			}
		}
		if got, want := render(c.Snapshot()), expect(nodes, pods); got != want {
			t.Fatalf("snapshot:\n%s\nwant:\n%s", got, want)
		}
		for _, f := range earlier {
			if got := render(f.snap); got != f.want {
				t.Fatalf("an earlier snapshot changed:\n%s\nwas:\n%s", got, f.want)
			}
		}
	})
}

func render(s *framework.Snapshot) string {
	out := ""
	for i := range 6 {
		n := s.Node(fmt.Sprintf("n%d", i))
		if n == nil {
			continue
		}
		cpu := int64(0)
		for _, p := range n.Pods {
			cpu += p.Requests.MilliCPU
		}
		if cpu != n.Requested.MilliCPU {
			return fmt.Sprintf("n%d: the sum of the requests is %d, kept is %d", i, cpu, n.Requested.MilliCPU)
		}
		out += fmt.Sprintf("n%d: %d pods, %dm; ", i, len(n.Pods), cpu)
	}
	return out + fmt.Sprintf("%d nodes, images %d %d", len(s.Nodes), s.ImageNodes["image-0"], s.ImageNodes["image-1"])
}

func expect(nodes map[int]bool, pods map[int]int) string {
	out := ""
	images := [2]int{}
	for i := range 6 {
		if !nodes[i] {
			continue
		}
		images[i%2]++
		count, cpu := 0, 0
		for p, on := range pods {
			if on == i {
				count++
				cpu += 100 + p
			}
		}
		out += fmt.Sprintf("n%d: %d pods, %dm; ", i, count, cpu)
	}
	return out + fmt.Sprintf("%d nodes, images %d %d", len(nodes), images[0], images[1])
}

func BenchmarkSnapshotAfterOneChangeIn5000Nodes(b *testing.B) {
	c := New()
	for i := range 5000 {
		c.SetNode(node(i))
	}
	c.Snapshot()
	for i := 0; b.Loop(); i++ {
		c.SetPod(pod(i%1000, i%5000))
		c.Snapshot()
	}
}
