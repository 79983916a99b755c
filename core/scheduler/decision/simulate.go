// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"context"
	"fmt"
	"slices"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// simulator is framework.Simulator over one cycle.
type simulator struct {
	profile *Compiled
	search  *search
	state   *framework.State
	pod     *framework.PodInfo
	snap    *framework.Snapshot
	d       *Decision // is told who refuses the pod in a trial
}

// Fits implements framework.Simulator.
func (m *simulator) Fits(ctx context.Context, n *framework.NodeInfo, removed []*framework.PodInfo) *framework.Status {
	st := m.without(ctx, n, removed)
	if !st.IsSuccess() {
		m.d.hinder(st.Plugin)
	}
	return st
}

func (m *simulator) without(ctx context.Context, n *framework.NodeInfo, removed []*framework.PodInfo) *framework.Status {
	state, node := m.state.Clone(), n
	for _, r := range removed {
		node = node.WithoutPod(r)
		for _, e := range m.profile.extensions {
			if st := e.RemovePod(ctx, state, m.pod, r, node); !st.IsSuccess() {
				return by(asError(st), e)
			}
		}
	}
	state, node, st := m.profile.withPods(ctx, state, m.pod, node, m.search.ahead[n.Node.Name])
	if !st.IsSuccess() {
		return st
	}
	return m.ask(ctx, state, node)
}

// ask has every filter and judge look at a node that may be another than the snapshot's.
func (m *simulator) ask(ctx context.Context, state *framework.State, node *framework.NodeInfo) *framework.Status {
	if st := m.search.filter(ctx, state, m.pod, node); !st.IsSuccess() {
		return st
	}
	at, ok := m.snap.Index[node.Node.Name]
	if !ok || len(m.profile.judges) == 0 {
		return nil
	}
	// Whoever keeps a table of the nodes goes by generations: a simulated node has
	// one that no other ever has.
	changed := *node
	changed.Generation = framework.Simulated()
	snap := *m.snap
	snap.Nodes, snap.Generation, snap.Memo = slices.Clone(m.snap.Nodes), changed.Generation, nil
	snap.Nodes[at] = &changed
	for _, j := range m.profile.judges {
		verdicts, st := j.plugin.Judge(ctx, m.pod, &snap)
		switch {
		case st != nil && st.Code == framework.Skip:
		case !st.IsSuccess():
			return by(st, j.plugin)
		case len(verdicts) != len(snap.Nodes):
			return by(framework.AsStatus(fmt.Errorf("answered for %d nodes instead of %d", len(verdicts), len(snap.Nodes))), j.plugin)
		case !verdicts[at].Status.IsSuccess():
			return by(verdicts[at].Status, j.plugin)
		}
	}
	return nil
}

// withPods puts further pods onto a node, for a simulation.
func (c *Compiled) withPods(ctx context.Context, state *framework.State, p *framework.PodInfo, n *framework.NodeInfo,
	pods []*framework.PodInfo,
) (*framework.State, *framework.NodeInfo, *framework.Status) {
	for _, other := range pods {
		n = n.WithPod(other)
		for _, e := range c.extensions {
			if st := e.AddPod(ctx, state, p, other, n); !st.IsSuccess() {
				return nil, nil, by(asError(st), e)
			}
		}
	}
	return state, n, nil
}
