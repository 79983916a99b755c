// SPDX-License-Identifier: Apache-2.0

package native

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native/shape"
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
