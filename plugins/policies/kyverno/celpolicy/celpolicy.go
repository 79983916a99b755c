// SPDX-License-Identifier: Apache-2.0

// Package celpolicy compiles and evaluates the expressions of Kyverno's policies that Kubernetes' own policies in CEL cannot
// hold, because they use functions and variables that only Kyverno knows, and those of Gatekeeper's templates.
//
// The language is that of Kubernetes' policies (its environment, with its limits of cost), with Kyverno's
// functions beside it. Those that only compute are here. Those that look beyond the request are the
// caller's, as a Library: their expressions reach them through a variable, which the caller sets for each
// evaluation, so that a policy is compiled once and evaluated by many.
package celpolicy

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apicel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/lazy"

	"github.com/wasmplane/wasmplane/core/admission/matching"
)

// The variables that every expression has.
const (
	Object     = "object"
	OldObject  = "oldObject"
	Request    = "request"
	Namespace  = "namespaceObject"
	Variables  = "variables"
	conditions = "matchConditions"
)

// Spec are the expressions of a policy.
type Spec struct {
	MatchConditions  []admissionregistrationv1.MatchCondition
	Variables        []admissionregistrationv1.Variable
	Validations      []admissionregistrationv1.Validation
	AuditAnnotations []admissionregistrationv1.AuditAnnotation
}

// Compiler compiles expressions in one environment.
type Compiler struct{ env *cel.Env }

// NewCompiler makes a compiler for expressions that may use Kyverno's functions and some libraries.
func NewCompiler(libraries ...cel.EnvOption) (*Compiler, error) {
	return newCompiler(append([]cel.EnvOption{cel.Variable(Namespace, cel.DynType), computing(), lenient()}, libraries...))
}

// newCompiler makes a compiler for Kubernetes' language with some options. Every expression has the object, the one
// before, the request and the variables.
func newCompiler(more []cel.EnvOption) (*Compiler, error) {
	options := append([]cel.EnvOption{
		cel.Variable(Object, cel.DynType), cel.Variable(OldObject, cel.DynType), cel.Variable(Request, cel.DynType),
		cel.Variable(Variables, cel.MapType(cel.StringType, cel.DynType)),
	}, more...)
	set, err := matching.NewEnvironment().Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0), EnvOptions: options,
	})
	if err != nil {
		return nil, fmt.Errorf("environment of expressions: %w", err)
	}
	env, err := set.Env(environment.StoredExpressions)
	if err != nil {
		return nil, fmt.Errorf("environment of expressions: %w", err)
	}
	return &Compiler{env}, nil
}

// longest bounds an expression, in bytes, and most how many a policy has.
const (
	longest = 64 << 10
	most    = 512
)

// Program is a compiled expression.
type Program struct {
	program cel.Program
	Text    string
}

// Compile compiles one expression. results are the types that it may have; none = any.
func (c *Compiler) Compile(expression string, results ...*cel.Type) (*Program, error) {
	if len(expression) > longest {
		return nil, fmt.Errorf("it has more than %d bytes", longest)
	}
	ast, issues := c.env.Compile(expression)
	if issues.Err() != nil {
		return nil, fmt.Errorf("compilation failed: %w", issues.Err())
	}
	ok := len(results) == 0 || ast.OutputType().IsExactType(cel.DynType) || ast.OutputType().IsExactType(cel.AnyType)
	for _, t := range results {
		ok = ok || t.IsAssignableType(ast.OutputType())
	}
	if !ok {
		return nil, fmt.Errorf("must evaluate to %v, and not to %v", results[0], ast.OutputType())
	}
	p, err := c.env.Program(ast, cel.InterruptCheckFrequency(celconfig.CheckFrequency))
	if err != nil {
		return nil, fmt.Errorf("compilation failed: %w", err)
	}
	return &Program{p, expression}, nil
}

// Policy is a compiled policy.
type Policy struct {
	spec        Spec
	conditions  []*Program
	variables   map[string]*Program
	validations []*Program
	messages    []*Program // nil where there is none
	annotations []*Program
}

// Policy compiles the expressions of a policy. All that do not compile are told, by their fields.
func (c *Compiler) Policy(s Spec) (*Policy, error) { return c.PolicyAt("spec", s) }

// PolicyAt is Policy for expressions that do not stand in "spec": at is the path of the field in which they stand.
func (c *Compiler) PolicyAt(at string, s Spec) (*Policy, error) {
	p := &Policy{spec: s, variables: map[string]*Program{}}
	if n := len(s.MatchConditions) + len(s.Variables) + len(s.Validations) + len(s.AuditAnnotations); n > most {
		return nil, fmt.Errorf("%s: there are %d expressions, at most %d are evaluated", at, n, most)
	}
	var errs []error
	compile := func(field, text string, results ...*cel.Type) *Program {
		out, err := c.Compile(text, results...)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s.%s: %w", at, field, err))
		}
		return out
	}
	for i, m := range s.MatchConditions {
		p.conditions = append(p.conditions, compile(fmt.Sprintf("matchConditions[%d].expression", i), m.Expression, cel.BoolType))
	}
	for i, v := range s.Variables {
		p.variables[v.Name] = compile(fmt.Sprintf("variables[%d].expression", i), v.Expression)
	}
	for i, v := range s.Validations {
		p.validations = append(p.validations, compile(fmt.Sprintf("validations[%d].expression", i), v.Expression, cel.BoolType))
		var message *Program
		if v.MessageExpression != "" {
			message = compile(fmt.Sprintf("validations[%d].messageExpression", i), v.MessageExpression, cel.StringType)
		}
		p.messages = append(p.messages, message)
	}
	for i, a := range s.AuditAnnotations {
		p.annotations = append(p.annotations, compile(fmt.Sprintf("auditAnnotations[%d].valueExpression", i), a.ValueExpression, cel.StringType,
			cel.NullType))
	}
	return p, errors.Join(errs...)
}

// Evaluation is one request's.
type Evaluation struct {
	policy    *Policy
	data      map[string]any
	variables *lazy.MapValue
	left      int64 // of the costs
}

// Evaluate begins an evaluation. data has the values of all variables but Variables.
func (p *Policy) Evaluate(ctx context.Context, data map[string]any) *Evaluation {
	e := &Evaluation{policy: p, data: data, left: celconfig.RuntimeCELCostBudget}
	vars := lazy.NewMapValue(apicel.NewMapType(apicel.StringType, apicel.DynType, -1).CelType())
	for name, v := range p.variables {
		vars.Append(name, func(*lazy.MapValue) ref.Val {
			out, err := e.Run(ctx, v)
			if err != nil {
				return types.WrapErr(err)
			}
			return out
		})
	}
	data[Variables], e.variables = vars, vars
	return e
}

// Bind gives an evaluation a variable that is a value of JSON, beside those of the policy. It stands before a variable
// of the policy with the same name.
func (e *Evaluation) Bind(name string, value any) {
	e.variables.Append(name, func(*lazy.MapValue) ref.Val { return types.DefaultTypeAdapter.NativeToValue(value) })
}

// errBudget is of a policy whose expressions together cost too much.
var errBudget = errors.New("the expressions of the policy cost more than one request may: simplify them")

// Run evaluates an expression, within what the evaluation may still cost.
func (e *Evaluation) Run(ctx context.Context, p *Program) (ref.Val, error) {
	if e.left <= 0 {
		return nil, errBudget
	}
	out, details, err := p.program.ContextEval(ctx, e.data)
	if details != nil && details.ActualCost() != nil {
		e.left -= int64(min(*details.ActualCost(), uint64(celconfig.RuntimeCELCostBudget))) //nolint:gosec // it is bounded
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("it was not evaluated in time: %w", context.Cause(ctx))
	}
	return out, err
}

// Set sets a variable.
func (e *Evaluation) Set(name string, value any) { e.data[name] = value }

// Matches says whether all conditions hold, by their order.
func (e *Evaluation) Matches(ctx context.Context) (bool, error) {
	return e.all(ctx, e.policy.conditions, func(i int) string { return conditions + " " + e.policy.spec.MatchConditions[i].Name })
}

// All says whether expressions hold, all of them.
func (e *Evaluation) All(ctx context.Context, programs []*Program) (bool, error) {
	return e.all(ctx, programs, func(i int) string { return fmt.Sprintf("%s %d", conditions, i) })
}

// all: one that is false exempts, whatever others fail.
func (e *Evaluation) all(ctx context.Context, programs []*Program, name func(int) string) (bool, error) {
	var failed []error
	for i, p := range programs {
		out, err := e.Run(ctx, p)
		if err == nil && out.Value() == false {
			return false, nil
		}
		if err == nil && out.Value() != true {
			err = fmt.Errorf("expected a bool, found a %s", out.Type().TypeName())
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", name(i), err))
		}
	}
	return true, errors.Join(failed...)
}

// Validate says with which message a validation fails; "" = none does. An error is of an expression that could not be evaluated.
func (e *Evaluation) Validate(ctx context.Context) (failed string, err error) {
	for i, p := range e.policy.validations {
		out, err := e.Run(ctx, p)
		if err != nil {
			return "", fmt.Errorf("expression '%s' resulted in error: %w", p.Text, err)
		}
		switch out.Value() {
		case true:
		case false:
			return e.message(ctx, i), nil
		default:
			return "", fmt.Errorf("expression '%s' resulted in error: expected a bool, found a %s", p.Text, out.Type().TypeName())
		}
	}
	return "", nil
}

// Violations are the messages of all validations that do not hold. What could not be evaluated does not hold either, and
// its error is the message, unless errors are to be ignored. An error is of an evaluation that had to end: it took too
// long.
func (e *Evaluation) Violations(ctx context.Context, ignore bool) (out []string, err error) {
	for i, p := range e.policy.validations {
		value, err := e.Run(ctx, p)
		if ctx.Err() != nil {
			return nil, err
		}
		if err == nil && value.Value() != true && value.Value() != false {
			err = fmt.Errorf("expected a bool, found a %s", value.Type().TypeName())
		}
		switch {
		case err != nil && !ignore:
			out = append(out, fmt.Sprintf("expression '%s' resulted in error: %v", p.Text, err))
		case err == nil && value.Value() == false:
			out = append(out, e.message(ctx, i))
		}
	}
	return out, nil
}

// message is what a failed validation says.
func (e *Evaluation) message(ctx context.Context, i int) string {
	v := e.policy.spec.Validations[i]
	if m := e.policy.messages[i]; m != nil {
		if out, err := e.Run(ctx, m); err == nil {
			if text, ok := out.Value().(string); ok && text != "" {
				return text
			}
		}
	}
	if v.Message != "" {
		return v.Message
	}
	return "failed expression: " + v.Expression
}

// Annotations are the audit annotations; one that cannot be evaluated is an error.
func (e *Evaluation) Annotations(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	for i, p := range e.policy.annotations {
		key := e.policy.spec.AuditAnnotations[i].Key
		value, err := e.Run(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("audit annotation %s: %w", key, err)
		}
		if text, ok := value.Value().(string); ok && text != "" {
			out[key] = text
		}
	}
	return out, nil
}

// Strings reads a list of strings.
func Strings(v ref.Val) ([]string, error) {
	list, ok := v.(traits.Lister)
	if !ok {
		return nil, fmt.Errorf("expected a list, found a %s", v.Type().TypeName())
	}
	var out []string
	for it := list.Iterator(); it.HasNext() == types.True; {
		text, ok := it.Next().Value().(string)
		if !ok {
			return nil, errors.New("expected a list of strings")
		}
		out = append(out, text)
	}
	return out, nil
}

// plain is a compiler without libraries, which many share.
var plain = sync.OnceValues(func() (*Compiler, error) { return NewCompiler() })

// Plain compiles expressions that look at the request only.
func Plain() (*Compiler, error) { return plain() }

// kubernetes is a compiler for the language of Kubernetes alone, which many share.
var kubernetes = sync.OnceValues(func() (*Compiler, error) { return newCompiler(nil) })

// Kubernetes compiles expressions that use the functions of Kubernetes' own policies, and no others.
func Kubernetes() (*Compiler, error) { return kubernetes() }
