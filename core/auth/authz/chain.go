// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/trace"
)

// The decisions, under shorter names.
const (
	Deny      = authorizer.DecisionDeny
	Allow     = authorizer.DecisionAllow
	NoOpinion = authorizer.DecisionNoOpinion
)

// BreakGlassGroup is above every authorizer: its members get in when a policy
// has locked everyone else out. No component is a member.
const BreakGlassGroup = user.SystemPrivilegedGroup

// Ruler is an optional interface of an Authorizer that can list what a user may
// do in a namespace. incomplete means that there may be more.
type Ruler interface {
	RulesFor(ctx context.Context, u user.Info,
		namespace string) (resources []authorizer.ResourceRuleInfo, paths []authorizer.NonResourceRuleInfo, incomplete bool, err error)
}

// Chain asks authorizers in order until one allows or denies. It is safe for
// concurrent use, also while Replace gives it another list. It implements
// Authorizer, Ruler and upstream's authorizer.Authorizer.
type Chain struct{ list atomic.Pointer[[]Authorizer] }

// NewChain makes a chain. Before all of them stands the break-glass group.
func NewChain(authorizers ...Authorizer) (*Chain, error) {
	c := &Chain{}
	return c, c.Replace(authorizers...)
}

// Replace swaps the list; questions under way finish with the old one.
func (c *Chain) Replace(authorizers ...Authorizer) error {
	seen := map[string]bool{}
	for _, a := range authorizers {
		if a.Name() == "" {
			return errors.New("an authorizer has no name")
		}
		if seen[a.Name()] {
			return fmt.Errorf("two authorizers are named %q: rename or remove one", a.Name())
		}
		seen[a.Name()] = true
	}
	list := slices.Clone(authorizers)
	c.list.Store(&list)
	return nil
}

// Authorizers is the list in force. The caller must not change it.
func (c *Chain) Authorizers() []Authorizer { return *c.list.Load() }

// Name implements Authorizer.
func (c *Chain) Name() string { return "chain" }

// Authorize implements Authorizer. With no opinion at all, the reasons and errors
// of everyone asked are put together.
func (c *Chain) Authorize(ctx context.Context, a Attributes) (Decision, string, error) {
	parent := oteltrace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		_, d, reason, err := c.decide(ctx, a, nil)
		return d, reason, err
	}
	ctx, span := parent.TracerProvider().Tracer("authz").Start(ctx, trace.Authorize)
	defer span.End()
	who, d, reason, err := c.decide(ctx, a, span)
	span.SetAttributes(trace.PluginKey.String(who), trace.DecisionKey.String(Text(d)), trace.MessageKey.String(reason))
	if d != Allow {
		span.SetStatus(codes.Error, reason)
	}
	return d, reason, err
}

// decide also says who decided; each answer becomes an event of span, if there is one.
func (c *Chain) decide(ctx context.Context, a Attributes, span oteltrace.Span) (who string, d Decision, reason string, err error) {
	if breaksGlass(a.GetUser()) {
		return "break-glass", Allow, "", nil
	}
	var reasons []string
	var errs []error
	for _, one := range c.Authorizers() {
		d, reason, err := one.Authorize(ctx, a)
		if span != nil {
			span.AddEvent(one.Name(), oteltrace.WithAttributes(answer(one.Name(), d, reason, err)...))
		}
		if d == Allow || d == Deny {
			return one.Name(), d, reason, err
		}
		if reason != "" {
			reasons = append(reasons, reason)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return "", NoOpinion, strings.Join(reasons, "\n"), utilerrors.NewAggregate(errs)
}

func answer(name string, d Decision, reason string, err error) []attribute.KeyValue {
	attrs := []attribute.KeyValue{trace.PluginKey.String(name), trace.DecisionKey.String(Text(d))}
	if err != nil {
		reason = strings.TrimPrefix(reason+": "+err.Error(), ": ")
	}
	if reason != "" {
		attrs = append(attrs, trace.MessageKey.String(reason))
	}
	return attrs
}

// Text is a decision in words.
func Text(d Decision) string {
	switch d {
	case Allow:
		return "allow"
	case Deny:
		return "deny"
	default:
		return "no opinion"
	}
}

func breaksGlass(u user.Info) bool {
	return u != nil && slices.Contains(u.GetGroups(), BreakGlassGroup)
}

// ConditionsAwareAuthorize implements upstream's interface; nobody here decides
// on conditions.
func (c *Chain) ConditionsAwareAuthorize(ctx context.Context, a Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(c.Authorize(ctx, a))
}

// EvaluateConditions implements upstream's interface.
func (c *Chain) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision,
	authorizer.ConditionsData,
) (Decision, string, error) {
	return Deny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor implements Ruler: everything that any authorizer allows. Those that
// cannot list make the answer incomplete.
func (c *Chain) RulesFor(ctx context.Context, u user.Info,
	namespace string,
) (resources []authorizer.ResourceRuleInfo, paths []authorizer.NonResourceRuleInfo, incomplete bool, err error) {
	if breaksGlass(u) {
		all := []string{"*"}
		return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: all, APIGroups: all, Resources: all}},
			[]authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{Verbs: all, NonResourceURLs: all}}, false, nil
	}
	var errs []error
	for _, one := range c.Authorizers() {
		ruler, ok := one.(Ruler)
		if !ok {
			incomplete = true
			continue
		}
		r, p, partly, err := ruler.RulesFor(ctx, u, namespace)
		resources, paths, incomplete = append(resources, r...), append(paths, p...), incomplete || partly
		if err != nil {
			errs = append(errs, err)
		}
	}
	return resources, paths, incomplete, utilerrors.NewAggregate(errs)
}

// Named gives one of upstream's authorizers a name.
func Named(name string, a authorizer.UnconditionalAuthorizer) Authorizer {
	if r, ok := a.(Ruler); ok {
		return namedRuler{named{name, a}, r}
	}
	return named{name, a}
}

type named struct {
	name string
	authorizer.UnconditionalAuthorizer
}

func (n named) Name() string { return n.name }

type namedRuler struct {
	named
	Ruler
}
