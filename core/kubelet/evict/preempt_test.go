// SPDX-License-Identifier: Apache-2.0

package evict_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/kubelet/evict"
)

func asks(name, cpu, memory string, priority int32) *corev1.Pod {
	p := &corev1.Pod{}
	p.Name, p.UID, p.Spec.Priority = name, types.UID(name), &priority
	c := corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}
	for r, q := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
		if q != "" {
			c.Resources.Requests[r] = resource.MustParse(q)
		}
	}
	p.Spec.Containers = []corev1.Container{c}
	return p
}

// byName has the class of a pod in its name.
func byName(p *corev1.Pod) corev1.PodQOSClass {
	switch p.Name[0] {
	case 'g':
		return corev1.PodQOSGuaranteed
	case 'b':
		return corev1.PodQOSBurstable
	}
	return corev1.PodQOSBestEffort
}

// TestPreempt is upstream's choice.
func TestPreempt(t *testing.T) {
	const critical = 2_000_000_000
	me := asks("me", "1", "", critical)
	for _, c := range []struct {
		what    string
		running []*corev1.Pod
		missing evict.Lack
		want    string
	}{
		{"nothing is missing", []*corev1.Pod{asks("b1", "1", "", 0)}, nil, ""},
		{"burstable before guaranteed", []*corev1.Pod{asks("g1", "1", "", 0), asks("b1", "1", "", 0)}, evict.Lack{"cpu": 1000}, "b1"},
		{"both where one does not do", []*corev1.Pod{asks("g1", "1", "", 0), asks("b1", "1", "", 0)}, evict.Lack{"cpu": 1500}, "b1 g1"},
		{"no more than is needed", []*corev1.Pod{asks("b1", "2", "", 0), asks("b2", "1", "", 0), asks("b3", "1", "", 0)}, evict.Lack{"cpu": 900}, "b2"},
		{"one that is enough", []*corev1.Pod{asks("b1", "500m", "", 0), asks("b2", "2", "", 0), asks("b3", "500m", "", 0)}, evict.Lack{"cpu": 900}, "b2"},
		{"a place among the pods", []*corev1.Pod{asks("b1", "1", "", 0), asks("x1", "", "", 0)}, evict.Lack{"pods": 1}, "x1"},
		{"never another critical one", []*corev1.Pod{asks("b1", "1", "", critical)}, evict.Lack{"cpu": 500}, "no set of running pods"},
		{"but one of lower priority", []*corev1.Pod{asks("b1", "1", "", critical-1)}, evict.Lack{"cpu": 500}, "b1"},
		{"nobody, where all would not do", []*corev1.Pod{asks("b1", "1", "", 0)}, evict.Lack{"cpu": 1500}, "no set of running pods"},
	} {
		got, err := evict.Preempt(me, c.running, c.missing, byName)
		var names []string
		for _, p := range got {
			names = append(names, p.Name)
		}
		if text := strings.Join(names, " "); err == nil && text != c.want || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q, %v, want %q", c.what, text, err, c.want)
		}
	}
}

// TestPreemptIsEnough: the pods that go give back what is missing, none of them critical; and if
// there is an error, all together would not do.
func TestPreemptIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var running []*corev1.Pod
		may := int64(0)
		for i := range rapid.IntRange(0, 8).Draw(t, "pods") {
			p := asks(string("gbx"[rapid.IntRange(0, 2).Draw(t, "class")])+string(rune('0'+i)), "", "", 0)
			n := int64(rapid.IntRange(0, 4).Draw(t, "cpus"))
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *resource.NewQuantity(n, resource.DecimalSI)
			if rapid.Bool().Draw(t, "critical") {
				*p.Spec.Priority = 2_000_000_000
			} else {
				may += 1000 * n
			}
			running = append(running, p)
		}
		missing := int64(rapid.IntRange(1, 12000).Draw(t, "missing"))
		got, err := evict.Preempt(asks("me", "1", "", 2_000_000_000), running, evict.Lack{corev1.ResourceCPU: missing}, byName)
		if (err != nil) != (may < missing) {
			t.Fatalf("%d of %d: %v", missing, may, err)
		}
		sum := int64(0)
		for i, p := range got {
			sum += p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
			if evict.Critical(p) || slices.Contains(got[:i], p) {
				t.Fatalf("%s goes", p.Name)
			}
		}
		if err == nil && sum < missing {
			t.Fatalf("%d of %d", sum, missing)
		}
	})
}
