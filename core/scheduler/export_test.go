// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/scheduler/clearance"
	"github.com/wasmplane/wasmplane/core/scheduler/decision"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/report"
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

// Promised is the node that a pod was promised; "" = none.
func (s *Scheduler) Promised(uid types.UID) string { return s.nominated.Of(uid) }

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

// NewWith is New with other effects than the API's.
func NewWith(cfg Config, e report.Effects) (*Scheduler, error) {
	s, err := assemble(cfg, environment{e, report.New(), clearance.New(), time.Now, rand.Uint64, boundGang})
	if err != nil {
		return nil, err
	}
	return s, s.listen()
}

// Decider decides as a scheduler with these plugins does, one cycle after another.
func Decider(plugins []Weighted) (func(context.Context, *framework.PodInfo, *framework.Snapshot) *Decision, error) {
	prof, err := decision.Compile(Profile{Name: "decider", Plugins: plugins}, nil)
	if err != nil {
		return nil, err
	}
	in := decision.Circumstances{Workers: 1, Now: func() time.Time { return time.Unix(0, 0) }}
	return func(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot) *Decision {
		in.Seed++
		d := prof.Decide(ctx, p, snap, in, decision.Blind{})
		if d.Total > 0 {
			in.Start = (in.Start + d.Evaluated) % d.Total
		}
		return d
	}, nil
}

// StepToRepeat is Step, and what makes the decision again, later and on another number of
// goroutines, of nothing but what was recorded.
func (v *Virtual) StepToRepeat(ctx context.Context) (t Try, again func(workers int) *Decision, worked bool, next time.Time) {
	snap, before, now := *v.s.cache.Snapshot(), v.s.nominated.Clone(), v.s.now()
	snap.Memo = nil
	t, worked, next = v.Step(ctx)
	if t.Decision == nil || t.Decision.Standing != "" {
		return t, nil, worked, next
	}
	return t, func(workers int) *Decision {
		return v.s.profile(t.Pod.Spec.SchedulerName).Decide(ctx, framework.NewPodInfo(t.Pod), &snap, decision.Circumstances{
			Promised: before.Of(t.Pod.UID), Ahead: before.Ahead(t.Pod),
			Start: t.Decision.Start, Seed: t.Decision.Seed, Workers: workers, Now: func() time.Time { return now },
		}, decision.Blind{})
	}, worked, next
}

// BoundGang bounds how long a gang is looked at.
func (v *Virtual) BoundGang(bound func(context.Context, error) (context.Context, context.CancelFunc)) {
	v.s.gang = bound
}

// Settled says whether no pod is to be tried, now or after its backoff.
func (v *Virtual) Settled() bool {
	ready, backoff, _, _ := v.s.queue.Len()
	return ready+backoff == 0
}
