// SPDX-License-Identifier: Apache-2.0

package allot

import podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

// Topology of the nodes, as programs on the node are told; nil: none is known.
func (s Nodes) Topology() *podresources.TopologyInfo {
	if s == 0 {
		return nil
	}
	out := &podresources.TopologyInfo{}
	for _, id := range s.List() {
		out.Nodes = append(out.Nodes, &podresources.NUMANode{ID: int64(id)})
	}
	return out
}
