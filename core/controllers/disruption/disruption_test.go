// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func replica(i int, ready bool) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	name := fmt.Sprint("web-", i)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default", UID: types.UID(name), Labels: map[string]string{"app": "web"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: ptr.To(true)}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}},
	}
}

func budget(least, most string) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", Generation: 1},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}
	if least != "" {
		b.Spec.MinAvailable = ptr.To(intstr.Parse(least))
	}
	if most != "" {
		b.Spec.MaxUnavailable = ptr.To(intstr.Parse(most))
	}
	return b
}

func set() *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "rs"},
		Spec:       appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](4)},
	}
}

func start(t *testing.T, objects ...runtime.Object) *controllertest.Cluster {
	t.Helper()
	c := controllertest.New(objects...)
	ctl, err := New(c.Env(t), 1, dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()))
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	return c
}

// Four replicas are wanted, three are ready.
func TestAllowed(t *testing.T) {
	for name, tc := range map[string]struct {
		min, max string
		allowed  int32
		desired  int32
	}{
		"two must be":              {min: "2", allowed: 1, desired: 2},
		"half must be":             {min: "50%", allowed: 1, desired: 2},
		"none may be missing":      {max: "0", allowed: 0, desired: 4},
		"one may, and one is":      {max: "1", allowed: 0, desired: 3},
		"half may be missing":      {max: "50%", allowed: 1, desired: 2},
		"more than there are":      {min: "9", allowed: 0, desired: 9},
		"all may be missing":       {max: "100%", allowed: 3, desired: 0},
		"a third, rounded up":      {max: "30%", allowed: 1, desired: 2},
		"three quarters must be":   {min: "75%", allowed: 0, desired: 3},
		"a fraction, rounded up":   {min: "51%", allowed: 0, desired: 3},
		"zero must be, so all may": {min: "0", allowed: 3, desired: 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, budget(tc.min, tc.max), set(), replica(0, true), replica(1, true), replica(2, true), replica(3, false))
			controllertest.Eventually(t, func() error {
				b, err := c.Client.PolicyV1().PodDisruptionBudgets("default").Get(t.Context(), "web", metav1.GetOptions{})
				if err != nil {
					return err
				}
				if s := b.Status; s.ObservedGeneration != 1 || s.DisruptionsAllowed != tc.allowed || s.DesiredHealthy != tc.desired ||
					s.CurrentHealthy != 3 {
					return fmt.Errorf("%+v", s)
				}
				return nil
			})
		})
	}
}

// An eviction that was granted counts until its pod is seen to go, and is forgiven
// when it never does. A pod that was marked for nothing loses the mark.
func TestTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget("2", "")
		b.Status.DisruptedPods = map[string]metav1.Time{"web-0": metav1.Now(), "long-gone": metav1.Now()}
		marked := replica(1, true)
		marked.Status.Conditions = append(marked.Status.Conditions,
			corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
		c := start(t, b, set(), replica(0, true), marked, replica(2, true))
		look := func(wantAllowed int32, wantPending int) {
			t.Helper()
			synctest.Wait()
			got, err := c.Client.PolicyV1().PodDisruptionBudgets("default").Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got.Status.DisruptionsAllowed != wantAllowed || len(got.Status.DisruptedPods) != wantPending {
				t.Errorf("%+v", got.Status)
			}
		}
		time.Sleep(time.Second)
		look(0, 1)
		time.Sleep(3 * time.Minute)
		look(1, 0)
		pod, err := c.Client.CoreV1().Pods("default").Get(t.Context(), "web-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, cond := range pod.Status.Conditions {
			if cond.Type == corev1.DisruptionTarget && cond.Status != corev1.ConditionFalse {
				t.Error("the mark is still there")
			}
		}
	})
}
