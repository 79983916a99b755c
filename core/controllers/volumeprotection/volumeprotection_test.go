// SPDX-License-Identifier: Apache-2.0

package volumeprotection

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

// A claim that is deleted stays as long as a pod on a node runs with it.
func TestClaims(t *testing.T) {
	deleted := metav1.Now()
	claim := func(name string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default",
			Finalizers: []string{claimFinalizer, "other"}, DeletionTimestamp: &deleted,
		}}
	}
	pod := func(name, node, claim string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{NodeName: node}}
		p.Spec.Volumes = []corev1.Volume{{
			Name:         "v",
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}},
		}}
		return p
	}
	fresh := claim("fresh")
	fresh.DeletionTimestamp, fresh.Finalizers = nil, nil
	c := controllertest.New(claim("used"), claim("waited-for"), claim("free"), fresh, pod("runs", "n", "used"), pod("waits", "", "waited-for"))
	ctl, err := NewClaims(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	has := func(name string, want bool) func() error {
		return func() error {
			got, err := c.Client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if slices.Contains(got.Finalizers, claimFinalizer) != want {
				return fmt.Errorf("%s: finalizers %v", name, got.Finalizers)
			}
			return nil
		}
	}
	controllertest.Eventually(t, has("free", false))
	controllertest.Eventually(t, has("waited-for", false))
	controllertest.Eventually(t, has("fresh", true))
	if err := has("used", true)(); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.CoreV1().Pods("default").Delete(t.Context(), "runs", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, has("used", false))
}

// TestUnusedClaims say so once they are bound, and since when, until a pod names them,
// and again when the last such pod has ended or gone.
func TestUnusedClaims(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{}
	claim.Name, claim.Namespace, claim.Finalizers = "c", "default", []string{claimFinalizer}
	claim.Status.Phase = corev1.ClaimBound
	pending := claim.DeepCopy()
	pending.Name, pending.Status.Phase = "pending", corev1.ClaimPending
	c := controllertest.New(claim, pending)
	ctl, err := NewClaims(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	condition := func(name string) *corev1.PersistentVolumeClaimCondition {
		got, err := c.Client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range got.Status.Conditions {
			if got.Status.Conditions[i].Type == corev1.PersistentVolumeClaimUnused {
				return &got.Status.Conditions[i]
			}
		}
		return nil
	}
	becomes := func(status corev1.ConditionStatus, reason string) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			if got := condition("c"); got == nil || got.Status != status || got.Reason != reason || got.LastTransitionTime.IsZero() {
				return fmt.Errorf("the condition is %v, want %s for %s", got, status, reason)
			}
			return nil
		})
	}
	becomes(corev1.ConditionTrue, "NoPodsUsingPVC")
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
	}}}
	pods := c.Client.CoreV1().Pods("default")
	if _, err := pods.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes(corev1.ConditionFalse, "PodUsingPVC") // though it has no node yet
	p.Status.Phase = corev1.PodSucceeded
	if _, err := pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes(corev1.ConditionTrue, "NoPodsUsingPVC")
	if got := condition("pending"); got != nil {
		t.Errorf("the claim that is not bound says %v", got)
	}
}
