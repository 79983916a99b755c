// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"time"

	"github.com/wasmplane/wasmplane/core/scheduler/decision"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Trial decides as a scheduler with this profile would, about clusters that need not be
// real. It binds nothing, removes nobody, and counts nothing.
type Trial struct{ profile *decision.Compiled }

// NewTrial makes a trial of a profile.
func NewTrial(p Profile) (*Trial, error) {
	c, err := decision.Compile(p, nil)
	if err != nil {
		return nil, err
	}
	return &Trial{c}, nil
}

// Gate is the refusal of a plugin that does not let the pod be tried at all; nil = it may.
func (t *Trial) Gate(ctx context.Context, p *framework.PodInfo) *framework.Status {
	return t.profile.PreEnqueue(ctx, p)
}

// Decide finds the node for a pod. The same seed gives the same decision.
func (t *Trial) Decide(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot, seed uint64) *Decision {
	return t.profile.Decide(ctx, p, snap, decision.Circumstances{Workers: 1, Seed: seed, Now: func() time.Time { return time.Time{} }},
		decision.Blind{})
}
