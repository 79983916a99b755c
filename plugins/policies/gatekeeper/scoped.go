// SPDX-License-Identifier: Apache-2.0

package gatekeeper

import (
	"fmt"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// EnforcementPoint is a place where constraints are asked, as enforcementPoints name it.
type EnforcementPoint string

// The places. AtRequests is Gatekeeper's webhook, and AtPolicies the API server where it evaluates templates in CEL
// itself: both are the server here.
const (
	AtRequests EnforcementPoint = "validation.gatekeeper.sh"
	AtPolicies EnforcementPoint = "vap.k8s.io"
	AtAudit    EnforcementPoint = "audit.gatekeeper.sh"
	AtTests    EnforcementPoint = "gator.gatekeeper.sh"

	everywhere EnforcementPoint = "*"
)

// scopedAction is one of spec.scopedEnforcementActions.
type scopedAction struct {
	Action            string `json:"action"`
	EnforcementPoints []struct {
		Name EnforcementPoint `json:"name"`
	} `json:"enforcementPoints"`
}

// scoped is the enforcementAction of a constraint that says what its decisions do by scopedEnforcementActions.
const scoped = "scoped"

// strengths are the actions, the strongest first.
var strengths = []string{"deny", "warn", "dryrun"}

// readActions reads what decisions do at each place: an action, or nothing where the constraint is not asked.
func readActions(action string, of []scopedAction) (map[EnforcementPoint]string, error) {
	points := []EnforcementPoint{AtRequests, AtPolicies, AtAudit, AtTests}
	out := map[EnforcementPoint]string{}
	if action != scoped {
		if len(of) > 0 {
			return nil, fmt.Errorf("spec.scopedEnforcementActions: it counts only where spec.enforcementAction is %s, found %q", scoped, action)
		}
		if action == "" {
			action = "deny"
		}
		if !slices.Contains(strengths, action) {
			return nil, fmt.Errorf("spec.enforcementAction: expected deny, warn, dryrun or %s, found %q", scoped, action)
		}
		for _, p := range points {
			out[p] = action
		}
		return out, nil
	}
	if len(of) == 0 {
		return nil, fmt.Errorf("spec.scopedEnforcementActions: there are none, and spec.enforcementAction is %s", scoped)
	}
	for i, a := range of {
		at := fmt.Sprintf("spec.scopedEnforcementActions[%d]", i)
		strength := slices.Index(strengths, a.Action)
		if strength < 0 {
			return nil, fmt.Errorf("%s.action: expected %s, found %q", at, strings.Join(strengths, ", "), a.Action)
		}
		if len(a.EnforcementPoints) == 0 {
			return nil, fmt.Errorf("%s.enforcementPoints: there are none", at)
		}
		for j, p := range a.EnforcementPoints {
			where := []EnforcementPoint{p.Name}
			if p.Name == everywhere {
				where = points
			} else if !slices.Contains(points, p.Name) {
				return nil, fmt.Errorf("%s.enforcementPoints[%d].name: expected %v or *, found %q", at, j, points, p.Name)
			}
			for _, w := range where {
				out[w] = stronger(out[w], a.Action)
			}
		}
	}
	return out, nil
}

// stronger is the stronger of two actions, "" being none.
func stronger(a, b string) string {
	if a == "" || b != "" && slices.Index(strengths, b) < slices.Index(strengths, a) {
		return b
	}
	return a
}

// Action is what the decisions of a template's constraint do at a place: deny, warn, dryrun, or "" where it is not
// asked. At requests a template in CEL is asked at both places of the server, and the stronger action counts.
func (t *Template) Action(c *Constraint, at EnforcementPoint) string {
	if at == AtRequests && t.CEL != nil {
		return stronger(c.actions[AtRequests], c.actions[AtPolicies])
	}
	return c.actions[at]
}

// mode is what becomes of a constraint's action at requests. One that is not asked there decides without an effect, so
// that stored objects can be judged by it.
func (t *Template) mode(c *Constraint) manifest.Mode {
	if m, ok := modes[t.Action(c, AtRequests)]; ok {
		return m
	}
	return manifest.Shadow
}
