// SPDX-License-Identifier: Apache-2.0

package native

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native/shape"
	"github.com/wasmplane/wasmplane/core/scheduler/nodecache"
)

// Half of the cpu and a quarter of the memory are taken with the pod, and 1 of 4 of what is rare.
func TestFitScoresByStrategy(t *testing.T) {
	rare := corev1.ResourceName("example.com/rare")
	p := &framework.PodInfo{
		Requests: framework.Resources{MilliCPU: 1000, Memory: 1 << 30, Scalar: map[corev1.ResourceName]int64{rare: 1}},
		NonZero:  framework.Resources{MilliCPU: 1000, Memory: 1 << 30},
	}
	n := &framework.NodeInfo{
		Allocatable: framework.Resources{MilliCPU: 4000, Memory: 8 << 30, Pods: 10, Scalar: map[corev1.ResourceName]int64{rare: 4}},
		NonZero:     framework.Resources{MilliCPU: 1000, Memory: 1 << 30},
	}
	line := func(points ...int64) (out shape.Shape) {
		for i := 0; i < len(points); i += 2 {
			out = append(out, shape.Point{Utilization: points[i], Score: points[i+1]})
		}
		return out
	}
	most := line(0, 0, 100, 100)
	for name, c := range map[string]struct {
		fit  Fit
		want int64
	}{
		"least":                 {Fit{}, 62},
		"least, only cpu":       {Fit{Resources: []ResourceWeight{{corev1.ResourceCPU, 1}}}, 50},
		"most":                  {Fit{Shape: most}, 37},
		"most, cpu weighs more": {Fit{Shape: most, Resources: []ResourceWeight{{corev1.ResourceCPU, 3}, {corev1.ResourceMemory, 1}}}, 43},
		"most, what is rare":    {Fit{Shape: most, Resources: []ResourceWeight{{rare, 1}}}, 25},
		"a resource that is not there does not count": {Fit{Shape: most, Resources: []ResourceWeight{{corev1.ResourceCPU, 1}, {"example.com/none", 9}}}, 50},
		"between points":   {Fit{Shape: line(40, 0, 60, 80), Resources: []ResourceWeight{{corev1.ResourceCPU, 1}}}, 40},
		"before the first": {Fit{Shape: line(60, 80), Resources: []ResourceWeight{{corev1.ResourceCPU, 1}}}, 80},
		"after the last":   {Fit{Shape: line(10, 80, 20, 30), Resources: []ResourceWeight{{corev1.ResourceCPU, 1}}}, 30},
		"ratio, rounded":   {Fit{Shape: most, Ratio: true}, 38},
		"ratio, a resource without a score does not count": {Fit{Shape: line(30, 0, 100, 70), Ratio: true}, 20},
	} {
		if got, st := c.fit.Score(t.Context(), nil, p, n); got != c.want || !st.IsSuccess() {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	n.Requested.Scalar = map[corev1.ResourceName]int64{rare: 4}
	if st := (Fit{}).Filter(t.Context(), nil, p, n); st.IsSuccess() {
		t.Error("a resource that is used up refuses nobody")
	}
	for _, f := range []Fit{{Ignored: []string{string(rare)}}, {IgnoredGroups: []string{"example.com"}}} {
		if st := f.Filter(t.Context(), nil, p, n); !st.IsSuccess() {
			t.Errorf("an ignored resource refuses: %v", st.Reasons)
		}
	}
}

// A node of 1000 millicores and 1000 bytes, of which half the millicores are used: a pod that asks for the other
// makes it worse, one that asks for memory better.
func TestBalanceRatesWhatThePodChanges(t *testing.T) {
	rare := corev1.ResourceName("example.com/rare")
	n := &framework.NodeInfo{
		Allocatable: framework.Resources{MilliCPU: 1000, Memory: 1000, Scalar: map[corev1.ResourceName]int64{rare: 4}},
		Requested:   framework.Resources{MilliCPU: 500, Scalar: map[corev1.ResourceName]int64{rare: 2}},
	}
	three := Balance{Resources: []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, rare}}
	for name, c := range map[string]struct {
		balance Balance
		asks    framework.Resources
		want    int64
	}{
		"alike":                       {Balance{}, framework.Resources{MilliCPU: 100, Memory: 100}, 75},
		"worse":                       {Balance{}, framework.Resources{MilliCPU: 500}, 62},
		"better":                      {Balance{}, framework.Resources{Memory: 500}, 87},
		"more than there is is all":   {Balance{}, framework.Resources{MilliCPU: 9000}, 62},
		"what is rare is not asked":   {three, framework.Resources{Memory: 500}, 87},
		"what is rare is asked":       {three, framework.Resources{Memory: 500, Scalar: map[corev1.ResourceName]int64{rare: 1}}, 81},
		"what a node does not have":   {Balance{Resources: []corev1.ResourceName{corev1.ResourceCPU, "example.com/none"}}, framework.Resources{MilliCPU: 500}, 75},
		"of one resource all is even": {Balance{Resources: []corev1.ResourceName{corev1.ResourceCPU}}, framework.Resources{MilliCPU: 500}, 75},
	} {
		p := &framework.PodInfo{Requests: c.asks}
		if got, st := c.balance.Score(t.Context(), nil, p, n); got != c.want || !st.IsSuccess() {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		if st := c.balance.PreScore(t.Context(), nil, p, nil); !st.IsSuccess() {
			t.Errorf("%s: it is skipped", name)
		}
	}
	if st := three.PreScore(t.Context(), nil, &framework.PodInfo{}, nil); st.IsSuccess() {
		t.Error("a pod without requests is rated")
	}
}

// An image of 500 MiB on two of four nodes counts half, however few of them are left: of 1000 MiB for
// each container and image volume.
func TestImagesCountByTheirSpreadOverTheCluster(t *testing.T) {
	node := func(name string, images ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Images = []corev1.ContainerImage{{Names: images, SizeBytes: 500 << 20}}
		return n
	}
	cache := nodecache.New()
	for _, n := range []*corev1.Node{node("a", "big:1"), node("b"), node("c", "big:1", "data:latest"), node("d")} {
		cache.SetNode(n)
	}
	snap := cache.Snapshot()
	bare := *snap
	bare.ImageNodes = nil
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "big:1"}}}}
	with := p.DeepCopy()
	with.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "data"}}}}
	for _, c := range []struct {
		pod  *corev1.Pod
		want int64 // on node c
	}{
		{p, 23},    // (250-23) of (1000-23)
		{with, 17}, // (250+125-23) of (2000-23)
	} {
		for _, s := range []*framework.Snapshot{snap, &bare} {
			state, left := framework.NewState(), []*framework.NodeInfo{s.Node("c")}
			state.Accompany(framework.Company{Snapshot: s})
			if st := (ImageLocality{}).PreScore(t.Context(), state, framework.NewPodInfo(c.pod), left); !st.IsSuccess() {
				t.Fatal(st.Joined())
			}
			if got, _ := (ImageLocality{}).Score(t.Context(), state, framework.NewPodInfo(c.pod), left[0]); got != c.want {
				t.Errorf("score %d, want %d", got, c.want)
			}
		}
	}
	before := snap.NodesWith("big:1")
	cache.SetNode(node("b", "big:1"))
	cache.RemoveNode("a")
	cache.RemoveNode("c")
	now := cache.Snapshot()
	if before != 2 || snap.NodesWith("big:1") != 2 || now.NodesWith("big:1") != 1 || now.NodesWith("data:latest") != 0 {
		t.Errorf("%d nodes, then %d, and now %d", before, snap.NodesWith("big:1"), now.NodesWith("big:1"))
	}
}
