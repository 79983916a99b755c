// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	admissionauthorizer "k8s.io/apiserver/pkg/admission/plugin/authorizer"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	policylib "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/trace"
)

// validatingPolicy is a ValidatingAdmissionPolicy.
type validatingPolicy struct {
	rule
	validator func() policylib.Validator // compiles it, once
}

func (p *validatingPolicy) with(bindings []*binding) *validatingPolicy {
	bound := *p
	bound.bindings = bindings
	return &bound
}

// newValidating reads a policy. Expressions that don't compile fail when they
// are evaluated, as the failure policy says.
func (p *Policies) newValidating(o any) *validatingPolicy {
	given, ok := o.(*admissionregistrationv1.ValidatingAdmissionPolicy)
	if !ok {
		return &validatingPolicy{rule: newRule("", nil, nil, nil)}
	}
	out := &validatingPolicy{rule: newRule(given.Name, given.Spec.MatchConstraints, given.Spec.ParamKind, given.Spec.FailurePolicy)}
	out.object = given
	out.validator = sync.OnceValue(func() policylib.Validator { return p.compileValidating(given) })
	return out
}

func (p *Policies) compileValidating(given *admissionregistrationv1.ValidatingAdmissionPolicy) policylib.Validator {
	all := cel.OptionalVariableDeclarations{HasParams: given.Spec.ParamKind != nil, HasAuthorizer: true}
	messages := cel.OptionalVariableDeclarations{HasParams: all.HasParams}
	compiler, err := cel.NewCompositedCompiler(p.env)
	if err != nil {
		return policylib.NewValidator(nil, nil, nil, nil, given.Spec.FailurePolicy, err)
	}
	compiler.CompileAndStoreVariables(variables(given.Spec.Variables), all, environment.StoredExpressions)
	compile := func(list []cel.ExpressionAccessor, o cel.OptionalVariableDeclarations) cel.ConditionEvaluator {
		return compiler.CompileCondition(list, o, environment.StoredExpressions)
	}
	conditions := matching.NewConditions(compiler, given.Spec.MatchConditions, all.HasParams, given.Spec.FailurePolicy, p.cfg.Conditions,
		given.Name, "policy", "validate")
	return policylib.NewValidator(compile(validations(given), all), matcher(conditions), compile(annotations(given), all),
		compile(messagesOf(given), messages), given.Spec.FailurePolicy, nil)
}

func variables(list []admissionregistrationv1.Variable) []cel.NamedExpressionAccessor {
	out := make([]cel.NamedExpressionAccessor, len(list))
	for i, v := range list {
		out[i] = &policylib.Variable{Name: v.Name, Expression: v.Expression}
	}
	return out
}

func validations(p *admissionregistrationv1.ValidatingAdmissionPolicy) []cel.ExpressionAccessor {
	out := make([]cel.ExpressionAccessor, len(p.Spec.Validations))
	for i, v := range p.Spec.Validations {
		out[i] = &policylib.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason}
	}
	return out
}

// messagesOf has a hole for each validation without a message of its own.
func messagesOf(p *admissionregistrationv1.ValidatingAdmissionPolicy) []cel.ExpressionAccessor {
	out := make([]cel.ExpressionAccessor, len(p.Spec.Validations))
	for i, v := range p.Spec.Validations {
		if v.MessageExpression != "" {
			out[i] = &policylib.MessageExpressionCondition{MessageExpression: v.MessageExpression}
		}
	}
	return out
}

func annotations(p *admissionregistrationv1.ValidatingAdmissionPolicy) []cel.ExpressionAccessor {
	out := make([]cel.ExpressionAccessor, len(p.Spec.AuditAnnotations))
	for i, a := range p.Spec.AuditAnnotations {
		out[i] = &policylib.AuditAnnotationCondition{Key: a.Key, ValueExpression: a.ValueExpression}
	}
	return out
}

// validating asks the ValidatingAdmissionPolicies.
type validating struct{ *Policies }

func (validating) Name() string { return ValidatingName }

func (v validating) Handles(r *admission.Request) bool {
	return !matching.IsReview(r) && (len(v.files().For(r, v.cfg.Resources)) > 0 ||
		!matching.IsConfiguration(r) && !v.validating.none(r, v.cfg.Resources))
}

func (v validating) files() *matching.Index[*validatingPolicy] {
	if v.cfg.Static == nil {
		return v.staticValidating.current(nil, nil, v.newValidating)
	}
	policies, bindings := v.cfg.Static.ValidatingPolicies()
	return v.staticValidating.current(anys(policies), anys(bindings), v.newValidating)
}

func (v validating) policies(ctx context.Context, r *admission.Request) ([]*validatingPolicy, error) {
	static := v.files().For(r, v.cfg.Resources)
	if matching.IsConfiguration(r) {
		return static, nil
	}
	if err := v.validating.ready(ctx, r, v.cfg.Warm); err != nil {
		return nil, err
	}
	return slices.Concat(static, v.validating.current().For(r, v.cfg.Resources)), nil
}

// verdict is what the policies together have to say about a request.
type verdict struct {
	*Policies
	r        *admission.Request
	authz    authorizer.UnconditionalAuthorizer
	ns       *corev1.Namespace
	nsKnown  bool
	denied   []denial
	failures []failure
}

type denial struct {
	message string
	reason  metav1.StatusReason
}

// failure is one entry of the audit annotation, with upstream's fields.
type failure struct {
	Message           string                                     `json:"message"`
	Policy            string                                     `json:"policy"`
	Binding           string                                     `json:"binding"`
	ExpressionIndex   int                                        `json:"expressionIndex"`
	ValidationActions []admissionregistrationv1.ValidationAction `json:"validationActions"`
}

const (
	maxFailures   = 50
	maxAnnotation = 10 << 10 // bytes
)

// Validate implements admission.Validator.
func (v validating) Validate(ctx context.Context, r *admission.Request) error {
	policies, err := v.policies(ctx, r)
	if err != nil {
		return err
	}
	out := &verdict{Policies: v.Policies, r: r, authz: admissionauthorizer.NewCachingAuthorizer(v.cfg.Authorizer)}
	for _, p := range policies {
		if err := out.ask(ctx, p); err != nil {
			return err
		}
	}
	return out.end()
}

// ask lets one policy judge, under each of its bindings.
func (v *verdict) ask(ctx context.Context, p *validatingPolicy) error {
	target, ok, err := p.criteria.Match(ctx, v.r, v.namespaces, v.cfg.Resources)
	if err == nil && ok {
		err = p.broken
	}
	if err != nil {
		v.misconfigured(p, nil, err)
		return nil
	}
	if !ok {
		return nil
	}
	said := map[string][]string{}
	for _, b := range p.bindings {
		if err := v.under(ctx, p, b, target, said); err != nil {
			return err
		}
	}
	for key, values := range said {
		v.r.Annotate(p.name+"/"+key, strings.Join(values, ", "))
	}
	return nil
}

// misconfigured: a policy or binding that cannot be applied refuses, unless its
// failures are ignored.
func (v *verdict) misconfigured(p *validatingPolicy, b *binding, err error) {
	if p.ignore {
		return
	}
	if b == nil {
		v.denied = append(v.denied,
			denial{message: fmt.Sprintf("ValidatingAdmissionPolicy '%s' denied request: failed to configure policy: %v", p.name, err)})
		return
	}
	v.denied = append(v.denied, denial{message: fmt.Sprintf("ValidatingAdmissionPolicy '%s' with binding '%s' denied request: failed to configure binding: %v", p.name, b.name, err)})
}

// under applies the policy under one binding.
func (v *verdict) under(ctx context.Context, p *validatingPolicy, b *binding, target matching.Target, said map[string][]string) error {
	if b.criteria != nil {
		_, ok, err := b.criteria.Match(ctx, v.r, v.namespaces, v.cfg.Resources)
		if err != nil {
			v.misconfigured(p, b, err)
			return nil
		}
		if !ok {
			return nil
		}
	}
	params, err := v.collect(ctx, p.params, b.params, matching.Namespace(v.r))
	if err != nil {
		v.misconfigured(p, b, err)
		return nil
	}
	if len(params) == 0 {
		return nil
	}
	view, err := target.In(ctx, v.r)
	if err != nil {
		v.misconfigured(p, b, fmt.Errorf("failed to convert object version: %w", err))
		return nil
	}
	attributes, err := view.CEL(v.r)
	if err != nil {
		v.misconfigured(p, b, fmt.Errorf("failed to convert object version: %w", err))
		return nil
	}
	ns, err := v.namespace(ctx)
	if err != nil {
		return err
	}
	ctx, span := startSpan(ctx, trace.AdmissionValidate, p.name, b.name)
	before := len(v.denied)
	for _, param := range params {
		v.take(p, b, p.validator().Validate(ctx, target.Resource, attributes, param, ns, celconfig.RuntimeCELCostBudget, v.authz), said)
	}
	if len(v.denied) > before {
		span.deny(v.denied[before].message)
	} else {
		span.allow("allow")
	}
	return nil
}

// namespace of the request, read once; a namespace itself has none.
func (v *verdict) namespace(ctx context.Context) (*corev1.Namespace, error) {
	if v.nsKnown || v.r.Namespace == "" || v.r.Kind.Group == "" && v.r.Kind.Kind == "Namespace" {
		return v.ns, nil
	}
	ns, err := v.namespaces.Get(ctx, v.r.Namespace)
	if err != nil {
		return nil, err
	}
	v.ns, v.nsKnown = ns, true
	return ns, nil
}

// take adds one evaluation to the verdict.
func (v *verdict) take(p *validatingPolicy, b *binding, result policylib.ValidateResult, said map[string][]string) {
	for i := range result.Decisions {
		d := &result.Decisions[i]
		if d.Action == policylib.ActionAdmit {
			if d.Evaluation == policylib.EvalError {
				v.metrics.validating.observe(d.Elapsed, p.name, b.name, errorType(d), "allow")
			}
			continue
		}
		for _, action := range b.actions {
			switch action {
			case admissionregistrationv1.Deny:
				v.deny(p, b, d)
			case admissionregistrationv1.Audit:
				v.failures = append(v.failures, failure{d.Message, b.policy, b.name, i, b.actions})
				v.metrics.validating.observe(d.Elapsed, p.name, b.name, errorType(d), "audit")
			case admissionregistrationv1.Warn:
				v.r.Warn(fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy '%s' with binding '%s': %s", p.name, b.name, d.Message))
				v.metrics.validating.observe(d.Elapsed, p.name, b.name, errorType(d), "warn")
			}
		}
	}
	for i := range result.AuditAnnotations {
		a := &result.AuditAnnotations[i]
		switch a.Action {
		case policylib.AuditAnnotationActionPublish:
			value := a.Value[:min(len(a.Value), maxAnnotation)]
			if !slices.Contains(said[a.Key], value) {
				said[a.Key] = append(said[a.Key], value)
			}
		case policylib.AuditAnnotationActionError:
			v.deny(p, b, &policylib.PolicyDecision{Evaluation: policylib.EvalError, Message: a.Error, Elapsed: a.Elapsed})
		case policylib.AuditAnnotationActionExclude:
		}
	}
}

func (v *verdict) deny(p *validatingPolicy, b *binding, d *policylib.PolicyDecision) {
	v.denied = append(v.denied,
		denial{fmt.Sprintf("ValidatingAdmissionPolicy '%s' with binding '%s' denied request: %s", p.name, b.name, d.Message), d.Reason})
	v.metrics.validating.observe(d.Elapsed, p.name, b.name, errorType(d), "deny")
}

// errorType of a decision, in upstream's words.
func errorType(d *policylib.PolicyDecision) string { return string(policylib.ErrorType(d)) }

// end tells the outcome: the first refusal is the request's.
func (v *verdict) end() error {
	if len(v.failures) > 0 {
		text, err := json.Marshal(v.failures[:min(len(v.failures), maxFailures)])
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		v.r.Annotate("validation.policy.admission.k8s.io/validation_failure", string(text))
	}
	if len(v.denied) == 0 {
		return nil
	}
	first := v.denied[0]
	err := admission.Forbidden(v.r, errors.New(first.message))
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		return err
	}
	status.ErrStatus.Reason = first.reason
	if first.reason == "" {
		status.ErrStatus.Reason = metav1.StatusReasonInvalid
	}
	status.ErrStatus.Code = codeOf(status.ErrStatus.Reason)
	status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Message: first.message})
	return status
}

func codeOf(reason metav1.StatusReason) int32 {
	switch reason {
	case metav1.StatusReasonForbidden:
		return http.StatusForbidden
	case metav1.StatusReasonUnauthorized:
		return http.StatusUnauthorized
	case metav1.StatusReasonRequestEntityTooLarge:
		return http.StatusRequestEntityTooLarge
	default:
		return http.StatusUnprocessableEntity
	}
}
