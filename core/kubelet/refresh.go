// SPDX-License-Identifier: Apache-2.0

package kubelet

// Refresh looks at the node's state now instead of at the next interval. Callers use it
// when they know that the state has just changed.
func (k *Kubelet) Refresh() { k.node.Refresh() }
