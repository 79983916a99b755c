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
