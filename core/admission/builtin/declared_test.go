// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
)

func TestAChangeOfAPodNeedsItsNodesFeatures(t *testing.T) {
	const whole, inits = "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers"
	w := newWorld(t, nobody, &corev1.Node{ObjectMeta: named1("old")},
		&corev1.Node{ObjectMeta: named1("new"), Status: corev1.NodeStatus{DeclaredFeatures: []string{whole, inits}}})
	requests := func(cpu string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}
	}
	asWhole := func(p *corev1.Pod, cpu string) { p.Spec.Resources = ptr.To(requests(cpu)) }
	container := func(p *corev1.Pod, cpu string) { p.Spec.Containers[0].Resources = requests(cpu) }
	initial := func(p *corev1.Pod, cpu string) {
		p.Spec.InitContainers = []corev1.Container{{Name: "first", Resources: requests(cpu)}}
	}
	sidecar := func(p *corev1.Pod, cpu string) {
		initial(p, cpu)
		p.Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	}
	lacks := func(what string) string {
		return "pod update requires features " + what + ` which are not available on node "old"`
	}
	for _, c := range []struct {
		name, on, subresource string
		size                  func(*corev1.Pod, string)
		unchanged             bool // of the same generation
		want                  string
	}{
		{"a container", "old", "resize", container, false, ""},
		{"a sidecar", "old", "resize", sidecar, false, ""},
		{"the pod as a whole, where nobody does that", "old", "resize", asWhole, false, lacks(whole)},
		{"the pod as a whole, where that is done", "new", "resize", asWhole, false, ""},
		{"the pod as a whole, on no node yet", "", "resize", asWhole, false, ""},
		{"the pod as a whole, on a node that is gone", "gone", "resize", asWhole, false, `node "gone" not found`},
		{"an init container, where nobody does that", "old", "resize", initial, false, lacks(inits)},
		{"an init container, where that is done", "new", "resize", initial, false, ""},
		{"by an update of the pod", "old", "", initial, false, lacks(inits)},
		{"nothing of the spec", "old", "", asWhole, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := func(cpu string, generation int64) *corev1.Pod {
				return aPod(func(p *corev1.Pod) {
					p.Spec.NodeName, p.Generation = c.on, generation
					c.size(p, cpu)
				})
			}
			generation := int64(2)
			if c.unchanged {
				generation = 1
			}
			p := w.plugins["NodeDeclaredFeatureValidator"].(admission.Validator)
			err := p.Validate(t.Context(), admissiontest.Updating("pods", at("1", 1), at("2", generation), admissiontest.Subresource(c.subresource)))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %s", err, c.want)
			}
		})
	}
}
