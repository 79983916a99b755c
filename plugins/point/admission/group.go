// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// Verdicts is the boolean expression of a group, compiled.
type Verdicts struct{ program cel.Program }

// CompileGroup reads a group's expression: its variables are the members.
func CompileGroup(g *manifest.Group) (*Verdicts, error) {
	var options []cel.EnvOption
	text := g.Expression
	for name := range g.Members {
		options = append(options, cel.Variable(name, cel.BoolType))
		text = regexp.MustCompile(`\b`+name+`\(\s*\)`).ReplaceAllString(text, name)
	}
	env, err := cel.NewEnv(options...)
	if err != nil {
		return nil, fmt.Errorf("group.expression: %w", err)
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, fmt.Errorf("group.expression: %w", issues.Err())
	}
	if ast.OutputType() != cel.BoolType {
		return nil, fmt.Errorf("group.expression: the expression is a %s: a bool was expected", ast.OutputType())
	}
	program, err := env.Program(ast, cel.CostLimit(celCost))
	if err != nil {
		return nil, fmt.Errorf("group.expression: %w", err)
	}
	return &Verdicts{program}, nil
}

// NewGroup makes the adapter of a group over its members' plugins.
func NewGroup(p *point.Plugin, verdicts *Verdicts, members map[string]*point.Plugin, c Cluster) admission.Plugin {
	g := &group{adapter: &adapter{plugin: p, cluster: c}, verdicts: verdicts, members: map[string]*adapter{}}
	for name, m := range members {
		g.members[name] = &adapter{plugin: m, cluster: c}
	}
	return g
}

// group implements core's admission.Validator over several plugins.
type group struct {
	*adapter
	verdicts *Verdicts
	members  map[string]*adapter
}

// Validate implements admission.Validator.
func (g *group) Validate(ctx context.Context, r *admission.Request) error {
	v := g.plugin.Current()
	if v == nil || v.Hook(abi.AdmissionValidate) == nil {
		return nil
	}
	matches, err := matcherOf(v).matches(ctx, abi.AdmissionValidate, r, g.cluster)
	if err != nil {
		return g.unmatched(ctx, abi.AdmissionValidate, r, v, err)
	}
	if !matches {
		skipped(ctx)
		return nil
	}
	start := time.Now()
	answer, err := g.judge(ctx, r, v.Entry.Group)
	c := &point.Call{Plugin: g.plugin, Version: v, Hook: v.Hook(abi.AdmissionValidate)}
	c.Usage.Duration = time.Since(start)
	if err != nil {
		c.Fail(err)
	}
	t := turn{adapter: g.adapter, call: c, request: r, point: abi.AdmissionValidate, answer: answer}
	return t.finish(ctx)
}

// said is what the members said that were asked.
type said struct {
	mu      sync.Mutex
	refused map[string]string
}

// judge evaluates the expression. Members are asked when the expression comes to them.
func (g *group) judge(ctx context.Context, r *admission.Request, about *manifest.Group) (*abi.AdmissionAnswer, error) {
	words := said{refused: map[string]string{}}
	vars := map[string]any{}
	for name, m := range g.members {
		vars[name] = func() ref.Val {
			allowed, message, err := m.verdict(ctx, r)
			if err != nil {
				return types.WrapErr(fmt.Errorf("member %s: %w", name, err))
			}
			if !allowed {
				words.mu.Lock()
				words.refused[name] = message
				words.mu.Unlock()
			}
			return types.Bool(allowed)
		}
	}
	out, _, err := g.verdicts.program.ContextEval(ctx, vars)
	if err != nil {
		return nil, fmt.Errorf("group.expression: %w", err)
	}
	if out == types.True {
		return &abi.AdmissionAnswer{}, nil
	}
	no := false
	return &abi.AdmissionAnswer{Allowed: &no, Message: words.message(about.Message)}, nil
}

func (s *said) message(wanted string) string {
	var parts []string
	for name, message := range s.refused {
		if message == "" {
			message = "no"
		}
		parts = append(parts, name+": "+message)
	}
	slices.Sort(parts)
	why := strings.Join(parts, "; ")
	switch {
	case wanted == "":
		return why
	case why == "":
		return wanted
	}
	return wanted + " (" + why + ")"
}

// verdict asks a member, without an effect on the request.
func (a *adapter) verdict(ctx context.Context, r *admission.Request) (allowed bool, message string, err error) {
	c, answer, err := a.answer(ctx, r)
	if c == nil {
		return true, "", err // the module's own rules say that it has nothing against it
	}
	outcome := point.Outcome{Decision: "allow", Span: "plugin " + a.Name()}
	if c.Err == nil && answer.Denied() {
		outcome.Decision, outcome.Message = "deny", answer.Message
	}
	c.Record(ctx, abi.AdmissionValidate, outcome)
	if c.Err != nil {
		return false, "", c.Err
	}
	return !answer.Denied(), answer.Message, nil
}

// answer is what a plugin says at admission.validate, without an effect on the request. The call
// is nil where it is not asked.
func (a *adapter) answer(ctx context.Context, r *admission.Request) (*point.Call, *abi.AdmissionAnswer, error) {
	v := a.plugin.Current()
	if v != nil && v.Err == nil {
		matches, err := matcherOf(v).matches(ctx, abi.AdmissionValidate, r, a.cluster)
		if err != nil || !matches {
			return nil, nil, err
		}
	}
	doc, err := newDocument(r)
	if err != nil {
		return nil, nil, err
	}
	if v != nil && v.Foreign() {
		doc.RequestKind, doc.RequestResource, doc.RequestSubResource = &doc.Kind, &doc.Resource, doc.SubResource
	}
	c := a.plugin.Ask(ctx, abi.AdmissionValidate, r.Kind.Kind, doc)
	if c == nil {
		return nil, nil, errors.New("the module has no hook at admission.validate")
	}
	var answer *abi.AdmissionAnswer
	if c.Err == nil {
		if answer, err = abi.ParseAdmission(c.Answer, c.Hook.Hook); err != nil {
			c.Fail(err)
		}
	}
	return c, answer, nil
}
