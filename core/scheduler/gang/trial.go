// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"slices"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// trial is a snapshot that changes while a gang is placed on it. Nobody else has it; what
// plugins keep (its memo) goes by the nodes themselves, which are replaced and never changed.
type trial struct{ snap framework.Snapshot }

func newTrial(snap *framework.Snapshot) *trial {
	t := &trial{*snap}
	t.snap.Nodes = slices.Clone(snap.Nodes)
	return t
}

func (t *trial) place(p *framework.PodInfo, node string) {
	t.change(node, func(n *framework.NodeInfo) *framework.NodeInfo { return n.WithPod(p) })
}

func (t *trial) remove(p *framework.PodInfo, node string) {
	t.change(node, func(n *framework.NodeInfo) *framework.NodeInfo { return n.WithoutPod(p) })
}

func (t *trial) change(node string, with func(*framework.NodeInfo) *framework.NodeInfo) {
	at, ok := t.snap.Index[node]
	if !ok {
		return
	}
	if changed := with(t.snap.Nodes[at]); changed != t.snap.Nodes[at] {
		changed.Generation = framework.Simulated()
		t.snap.Nodes[at], t.snap.Generation = changed, changed.Generation
	}
}
