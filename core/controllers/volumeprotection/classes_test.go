// SPDX-License-Identifier: Apache-2.0

package volumeprotection

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

// A class that is deleted stays until the last claim and volume have left it.
func TestClasses(t *testing.T) {
	deleted := metav1.Now()
	class := func(name string) *storagev1.VolumeAttributesClass {
		return &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{
			Name: name, DeletionTimestamp: &deleted,
			Finalizers: []string{classFinalizer, "other/one"},
		}}
	}
	name := func(s string) *string { return &s }
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "default"}}
	claim.Status.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: "on-its-way"}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "v"},
		Spec:       corev1.PersistentVolumeSpec{VolumeAttributesClassName: name("of-a-volume")},
	}
	fresh := class("fresh")
	fresh.DeletionTimestamp, fresh.Finalizers = nil, nil
	c := controllertest.New(class("free"), class("on-its-way"), class("of-a-volume"), fresh, claim, volume)
	ctl, err := NewClasses(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	has := func(name string, want bool) func() error {
		return func() error {
			got, err := c.Client.StorageV1().VolumeAttributesClasses().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if slices.Contains(got.Finalizers, classFinalizer) != want {
				return fmt.Errorf("%s: finalizers %v", name, got.Finalizers)
			}
			return nil
		}
	}
	controllertest.Eventually(t, has("free", false))
	controllertest.Eventually(t, has("fresh", true))
	for _, used := range []string{"on-its-way", "of-a-volume"} {
		if err := has(used, true)(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Client.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, has("on-its-way", false))
	if err := c.Client.CoreV1().PersistentVolumes().Delete(t.Context(), "v", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, has("of-a-volume", false))
}
