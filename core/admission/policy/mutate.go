// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	admissionauthorizer "k8s.io/apiserver/pkg/admission/plugin/authorizer"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	mutatinglib "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/trace"
)

// mutatingPolicy is a MutatingAdmissionPolicy.
type mutatingPolicy struct {
	rule
	reinvoke bool
	code     func() *mutations // compiles it, once
}

// mutations are a mutating policy's expressions, compiled.
type mutations struct {
	conditions matchconditions.Matcher // nil: none
	compiler   *cel.CompositedCompiler
	patchers   []patch.Patcher
	broken     error // they cannot be evaluated
}

func (p *mutatingPolicy) with(bindings []*binding) *mutatingPolicy {
	bound := *p
	bound.bindings = bindings
	return &bound
}

// matcher is nil where there are no conditions, which a nil *Conditions in an
// interface would not be.
func matcher(c *matching.Conditions) matchconditions.Matcher {
	if c == nil {
		return nil
	}
	return c
}

func (p *Policies) newMutating(o any) *mutatingPolicy {
	given, ok := o.(*admissionregistrationv1.MutatingAdmissionPolicy)
	if !ok {
		return &mutatingPolicy{rule: newRule("", nil, nil, nil)}
	}
	out := &mutatingPolicy{rule: newRule(given.Name, given.Spec.MatchConstraints, given.Spec.ParamKind, given.Spec.FailurePolicy)}
	out.reinvoke = given.Spec.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy
	out.code = sync.OnceValue(func() *mutations { return p.compileMutating(given) })
	return out
}

func (p *Policies) compileMutating(given *admissionregistrationv1.MutatingAdmissionPolicy) *mutations {
	out := &mutations{}
	compiler, err := cel.NewCompositedCompiler(p.env)
	if err != nil {
		out.broken = fmt.Errorf("failed to initialize CEL compiler: %w", err)
		return out
	}
	declared := cel.OptionalVariableDeclarations{HasParams: given.Spec.ParamKind != nil, HasAuthorizer: true}
	compiler.CompileAndStoreVariables(variables(given.Spec.Variables), declared, environment.StoredExpressions)
	out.compiler = compiler
	out.conditions = matcher(matching.NewConditions(compiler, given.Spec.MatchConditions, declared.HasParams, given.Spec.FailurePolicy,
		p.cfg.Conditions, given.Name, "policy", "admit"))
	declared.HasPatchTypes = true
	for _, m := range given.Spec.Mutations {
		switch {
		case m.PatchType == admissionregistrationv1.PatchTypeJSONPatch && m.JSONPatch != nil:
			out.patchers = append(out.patchers, patch.NewJSONPatcher(compiler.CompileMutatingEvaluator(
				&patch.JSONPatchCondition{Expression: m.JSONPatch.Expression}, declared, environment.StoredExpressions)))
		case m.PatchType == admissionregistrationv1.PatchTypeApplyConfiguration && m.ApplyConfiguration != nil:
			out.patchers = append(out.patchers, patch.NewApplyConfigurationPatcher(compiler.CompileMutatingEvaluator(
				&patch.ApplyConfigurationCondition{Expression: m.ApplyConfiguration.Expression}, declared, environment.StoredExpressions)))
		}
	}
	return out
}

// mutating asks the MutatingAdmissionPolicies.
type mutating struct{ *Policies }

func (mutating) Name() string { return MutatingName }

func (m mutating) Handles(r *admission.Request) bool {
	return r.Object != nil && !matching.IsReview(r) && (len(m.files().For(r, m.cfg.Resources)) > 0 ||
		!matching.IsConfiguration(r) && !m.mutating.none(r, m.cfg.Resources))
}

func (m mutating) files() *matching.Index[*mutatingPolicy] {
	if m.cfg.Static == nil {
		return m.staticMutating.current(nil, nil, m.newMutating)
	}
	policies, bindings := m.cfg.Static.MutatingPolicies()
	return m.staticMutating.current(anys(policies), anys(bindings), m.newMutating)
}

func (m mutating) policies(ctx context.Context, r *admission.Request) ([]*mutatingPolicy, error) {
	static := m.files().For(r, m.cfg.Resources)
	if matching.IsConfiguration(r) {
		return static, nil
	}
	if err := m.mutating.ready(ctx, r, m.cfg.Warm); err != nil {
		return nil, err
	}
	return slices.Concat(static, m.mutating.current().For(r, m.cfg.Resources)), nil
}

// roundsKey is that of the policies of a name.
type roundsKey struct{ name string }

// Again implements admission.Again.
func (m mutating) Again(r *admission.Request) bool {
	return Again(r, m.cfg.Name)
}

// Again says whether policies of a name (Config.Name) are to be asked again about a request.
func Again(r *admission.Request, name string) bool {
	return matching.RoundsOf(r, roundsKey{name}).Again()
}

// turn is one round of the plugin on one request.
type turn struct {
	verdict // for the namespace and the authorizer
	state   *matching.Rounds
	again   bool
	errs    []denial
}

// Mutate implements admission.Mutator.
func (m mutating) Mutate(ctx context.Context, r *admission.Request) error {
	if r.Object == nil {
		return nil
	}
	policies, err := m.policies(ctx, r)
	if err != nil {
		return err
	}
	state := matching.RoundsOf(r, roundsKey{m.cfg.Name})
	t := &turn{
		verdict: verdict{Policies: m.Policies, r: r, authz: admissionauthorizer.NewCachingAuthorizer(m.cfg.Authorizer)}, state: state,
		again: state.Begin(r.Object.Changes()),
	}
	defer func() { state.End(r.Object.Changes()) }()
	for _, p := range policies {
		if err := t.ask(ctx, p); err != nil {
			return err
		}
	}
	return t.end()
}

// ask applies one policy under each of its bindings. Every policy is matched
// against, and sees, what those before it have made of the object.
func (t *turn) ask(ctx context.Context, p *mutatingPolicy) error {
	target, ok, err := p.criteria.Match(ctx, t.r, t.namespaces, t.cfg.Resources)
	if err == nil && ok {
		err = p.unusable()
	}
	if err != nil {
		t.failed(p, nil, fmt.Errorf("failed to configure policy: %w", err), "")
		return nil
	}
	if !ok {
		return nil
	}
	for _, b := range p.bindings {
		if b.criteria != nil {
			_, ok, err := b.criteria.Match(ctx, t.r, t.namespaces, t.cfg.Resources)
			if err != nil {
				t.failed(p, b, fmt.Errorf("failed to configure binding: %w", err), "")
				continue
			}
			if !ok {
				continue
			}
		}
		params, err := t.collect(ctx, p.params, b.params, matching.Namespace(t.r))
		if err != nil {
			t.failed(p, b, fmt.Errorf("failed to configure binding: %w", err), "")
			continue
		}
		for _, param := range params {
			if err := t.invoke(ctx, p, b, target, param); err != nil {
				return err
			}
		}
	}
	return nil
}

// unusable is why the policy can be applied to nothing.
func (p *mutatingPolicy) unusable() error {
	if p.broken != nil {
		return p.broken
	}
	return p.code().broken
}

// failed notes that a policy could not be applied.
func (t *turn) failed(p *mutatingPolicy, b *binding, err error, reason metav1.StatusReason) {
	if p.ignore {
		return
	}
	message := fmt.Sprintf("policy %q denied request: %s", p.name, err)
	if b != nil {
		message = fmt.Sprintf("policy '%s' with binding '%s' denied request: %s", p.name, b.name, err)
	}
	t.errs = append(t.errs, denial{message, reason})
}

// invoke applies the policy's mutations with one parameter.
func (t *turn) invoke(ctx context.Context, p *mutatingPolicy, b *binding, target matching.Target, param runtime.Object) error {
	key, err := keyOf(p, b, param)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if t.again && !t.state.Due(key) {
		return nil
	}
	ns, err := t.namespace(ctx)
	if err != nil {
		return err
	}
	view, err := target.In(ctx, t.r)
	if err != nil {
		t.failed(p, nil, fmt.Errorf("failed to configure policy: %w", err), "")
		return nil
	}
	attributes, err := view.CEL(t.r)
	if err != nil {
		t.failed(p, nil, fmt.Errorf("failed to configure policy: %w", err), "")
		return nil
	}
	code := p.code()
	if code.conditions != nil {
		switch result := code.conditions.Match(code.compiler.CreateContext(ctx), attributes, param, t.authz); { //nolint:contextcheck // what it makes is of ctx
		case result.Error != nil:
			t.failed(p, b, result.Error, metav1.StatusReasonInvalid)
			return nil //nolint:nilerr // failed keeps it, for the failure policy
		case !result.Matches:
			return nil
		}
	}
	before, err := view.Object.Versioned()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	ctx, span := startSpan(ctx, trace.AdmissionMutate, p.name, b.name)
	changed, failed := false, error(nil)
	for _, patcher := range code.patchers {
		began := time.Now()
		err := t.patch(ctx, p, patcher, target,
			patch.Request{OptionalVariables: cel.OptionalVariableBindings{VersionedParams: param, Authorizer: t.authz}, Namespace: ns})
		if err != nil {
			t.metrics.mutating.observe(time.Since(began), p.name, b.name, string(mutatinglib.ErrorType(err)))
			var status *apierrors.StatusError
			if errors.As(err, &status) {
				span.deny(err.Error())
				return status
			}
			t.failed(p, b, err, metav1.StatusReasonInvalid)
			failed = err
			continue
		}
		t.metrics.mutating.observe(time.Since(began), p.name, b.name, "no_error")
	}
	if after, err := target.In(ctx, t.r); err == nil {
		if now, err := after.Object.Versioned(); err == nil {
			changed = !apiequality.Semantic.DeepEqual(before, now)
		}
	}
	switch {
	case failed != nil && !p.ignore:
		span.deny(failed.Error())
	case changed:
		span.allow("patch")
	default:
		span.allow("allow")
	}
	t.state.Done(key)
	if changed {
		t.state.Changed()
	}
	if p.reinvoke && !t.again {
		t.state.Wants(key)
	}
	return nil
}

func keyOf(p *mutatingPolicy, b *binding, param runtime.Object) (string, error) {
	key := p.name + "\x00" + b.name
	if param == nil {
		return key, nil
	}
	m, err := meta.Accessor(param)
	if err != nil {
		return "", err
	}
	return key + "\x00" + m.GetNamespace() + "/" + m.GetName(), nil
}

// patch applies one mutation to the request's object as it is by now.
func (t *turn) patch(ctx context.Context, p *mutatingPolicy, patcher patch.Patcher, target matching.Target, request patch.Request) error {
	view, err := target.In(ctx, t.r)
	if err != nil {
		return err
	}
	if request.VersionedAttributes, err = view.CEL(t.r); err != nil {
		return err
	}
	if request.TypeConverter, err = t.cfg.Types(view.Object.Kind()); err != nil {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("Resource kind %s not found. There can be a delay between when CustomResourceDefinitions are created and when they are available.", view.Kind))
	}
	codec := view.Object.Codec()
	request.MatchedResource, request.ObjectInterfaces = target.Resource, interfaces{codec}
	next, err := patcher.Patch(p.code().compiler.CreateContext(ctx), request, celconfig.RuntimeCELCostBudget) //nolint:contextcheck // what it makes is of ctx
	if err != nil {
		return err
	}
	before := request.VersionedAttributes.VersionedObject.Object()
	if u, ok := next.(*unstructured.Unstructured); ok {
		if _, custom := before.(*unstructured.Unstructured); !custom {
			if next, err = codec.FromTree(u.Object); err != nil {
				return err
			}
		}
	}
	if next == before || apiequality.Semantic.DeepEqual(before, next) {
		return nil
	}
	codec.Default(next)
	return view.Set(ctx, t.r, object.Named(next, view.Object.Kind()))
}

// end refuses with everything that failed; the first failure is the message.
func (t *turn) end() error {
	if len(t.errs) == 0 {
		return nil
	}
	err := admission.Forbidden(t.r, errors.New("admission request denied by policy"))
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		return err
	}
	status.ErrStatus.Message = t.errs[0].message
	if t.errs[0].reason != "" {
		status.ErrStatus.Reason = t.errs[0].reason
	}
	for _, e := range t.errs {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Message: e.message})
	}
	return status
}

// interfaces are what upstream's patchers ask of a resource, answered by its codec.
type interfaces struct{ codec object.Codec }

// New implements runtime.ObjectCreater.
func (i interfaces) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	if kind != i.codec.Kind() {
		return nil, fmt.Errorf("a patch of a %v cannot make a %v", i.codec.Kind(), kind)
	}
	return i.codec.FromTree(map[string]any{})
}

// ObjectKinds implements runtime.ObjectTyper.
func (i interfaces) ObjectKinds(runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	return []schema.GroupVersionKind{i.codec.Kind()}, false, nil
}

// Recognizes implements runtime.ObjectTyper.
func (i interfaces) Recognizes(kind schema.GroupVersionKind) bool { return kind == i.codec.Kind() }

// Default implements runtime.ObjectDefaulter.
func (i interfaces) Default(o runtime.Object) { i.codec.Default(o) }

func (i interfaces) GetObjectCreater() runtime.ObjectCreater     { return i }
func (i interfaces) GetObjectTyper() runtime.ObjectTyper         { return i }
func (i interfaces) GetObjectDefaulter() runtime.ObjectDefaulter { return i }

// GetObjectConvertor and GetEquivalentResourceMapper are not asked for by patchers.
func (i interfaces) GetObjectConvertor() runtime.ObjectConvertor { return nil }

func (i interfaces) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper { return nil }
