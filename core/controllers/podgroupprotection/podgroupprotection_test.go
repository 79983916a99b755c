// SPDX-License-Identifier: Apache-2.0

package podgroupprotection

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

// A group that is deleted stays as long as one of its pods has not ended.
func TestAGroupStaysForItsPods(t *testing.T) {
	deleted := metav1.Now()
	group := func(name string) *schedulingv1beta1.PodGroup {
		return &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default", Finalizers: []string{finalizer, "other"}, DeletionTimestamp: &deleted,
		}}
	}
	pod := func(name, group string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
			Spec:       corev1.PodSpec{SchedulingGroup: &corev1.PodSchedulingGroup{PodGroupName: &group}},
			Status:     corev1.PodStatus{Phase: phase},
		}
	}
	c := controllertest.New(group("used"), group("free"), group("over"),
		pod("waits", "used", corev1.PodPending), pod("ended", "over", corev1.PodSucceeded))
	ctl, err := New(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	has := func(name string, want bool) func() error {
		return func() error {
			got, err := c.Client.SchedulingV1beta1().PodGroups("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if slices.Contains(got.Finalizers, finalizer) != want {
				return fmt.Errorf("%s: finalizers %v", name, got.Finalizers)
			}
			return nil
		}
	}
	controllertest.Eventually(t, has("free", false))
	controllertest.Eventually(t, has("over", false))
	if err := has("used", true)(); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.CoreV1().Pods("default").Delete(t.Context(), "waits", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, has("used", false))
}
