// SPDX-License-Identifier: Apache-2.0

package kubelet

// Refresh looks at the node's state now, not at the next interval: for who knows
// that it has just changed.
func (k *Kubelet) Refresh() { k.node.Refresh() }
