// SPDX-License-Identifier: Apache-2.0

package evict_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/kubelet/evict"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
)

func usage(name string, used, asked int64, priority int32) evict.Usage {
	p := &corev1.Pod{}
	p.Name, p.UID = name, types.UID(name)
	p.Spec.Priority = &priority
	c := corev1.Container{Name: "c"}
	if asked > 0 {
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(asked, resource.BinarySI)}
	}
	p.Spec.Containers = []corev1.Container{c}
	return evict.Usage{Pod: p, Containers: map[string]int64{"c": used}}
}

func TestWhoGoesFirst(t *testing.T) {
	s := node.Short{Resource: corev1.ResourceMemory, Threshold: resource.MustParse("100Mi"), Available: resource.MustParse("50Mi")}
	const mi = 1 << 20
	for _, c := range []struct {
		name string
		pods []evict.Usage
		want string
	}{
		{"who uses more than it asked for", []evict.Usage{usage("within", 90*mi, 100*mi, 0), usage("beyond", 20*mi, 10*mi, 100)}, "beyond"},
		{"who is worth less", []evict.Usage{usage("high", 200*mi, 0, 100), usage("low", 100*mi, 0, 1)}, "low"},
		{"who is furthest beyond", []evict.Usage{usage("near", 20*mi, 10*mi, 0), usage("far", 100*mi, 10*mi, 0)}, "far"},
		{"never the critical", []evict.Usage{usage("critical", 500*mi, 0, 2_000_001_000), usage("other", 1*mi, 10*mi, 0)}, "other"},
		{"nobody", []evict.Usage{usage("critical", 500*mi, 0, 2_000_001_000)}, ""},
	} {
		got := ""
		if ch := evict.Choose(s, c.pods); ch != nil {
			got = ch.Pod.Name
		}
		if got != c.want {
			t.Errorf("%s: %q goes, want %q", c.name, got, c.want)
		}
	}
	ch := evict.Choose(s, []evict.Usage{usage("p", 20*mi, 10*mi, 0)})
	if want := "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container c was using 20Mi, request is 10Mi, has larger consumption of memory. "; ch.Message != want {
		t.Errorf("%q", ch.Message)
	}
}
