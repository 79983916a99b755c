// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/scheduler/framework/frameworktest"
)

func scheduled(name string, labels map[string]string, cpu, node string) *corev1.Pod {
	p := pod("web:1", labels)
	p.Name, p.UID, p.Spec.NodeName = name, types.UID(name), node
	if cpu != "" {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu)}
	}
	return p
}

func machine(name string, labels map[string]string, more ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	n.Status.Allocatable = corev1.ResourceList{
		"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"),
		"pods": resource.MustParse("110"),
	}
	for _, extended := range more {
		n.Status.Allocatable[corev1.ResourceName(extended)] = resource.MustParse("4")
	}
	return n
}

// TestWasmSchedulerPluginsKeepTheContract of their native siblings: the examples,
// node by node and with a table, in each language, by the suite that the native plugins pass.
func TestWasmSchedulerPluginsKeepTheContract(t *testing.T) {
	red, disk := map[string]string{"dedicated": "red"}, "example.com/disk"
	train := scheduled("train", nil, "1", "")
	train.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("1")
	plugins := map[string]struct {
		settings string
		c        frameworktest.Case
	}{
		"dedicated-nodes": {"{label: dedicated}", frameworktest.Case{
			Name: "a team's nodes", Pod: scheduled("a", red, "", ""),
			Nodes:   []*corev1.Node{machine("blue", map[string]string{"dedicated": "blue"}), machine("red", red), machine("free", nil)},
			Refused: map[string]string{"blue": "node(s) were kept for another team"}, Order: []string{"red", "free"},
		}},
		"prefer-label": {`{label: example.com/disk, value: ssd, required: true}`, frameworktest.Case{
			Name: "a label that is required", Pod: scheduled("a", nil, "", ""),
			Nodes:   []*corev1.Node{machine("tape", map[string]string{disk: "tape"}), machine("ssd", map[string]string{disk: "ssd"})},
			Refused: map[string]string{"tape": ""},
		}},
		"least-pods": {"", frameworktest.Case{
			Name: "room for pods", Pod: scheduled("a", nil, "", ""), Nodes: []*corev1.Node{machine("one", nil), machine("none", nil)},
			Running: []*corev1.Pod{scheduled("b", nil, "", "one"), scheduled("c", nil, "", "one"), scheduled("d", nil, "", "one")},
			Order:   []string{"none", "one"},
		}},
		"bin-packing": {"{resources: [{name: cpu}]}", frameworktest.Case{
			Name: "the fullest first", Pod: scheduled("a", nil, "1", ""), Nodes: []*corev1.Node{machine("empty", nil), machine("half", nil)},
			Running: []*corev1.Pod{scheduled("b", nil, "2", "half")}, Order: []string{"half", "empty"},
		}},
		"gpu-nodes": {"{resource: nvidia.com/gpu, strict: true}", frameworktest.Case{
			Name: "GPUs for who asks", Pod: train, Nodes: []*corev1.Node{machine("plain", nil), machine("gpu", nil, "nvidia.com/gpu")},
			Refused: map[string]string{"plain": "node(s) had no GPU"},
		}},
		"carbon-aware": {"{carbonWeight: 1}", frameworktest.Case{
			Name: "the cleanest first", Pod: scheduled("a", nil, "", ""),
			Nodes: []*corev1.Node{
				machine("coal", map[string]string{"carbon.example.com/grams-per-kwh": "780"}),
				machine("wind", map[string]string{"carbon.example.com/grams-per-kwh": "20"}),
			},
			Order: []string{"wind", "coal"},
		}},
	}
	for _, name := range slices.Sorted(maps.Keys(plugins)) {
		p := plugins[name]
		t.Run(name, func(t *testing.T) {
			more := []string{"failurePolicy: Fail", "limits: {deadline: 30s}"} // a failure shows, a busy machine does not
			if p.settings != "" {
				more = append(more, "settings: "+p.settings)
			}
			plugin := loaded(t, name, more...).SchedulerPlugins()[0].Plugin
			frameworktest.Run(t, plugin, p.c)
			for _, other := range plugins {
				if other.c.Name != p.c.Name {
					other.c.Refused, other.c.Order = nil, nil
					frameworktest.Bear(t, plugin, other.c)
				}
			}
		})
	}
}

// TestEveryPointOfAWasmPluginKeepsTheContract: what a module answers at a point becomes
// what a native plugin would have said there.
func TestEveryPointOfAWasmPluginKeepsTheContract(t *testing.T) {
	for point, answer := range map[string]string{
		"scheduling.preEnqueue": `{allowed: false, reasons: [no quota]}`, "scheduling.queueSort": `7`,
		"scheduling.preFilter": `{nodes: [a]}`, "scheduling.filter": `{fits: false, reasons: [not here]}`, "scheduling.score": `40`,
		"scheduling.preScore": `{state: 1}`, "scheduling.reserve": `{allowed: false, reasons: [full]}`,
		"scheduling.permit": `{decision: wait, waitSeconds: 2.5, reasons: [hold on]}`, "scheduling.preBind": `{}`, "scheduling.postBind": `{}`,
	} {
		t.Run(point, func(t *testing.T) {
			frameworktest.Run(t, scheduling(t, point, answer, "failurePolicy: Fail", "limits: {deadline: 30s}"))
			frameworktest.Bear(t, scheduling(t, point, answer), frameworktest.Case{
				Name: "two nodes", Pod: scheduled("a", nil, "1", ""), Nodes: []*corev1.Node{machine("a", nil), machine("b", nil)},
			})
		})
	}
}
