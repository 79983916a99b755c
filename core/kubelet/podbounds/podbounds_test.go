// SPDX-License-Identifier: Apache-2.0

package podbounds_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/wasmplane/wasmplane/core/kubelet/podbounds"
)

// asks is "requests of cpu and memory, limits of them"; empty are left out.
func asks(cpu, memory, cpuLimit, memoryLimit string) corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	set := func(l corev1.ResourceList, name corev1.ResourceName, v string) {
		if v != "" {
			l[name] = resource.MustParse(v)
		}
	}
	set(r.Requests, corev1.ResourceCPU, cpu)
	set(r.Requests, corev1.ResourceMemory, memory)
	set(r.Limits, corev1.ResourceCPU, cpuLimit)
	set(r.Limits, corev1.ResourceMemory, memoryLimit)
	return r
}

func aPod(whole *corev1.ResourceRequirements, containers ...corev1.ResourceRequirements) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{Resources: whole}}
	for _, r := range containers {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Resources: r})
	}
	return p
}

func TestBounds(t *testing.T) {
	whole := asks("2", "", "3", "")
	limited := aPod(nil, asks("", "1", "1", "2"))
	limited.Spec.InitContainers = []corev1.Container{{}}
	heavy := aPod(nil, asks("1", "1", "1", "1"))
	heavy.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want podbounds.Bounds
	}{
		{"the sum of its containers", aPod(nil, asks("1", "1", "1", "2"), asks("1", "1", "2", "2")), podbounds.Bounds{CPU: 2000, CPULimit: 3000, Memory: 2, MemoryLimit: 4}},
		{"one without limits", aPod(nil, asks("1", "1", "1", "2"), asks("1", "1", "", "2")), podbounds.Bounds{CPU: 2000, Memory: 2, MemoryLimit: 4}},
		{"an init container without limits", limited, podbounds.Bounds{Memory: 1}},
		{"as a whole", aPod(&whole, asks("1", "1", "1", "2"), asks("", "", "", "")), podbounds.Bounds{CPU: 2000, CPULimit: 3000, Memory: 1}},
		{"overhead", heavy, podbounds.Bounds{CPU: 1500, CPULimit: 1500, Memory: 1, MemoryLimit: 1}},
	} {
		got := podbounds.Of(c.pod)
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		if again := podbounds.Of(got.Bounded(c.pod)); again != got {
			t.Errorf("%s: a pod bounded to %+v has %+v", c.name, got, again)
		}
	}
}

func TestTheLargerOfBoth(t *testing.T) {
	a := podbounds.Bounds{CPU: 1, CPULimit: 5, Memory: 7, MemoryLimit: 0}
	b := podbounds.Bounds{CPU: 2, CPULimit: 4, Memory: 6, MemoryLimit: 9}
	if got, want := a.With(b), (podbounds.Bounds{CPU: 2, CPULimit: 5, Memory: 7}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestInherit(t *testing.T) {
	own, whole := asks("1", "1", "", "1Gi"), asks("2", "2Gi", "3", "2Gi")
	whole.Limits["hugepages-2Mi"], whole.Limits["example.com/gpu"] = resource.MustParse("4Mi"), resource.MustParse("1")
	got := podbounds.Inherit(&own, &whole)
	if got.Limits.Cpu().String() != "3" || got.Limits.Memory().String() != "1Gi" || len(got.Limits) != 3 ||
		got.Requests.Cpu().String() != "1" {
		t.Errorf("%+v", got)
	}
	if len(own.Limits) != 1 {
		t.Errorf("what was given was changed: %+v", own)
	}
	if podbounds.Inherit(&own, nil) != &own {
		t.Error("without a whole it is its own")
	}
}

func TestSame(t *testing.T) {
	a, b := asks("1", "", "", ""), asks("1000m", "", "", "")
	if !podbounds.Same(&a, &b) || podbounds.Same(&a, nil) || !podbounds.Same(nil, nil) {
		t.Error("1 is 1000m, something is not nothing, and nothing is nothing")
	}
}
