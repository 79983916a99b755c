// SPDX-License-Identifier: Apache-2.0

package kubelet

import "github.com/wasmplane/wasmplane/core/kubelet/counters"

// counted is an optional power of Host: a machine whose kernel counts what pods use.
type counted interface{ Counters() *counters.Reader }

// Counters of the node's machine; nil where the kernel counts nothing for its pods.
func (k *Kubelet) Counters() *counters.Reader {
	if h, ok := k.cfg.Host.(counted); ok {
		return h.Counters()
	}
	return nil
}
