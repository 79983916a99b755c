// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"time"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

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

// Decider decides as a scheduler with these plugins does, one cycle after another.
func Decider(plugins []Weighted) (func(context.Context, *framework.PodInfo, *framework.Snapshot) *Decision, error) {
	prof, err := compile(Profile{Name: "decider", Plugins: plugins})
	if err != nil {
		return nil, err
	}
	in := circumstances{workers: 1, now: func() time.Time { return time.Unix(0, 0) }}
	return func(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot) *Decision {
		in.seed++
		d := prof.decide(ctx, p, snap, in, blind{})
		if d.Total > 0 {
			in.start = (in.start + d.Evaluated) % d.Total
		}
		return d
	}, nil
}
