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
