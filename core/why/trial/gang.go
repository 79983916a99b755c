// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/gang"
)

// members is a gang.Cycle that binds nothing.
type members struct {
	*Trial
	infos []*framework.PodInfo
}

// Gang says how many of several pods fit together.
func (t *Trial) Gang(pods []*corev1.Pod, need int) gang.Plan {
	m := &members{Trial: t}
	for _, p := range pods {
		m.infos = append(m.infos, framework.NewPodInfo(p))
	}
	return gang.Decide(t.ctx, gang.Problem{Members: m.infos, Need: need, Snapshot: t.snap}, m)
}

// Template implements gang.Cycle.
func (m *members) Template(int) string { return "" }

// Decide implements gang.Cycle.
func (m *members) Decide(ctx context.Context, i int, snap *framework.Snapshot, _ gang.Where) gang.Answer {
	d := m.plain.Decide(ctx, m.infos[i], snap, 1)
	return gang.Answer{Node: d.Node, Err: d.Fatal()}
}

// Reserve implements gang.Cycle.
func (m *members) Reserve(context.Context, int, string) *framework.Status { return nil }

// Unreserve implements gang.Cycle.
func (m *members) Unreserve(context.Context, int, string) {}
