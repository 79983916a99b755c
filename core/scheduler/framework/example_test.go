// SPDX-License-Identifier: Apache-2.0

package framework_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// sameZone keeps a pod in the zone that its label names.
type sameZone struct{}

func (sameZone) Name() string { return "SameZone" }

func (sameZone) Filter(_ context.Context, _ *framework.State, p *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	zone := n.Node.Labels[corev1.LabelTopologyZone]
	if want := p.Pod.Labels["zone"]; zone != want {
		// Removing pods does not move a node into another zone.
		return framework.NewStatus(framework.Unresolvable, fmt.Sprintf("node is in zone %s, not %s", zone, want))
	}
	return nil
}

// A plugin implements the points that it cares about. A nil status lets the cycle go on.
func ExampleFilter() {
	var filter framework.Filter = sameZone{}
	pod := &framework.PodInfo{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"zone": "a"}}}}
	for _, zone := range []string{"a", "b"} {
		node := &framework.NodeInfo{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "node-" + zone, Labels: map[string]string{corev1.LabelTopologyZone: zone},
		}}}
		st := filter.Filter(context.Background(), framework.NewState(), pod, node)
		if st.IsSuccess() {
			fmt.Println(node.Node.Name, "is suitable")
			continue
		}
		fmt.Println(node.Node.Name, st.Reasons)
	}
	// Output:
	// node-a is suitable
	// node-b [node is in zone b, not a]
}
