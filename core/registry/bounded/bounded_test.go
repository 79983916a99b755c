// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/operation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

// wrong finds n errors by hand, and twice as many declaratively.
type wrong struct {
	Strategy
	n int
}

func (w wrong) errors(n int) (out field.ErrorList) {
	for i := range n {
		out = append(out, field.Invalid(field.NewPath("a").Index(i), "x", "is wrong"))
	}
	return out
}

func (w wrong) Validate(context.Context, runtime.Object) field.ErrorList { return w.errors(w.n) }

func (w wrong) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return w.errors(w.n)
}

type declaring struct{ wrong }

func (d declaring) ValidateDeclaratively(
	_ context.Context, _, _ runtime.Object, errs field.ErrorList, _ operation.Type, _ rest.DeclarativeValidationConfig,
) field.ErrorList {
	return append(errs, d.errors(d.n)...)
}

func (declaring) DeclarativeValidationConfig(context.Context, runtime.Object, runtime.Object) rest.DeclarativeValidationConfig {
	return rest.DeclarativeValidationConfig{NormalizationRules: []field.NormalizationRule{{Replacement: "x"}}}
}

// Ten thousand errors took a dozen seconds to be made one text.
func TestOfManyErrorsTheFirstAreTold(t *testing.T) {
	for n, want := range map[int]int{0: 0, 1: 1, MaxErrors: MaxErrors, MaxErrors + 1: MaxErrors + 1, 30 * MaxErrors: MaxErrors + 1} {
		for what, errs := range map[string]field.ErrorList{
			"create": of(wrong{n: n}).Validate(t.Context(), nil), "update": of(wrong{n: n}).ValidateUpdate(t.Context(), nil, nil),
		} {
			if len(errs) != want {
				t.Errorf("%s: of %d errors %d are told", what, n, len(errs))
			}
		}
	}
	last := of(wrong{n: 30 * MaxErrors}).Validate(t.Context(), nil)[MaxErrors].Error()
	if last != "a[999]: Forbidden: and 29000 more errors" {
		t.Errorf("the last says %q", last)
	}
	if _, ok := of(wrong{}).(rest.DeclarativeValidationStrategy); ok {
		t.Error("a strategy validates declaratively that did not")
	}
	d, ok := of(declaring{wrong{n: 2 * MaxErrors}}).(rest.DeclarativeValidationStrategy)
	if !ok {
		t.Fatal("a strategy no longer validates declaratively")
	}
	if rules := d.DeclarativeValidationConfig(t.Context(), nil, nil).NormalizationRules; len(rules) != 1 {
		t.Errorf("the configuration has %d rules", len(rules))
	}
	errs := d.ValidateDeclaratively(t.Context(), nil, nil, nil, operation.Create, rest.DeclarativeValidationConfig{})
	if len(errs) != MaxErrors+1 || !strings.HasSuffix(errs[MaxErrors].Error(), "and 1000 more errors") {
		t.Errorf("%d errors, the last %v", len(errs), errs[len(errs)-1])
	}
	byHand := of(declaring{wrong{n: 2 * MaxErrors}})
	if errs = byHand.Validate(t.Context(), nil); len(errs) != MaxErrors {
		t.Errorf("%d errors by hand", len(errs))
	}
	d = byHand.(rest.DeclarativeValidationStrategy)
	errs = d.ValidateDeclaratively(t.Context(), nil, nil, errs, operation.Create, rest.DeclarativeValidationConfig{})
	if len(errs) != MaxErrors+1 || !strings.HasSuffix(errs[MaxErrors].Error(), "and 3000 more errors") {
		t.Errorf("both: %d errors, the last %v", len(errs), errs[len(errs)-1])
	}
}

// What is bounded is neither prepared nor validated.
func TestABoundIsAskedBefore(t *testing.T) {
	s := kinds{}
	refuse := func(_, old runtime.Object) field.ErrorList {
		return field.ErrorList{field.Forbidden(field.NewPath("spec"), fmt.Sprintf("too much, old %t", old != nil))}
	}
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	const why = `Pod "p" is invalid: spec: Forbidden: too much, old `
	if err := BeforeCreate(t.Context(), s, refuse, o); err == nil || err.Error() != why+"false" {
		t.Errorf("create: %v", err)
	}
	if err := BeforeUpdate(t.Context(), s, refuse, o, o); err == nil || err.Error() != why+"true" {
		t.Errorf("update: %v", err)
	}
}

// kinds is a strategy that can say what an object is, and no more.
type kinds struct{ Strategy }

func (kinds) ObjectKinds(runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	return []schema.GroupVersionKind{{Version: "v1", Kind: "Pod"}}, false, nil
}
