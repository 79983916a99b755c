// SPDX-License-Identifier: Apache-2.0

package action

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestABudgetSaysWhyItRefuses(t *testing.T) {
	full := map[string]metav1.Time{}
	for i := range maxDisrupted + 1 {
		full[strings.Repeat("p", i)] = metav1.Now()
	}
	for name, c := range map[string]struct {
		budget policyv1.PodDisruptionBudget
		refuse func(error) bool // nil = allowed
		cause  string
	}{
		"allows one":            {policyv1.PodDisruptionBudget{Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1}}, nil, ""},
		"not seen yet":          {policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Status: policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1}}, apierrors.IsTooManyRequests, "still being processed"},
		"less than nothing":     {policyv1.PodDisruptionBudget{Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: -1}}, apierrors.IsForbidden, "negative"},
		"too many not seen":     {policyv1.PodDisruptionBudget{Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1, DisruptedPods: full}}, apierrors.IsForbidden, "too many pending"},
		"needs all that it has": {policyv1.PodDisruptionBudget{Status: policyv1.PodDisruptionBudgetStatus{CurrentHealthy: 2, DesiredHealthy: 2}}, apierrors.IsTooManyRequests, "needs 2 healthy pods and has 2"},
	} {
		err := mayDisrupt(&c.budget)
		switch {
		case c.refuse == nil && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.refuse != nil && !c.refuse(err):
			t.Errorf("%s: %v", name, err)
		case c.refuse != nil:
			status := err.(apierrors.APIStatus).Status()
			if causes := status.Details.Causes; len(causes) != 1 || causes[0].Type != policyv1.DisruptionBudgetCause ||
				!strings.Contains(causes[0].Message, c.cause) {
				t.Errorf("%s: causes %+v, want one with %q", name, causes, c.cause)
			}
		}
	}
}

func TestDryRunsOfAnEvictionHaveToAgree(t *testing.T) {
	all := []string{metav1.DryRunAll}
	inBody := &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{DryRun: all}}
	for name, c := range map[string]struct {
		eviction *policyv1.Eviction
		inQuery  []string
		want     []string
	}{
		"neither":  {&policyv1.Eviction{}, nil, nil},
		"query":    {&policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{}}, all, all},
		"no body":  {&policyv1.Eviction{}, all, all},
		"both":     {inBody, all, all},
		"the body": {inBody, nil, all},
	} {
		o, err := evictionOptions(c.eviction, c.inQuery)
		if err != nil || !cmp.Equal(o.DryRun, c.want) {
			t.Errorf("%s: %v, %v", name, o, err)
		}
	}
	if _, err := evictionOptions(&policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{DryRun: []string{"Some"}}},
		all); !apierrors.IsBadRequest(err) {
		t.Errorf("two that differ: %v", err)
	}
}

func TestABindingIsWrittenIntoThePod(t *testing.T) {
	now := metav1.NewTime(time.Unix(1700000000, 0))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{"keep": "1", "pod.beta.kubernetes.io/init-containers": "x"}},
		Status: corev1.PodStatus{
			NominatedNodeName: "other",
			Conditions:        []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, ObservedGeneration: 3}},
		},
	}
	bound := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{
		Labels:      map[string]string{"zone": "a"},
		Annotations: map[string]string{"why": "x"},
	}, Target: corev1.ObjectReference{Name: "n1"}}
	if err := assign(pod, bound, now); err != nil {
		t.Fatal(err)
	}
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{"keep": "1", "why": "x"}},
		Spec:       corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
			LastTransitionTime: now, ObservedGeneration: 3,
		}}},
	}
	if diff := cmp.Diff(want, pod); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, pod := range map[string]*corev1.Pod{
		"is being deleted":               {ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}},
		"already assigned":               pod,
		"has non-empty .spec.scheduling": {Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "g"}}}},
	} {
		if err := assign(pod, bound, now); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
