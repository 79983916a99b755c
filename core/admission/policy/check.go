// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	policylib "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/wasmplane/wasmplane/core/admission/matching"
)

// checker compiles the expressions of one policy, and remembers what does not compile.
type checker struct {
	compiler *cel.CompositedCompiler
	declared cel.OptionalVariableDeclarations
	errs     []error
}

func newChecker(env *environment.EnvSet, params bool, conditions []admissionregistrationv1.MatchCondition,
	list []admissionregistrationv1.Variable,
) (*checker, error) {
	if env == nil {
		env = matching.NewEnvironment()
	}
	compiler, err := cel.NewCompositedCompiler(env)
	if err != nil {
		return nil, err
	}
	c := &checker{compiler: compiler, declared: cel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}}
	for i, v := range list {
		r := c.compiler.CompileAndStoreVariable(&policylib.Variable{Name: v.Name, Expression: v.Expression}, c.declared,
			environment.NewExpressions)
		c.result(fmt.Sprintf("spec.variables[%d].expression", i), r)
	}
	for i, m := range conditions {
		c.compile(fmt.Sprintf("spec.matchConditions[%d].expression", i), (*matchconditions.MatchCondition)(&m))
	}
	return c, nil
}

func (c *checker) compile(at string, e cel.ExpressionAccessor) {
	c.result(at, c.compiler.CompileCELExpression(e, c.declared, environment.NewExpressions))
}

func (c *checker) result(at string, r cel.CompilationResult) {
	if r.Error != nil {
		c.errs = append(c.errs, fmt.Errorf("%s: %s", at, r.Error.Detail))
	}
}

// CheckValidating compiles the expressions of a policy as a new one's, and says which of them do
// not compile, by their fields. env has their language; nil: that of Kubernetes.
func CheckValidating(p *admissionregistrationv1.ValidatingAdmissionPolicy, env *environment.EnvSet) error {
	c, err := newChecker(env, p.Spec.ParamKind != nil, p.Spec.MatchConditions, p.Spec.Variables)
	if err != nil {
		return err
	}
	for i, e := range validations(p) {
		c.compile(fmt.Sprintf("spec.validations[%d].expression", i), e)
	}
	for i, e := range annotations(p) {
		c.compile(fmt.Sprintf("spec.auditAnnotations[%d].valueExpression", i), e)
	}
	c.declared.HasAuthorizer = false
	for i, e := range messagesOf(p) {
		if e != nil {
			c.compile(fmt.Sprintf("spec.validations[%d].messageExpression", i), e)
		}
	}
	return errors.Join(c.errs...)
}

// CheckMutating is CheckValidating for the other kind.
func CheckMutating(p *admissionregistrationv1.MutatingAdmissionPolicy, env *environment.EnvSet) error {
	c, err := newChecker(env, p.Spec.ParamKind != nil, p.Spec.MatchConditions, p.Spec.Variables)
	if err != nil {
		return err
	}
	c.declared.HasPatchTypes = true
	for i, m := range p.Spec.Mutations {
		if m.JSONPatch != nil {
			c.compile(fmt.Sprintf("spec.mutations[%d].jsonPatch.expression", i), &patch.JSONPatchCondition{Expression: m.JSONPatch.Expression})
		}
		if m.ApplyConfiguration != nil {
			c.compile(fmt.Sprintf("spec.mutations[%d].applyConfiguration.expression", i),
				&patch.ApplyConfigurationCondition{Expression: m.ApplyConfiguration.Expression})
		}
	}
	return errors.Join(c.errs...)
}
