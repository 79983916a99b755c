// SPDX-License-Identifier: Apache-2.0

package evict_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/wasmplane/wasmplane/core/kubelet/evict"
)

func TestOverStorage(t *testing.T) {
	const mi = 1 << 20
	container := func(name, limit string) corev1.Container {
		c := corev1.Container{Name: name}
		if limit != "" {
			c.Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(limit)}
		}
		return c
	}
	sidecar := container("proxy", "2Mi")
	always := corev1.ContainerRestartPolicyAlways
	sidecar.RestartPolicy = &always
	critical := int32(2_000_000_000)
	for _, c := range []struct {
		name    string
		pod     corev1.PodSpec
		used    map[string]int64
		volumes int64
		want    string
	}{
		{"no limit", corev1.PodSpec{Containers: []corev1.Container{container("a", "")}}, map[string]int64{"a": 1 << 40}, 1 << 40, ""},
		{"at the limit", corev1.PodSpec{Containers: []corev1.Container{container("a", "4Mi")}}, map[string]int64{"a": 3 * mi}, mi, ""},
		{
			"files and volumes together",
			corev1.PodSpec{Containers: []corev1.Container{container("a", "4Mi")}},
			map[string]int64{"a": 3 * mi},
			mi + 1,
			`Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. `,
		},
		{
			"one container beyond its own",
			corev1.PodSpec{Containers: []corev1.Container{container("a", "1Mi"), container("b", "8Mi")}},
			map[string]int64{"a": 2 * mi},
			0, `Container a exceeded its local ephemeral storage limit "1Mi". `,
		},
		{
			"a sidecar",
			corev1.PodSpec{InitContainers: []corev1.Container{sidecar}, Containers: []corev1.Container{container("a", "8Mi")}},
			map[string]int64{"proxy": 3 * mi},
			0, `Container proxy exceeded its local ephemeral storage limit "2Mi". `,
		},
		{
			"one that the node cannot do without",
			corev1.PodSpec{Priority: &critical, Containers: []corev1.Container{container("a", "1Mi")}},
			map[string]int64{"a": 9 * mi},
			0, "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &corev1.Pod{Spec: c.pod}
			if got := evict.OverStorage(evict.Usage{Pod: p, Containers: c.used, Shared: c.volumes}); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
