// SPDX-License-Identifier: Apache-2.0

package scheduler

// Knows says whether the scheduler has seen the node.
func (s *Scheduler) Knows(node string) bool {
	for _, n := range s.cache.Snapshot().Nodes {
		if n.Node.Name == node {
			return true
		}
	}
	return false
}

// PodsOnNodes names the pods that occupy a node.
func (s *Scheduler) PodsOnNodes() []string {
	var out []string
	for _, n := range s.cache.Snapshot().Nodes {
		for _, p := range n.Pods {
			out = append(out, p.Pod.Name)
		}
	}
	return out
}
