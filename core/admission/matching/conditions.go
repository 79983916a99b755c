// SPDX-License-Identifier: Apache-2.0

package matching

import (
	"context"
	"time"

	celgo "github.com/google/cel-go/cel"
	celtypes "github.com/google/cel-go/common/types"
	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
)

// NewEnvironment is the CEL environment that webhooks and policies of this
// version of Kubernetes are written for.
func NewEnvironment() *environment.EnvSet {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
}

// Condition is one matchCondition.
type Condition admissionregistrationv1.MatchCondition

// GetExpression implements cel.ExpressionAccessor.
func (c *Condition) GetExpression() string { return c.Expression }

// GetName implements cel.NamedExpressionAccessor.
func (c *Condition) GetName() string { return c.Name }

// ReturnTypes implements cel.ExpressionAccessor.
func (c *Condition) ReturnTypes() []*celgo.Type { return []*celgo.Type{celgo.BoolType} }

// Compiler makes evaluators of expressions; both of upstream's are one.
type Compiler interface {
	CompileCondition(expressions []cel.ExpressionAccessor, declared cel.OptionalVariableDeclarations,
		env environment.Type) cel.ConditionEvaluator
}

// Conditions are compiled matchConditions. It is upstream's matchconditions.Matcher.
type Conditions struct {
	evaluator cel.ConditionEvaluator
	ignore    bool
	metrics   *Metrics
	name      string // of the webhook or the policy
	kind      string // webhook or policy
	step      string // admit or validate
}

// NewConditions compiles conditions; nil where there are none.
func NewConditions(compiler Compiler, conditions []admissionregistrationv1.MatchCondition, params bool,
	failure *admissionregistrationv1.FailurePolicyType, m *Metrics, name, kind, step string,
) *Conditions {
	if len(conditions) == 0 {
		return nil
	}
	list := make([]cel.ExpressionAccessor, len(conditions))
	for i := range conditions {
		c := Condition(conditions[i])
		list[i] = &c
	}
	return &Conditions{
		evaluator: compiler.CompileCondition(list, cel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true},
			environment.StoredExpressions),
		ignore:  failure != nil && *failure == admissionregistrationv1.Ignore,
		metrics: m, name: name, kind: kind, step: step,
	}
}

// Match implements matchconditions.Matcher: a condition that is false exempts the
// request; without one, those that fail do as the failure policy says.
func (c *Conditions) Match(ctx context.Context, a *upstream.VersionedAttributes, params runtime.Object,
	authz authorizer.UnconditionalAuthorizer,
) matchconditions.MatchResult {
	began := time.Now()
	operation := string(a.GetOperation())
	defer func() {
		c.metrics.seconds.WithLabelValues(c.name, c.kind, c.step, operation).Observe(time.Since(began).Seconds())
	}()
	request := cel.CreateAdmissionRequest(a.Attributes, metav1.GroupVersionResource(a.GetResource()), metav1.GroupVersionKind(a.VersionedKind))
	results, _, err := c.evaluator.ForInput(ctx, a, request, cel.OptionalVariableBindings{VersionedParams: params, Authorizer: authz}, nil,
		celconfig.RuntimeCELCostBudgetMatchConditions)
	if err != nil {
		return c.failed(err)
	}
	var errs []error
	for _, r := range results {
		if r.Error != nil {
			errs = append(errs, r.Error)
			c.metrics.errors.WithLabelValues(c.name, c.kind, c.step, operation).Inc()
		}
		if r.EvalResult == celtypes.False {
			named, _ := r.ExpressionAccessor.(cel.NamedExpressionAccessor)
			out := matchconditions.MatchResult{}
			if named != nil {
				out.FailedConditionName = named.GetName()
			}
			c.metrics.exclusions.WithLabelValues(c.name, c.kind, c.step, operation).Inc()
			return out
		}
	}
	if len(errs) > 0 {
		return c.failed(utilerrors.NewAggregate(errs))
	}
	return matchconditions.MatchResult{Matches: true}
}

func (c *Conditions) failed(err error) matchconditions.MatchResult {
	if c.ignore {
		return matchconditions.MatchResult{}
	}
	return matchconditions.MatchResult{Error: err}
}

// Metrics of match conditions, by upstream's names.
type Metrics struct {
	errors, exclusions *prometheus.CounterVec
	seconds            *prometheus.HistogramVec
}

// NewMetrics makes metrics that nobody gathers yet.
func NewMetrics() *Metrics {
	by := []string{"name", "kind", "type", "operation"}
	return &Metrics{
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_admission_match_condition_evaluation_errors_total",
			Help: "Match conditions that could not be evaluated, by webhook or policy.",
		}, by),
		exclusions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_admission_match_condition_exclusions_total",
			Help: "Requests that a match condition exempted, by webhook or policy.",
		}, by),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_admission_match_condition_evaluation_seconds",
			Help:    "Time that match conditions took, by webhook or policy.",
			Buckets: []float64{0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25},
		}, by),
	}
}

// Collectors to be registered.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.errors, m.exclusions, m.seconds}
}
