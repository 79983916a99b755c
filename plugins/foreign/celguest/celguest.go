// SPDX-License-Identifier: Apache-2.0

// Package celguest answers at admission.validate by a policy's expressions in CEL, where other plugins have a
// module: those that Gatekeeper's templates have for their engine K8sNativeValidation.
//
// The language is that of Kubernetes' own policies, with its bounds of cost, beside the entry's deadline. Expressions
// read the request and the settings, and nothing else.
package celguest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/celpolicy"
)

// The variables that an expression has beside those of its policy.
const (
	params    = "params"
	anyObject = "anyObject"
)

// defaultDeadline bounds a call where the entry says nothing, as for other policies of Gatekeeper.
const defaultDeadline = 2 * time.Second

// mostViolations bounds those that an answer has one by one.
const mostViolations = 64

// Guest is a policy in expressions. It is safe for concurrent use.
type Guest struct {
	name     string
	policy   *celpolicy.Policy
	params   any
	ignore   bool // what cannot be evaluated
	deadline time.Duration
}

// Spec are the expressions of an entry.
func Spec(c *manifest.CEL) celpolicy.Spec {
	var s celpolicy.Spec
	for _, m := range c.MatchConditions {
		s.MatchConditions = append(s.MatchConditions, admissionregistrationv1.MatchCondition{Name: m.Name, Expression: m.Expression})
	}
	for _, v := range c.Variables {
		s.Variables = append(s.Variables, admissionregistrationv1.Variable{Name: v.Name, Expression: v.Expression})
	}
	for _, v := range c.Validations {
		s.Validations = append(s.Validations, admissionregistrationv1.Validation{
			Expression: v.Expression, Message: v.Message, MessageExpression: v.MessageExpression,
		})
	}
	return s
}

// New compiles the expressions of an entry.
func New(e *manifest.Entry) (*Guest, error) {
	c, err := celpolicy.Kubernetes()
	if err != nil {
		return nil, err
	}
	g := &Guest{name: e.Name, ignore: e.FailurePolicy == manifest.Ignore, deadline: time.Duration(e.Limits.Deadline)}
	if g.deadline == 0 {
		g.deadline = defaultDeadline
	}
	if g.policy, err = c.PolicyAt("cel", Spec(e.CEL)); err != nil {
		return nil, err
	}
	settings, err := e.SettingsJSON()
	if err != nil || settings == nil {
		return g, err
	}
	if err := utiljson.Unmarshal(settings, &g.params); err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	return g, nil
}

// Manifest is the policy as a plugin. Which requests it sees is said by its entry alone.
func Manifest(e *manifest.Entry) *abi.Manifest {
	return &abi.Manifest{
		ABI: abi.Version, Name: e.Name, Settings: true, RulesAreDefaults: true,
		Hooks: []abi.Hook{{Op: 1, Point: abi.AdmissionValidate}},
	}
}

// answer is what the hook answers.
type answer struct {
	Allowed bool    `json:"allowed"`
	Message string  `json:"message,omitempty"`
	Causes  []cause `json:"causes,omitempty"`
}

type cause struct {
	Message string `json:"message"`
}

// Call implements point.Guest.
func (g *Guest) Call(ctx context.Context, _ int32, input []byte) ([]byte, host.Usage, error) {
	start := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, g.deadline, fmt.Errorf("the deadline of %s has passed", g.deadline))
	defer cancel()
	found, err := g.violations(ctx, input)
	u := host.Usage{Duration: time.Since(start)}
	switch {
	case ctx.Err() != nil:
		return nil, u, &host.Fault{Plugin: g.name, Kind: kindOf(ctx), Detail: context.Cause(ctx).Error(), Err: context.Cause(ctx)}
	case err != nil:
		return nil, u, &host.GuestError{Plugin: g.name, Message: err.Error()}
	}
	a := answer{Allowed: len(found) == 0}
	for i, text := range found {
		switch {
		case i == 0:
			a.Message = text
		case i < mostViolations:
			a.Causes = append(a.Causes, cause{text})
		case i == mostViolations:
			a.Causes = append(a.Causes, cause{fmt.Sprintf("and %d more", len(found)-mostViolations)})
		}
	}
	out, err := json.Marshal(a)
	return out, u, err
}

// kindOf says which of two ended an evaluation: its deadline, or whoever asked.
func kindOf(ctx context.Context) host.Kind {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return host.Deadline
	}
	return host.Canceled
}

// violations evaluates the expressions about a request.
func (g *Guest) violations(ctx context.Context, input []byte) ([]string, error) {
	request := map[string]any{}
	if err := utiljson.Unmarshal(input, &request); err != nil {
		return nil, fmt.Errorf("the request cannot be read: %w", err)
	}
	object, old := request[celpolicy.Object], request[celpolicy.OldObject]
	delete(request, celpolicy.Object)
	delete(request, celpolicy.OldObject)
	for _, field := range []string{"name", "namespace", "subResource", "requestSubResource"} { // expressions may rely on them
		if request[field] == nil {
			request[field] = ""
		}
	}
	e := g.policy.Evaluate(ctx, map[string]any{celpolicy.Object: object, celpolicy.OldObject: old, celpolicy.Request: request})
	e.Bind(params, g.params)
	if object == nil && request["operation"] == "DELETE" {
		object = old
	}
	e.Bind(anyObject, object)
	matches, err := e.Matches(ctx)
	switch {
	case err != nil && !g.ignore:
		return []string{err.Error()}, nil
	case err != nil: // the policy says to let pass what it fails on
		return nil, nil //nolint:nilerr // see above
	case !matches:
		return nil, nil
	}
	return e.Violations(ctx, g.ignore)
}
