// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"fmt"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// Filter implements framework.Filter. Calls for single nodes are counted and not
// traced: there would be thousands of them.
func (a *Plugin) Filter(ctx context.Context, s *framework.State, p *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	c := a.plugin.Ask(ctx, abi.SchedulingFilter, "Pod", newDocument(p, n, s.Get(stateKey{a.Name()})))
	if c == nil {
		return nil
	}
	var answer abi.FilterAnswer
	if c.Err == nil {
		var err error
		if answer, err = abi.ParseFilter(c.Answer); err != nil {
			c.Fail(err)
		}
	}
	outcome := point.Outcome{Decision: "allow"}
	if answer.Refused() {
		outcome.Decision = "deny"
	}
	c.Record(untraced(ctx), abi.SchedulingFilter, outcome)
	switch {
	case c.Mode() != manifest.Enforce:
		return nil
	case c.Err != nil:
		return failed(c, manifest.Fail)
	case !answer.Refused():
		return nil
	}
	return a.refusal(&answer)
}

// refusal is a filter's answer as a status.
func (a *Plugin) refusal(answer *abi.FilterAnswer) *framework.Status {
	if len(answer.Reasons) == 0 {
		answer.Reasons = []string{fmt.Sprintf("node(s) didn't pass plugin %s", a.Name())}
	}
	code := framework.Unschedulable
	if answer.Unresolvable {
		code = framework.Unresolvable
	}
	return framework.NewStatus(code, answer.Reasons...)
}

// Score implements framework.Score. A plugin that fails rates every node 0,
// unless its failure policy is Fail: a preference is no reason to keep a pod waiting.
func (a *Plugin) Score(ctx context.Context, s *framework.State, p *framework.PodInfo, n *framework.NodeInfo) (int64, *framework.Status) {
	c := a.plugin.Ask(ctx, abi.SchedulingScore, "Pod", newDocument(p, n, s.Get(stateKey{a.Name()})))
	if c == nil {
		return 0, nil
	}
	var score int64
	if c.Err == nil {
		var err error
		if score, err = abi.ParseScore(c.Answer); err != nil {
			c.Fail(err)
		}
	}
	c.Record(untraced(ctx), abi.SchedulingScore, point.Outcome{Decision: "score"})
	if c.Err != nil {
		return 0, failed(c, manifest.Ignore)
	}
	if c.Mode() != manifest.Enforce {
		return 0, nil
	}
	return score, nil
}
