// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"time"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Trial decides as a scheduler with this profile would, about clusters that need not be
// real. It binds nothing, removes nobody, and counts nothing.
type Trial struct{ profile *profile }

// NewTrial makes a trial of a profile.
func NewTrial(p Profile) (*Trial, error) {
	c, err := compile(p)
	if err != nil {
		return nil, err
	}
	return &Trial{c}, nil
}

// Decide finds the node for a pod. The same seed gives the same decision.
func (t *Trial) Decide(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot, seed uint64) *Decision {
	return t.profile.decide(ctx, p, snap, circumstances{workers: 1, seed: seed, now: func() time.Time { return time.Time{} }}, blind{})
}

// blind is an observer to whom nothing matters.
type blind struct{}

func (blind) Begin(ctx context.Context, _ string) (context.Context, func(*Decision)) {
	return ctx, func(*Decision) {}
}
