// SPDX-License-Identifier: Apache-2.0

package localprovision

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/defaultclass"
	"github.com/wasmplane/wasmplane/core/localvolume"
)

const (
	// ClassName of the class that comes with the first node that offers room.
	ClassName = "local"
	// MarkerName of the ConfigMap in kube-system by which it is remembered that the class
	// was made. Whoever deletes the class has it deleted for good; whoever deletes the
	// marker has the class made again.
	MarkerName = "local-volume-class"
)

// driver makes the CSIDriver, by which everybody knows that these volumes are not attached.
func (c *Controller) driver(ctx context.Context) error {
	drivers := c.client.StorageV1().CSIDrivers()
	_, err := drivers.Get(ctx, localvolume.Provisioner, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = drivers.Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: localvolume.Provisioner},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: ptr.To(false), PodInfoOnMount: ptr.To(false), FSGroupPolicy: ptr.To(storagev1.FileFSGroupPolicy),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make CSIDriver %s: %w", localvolume.Provisioner, err)
	}
	return nil
}

// offer makes the class, once in the life of a cluster.
func (c *Controller) offer(ctx context.Context) error {
	if err := c.driver(ctx); err != nil {
		return err
	}
	markers := c.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	_, err := markers.Get(ctx, MarkerName, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	classes, err := c.client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("look for a default storage class: %w", err)
	}
	made, err := c.client.StorageV1().StorageClasses().Create(ctx, class(classes.Items), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make storage class %s: %w", ClassName, err)
	}
	if err == nil {
		controllers.Did(ctx, "made the class of the nodes' own directories", aClass, made)
	}
	// Last: after a crash in between, the class is found and the marker made.
	_, err = markers.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: MarkerName},
		Data:       map[string]string{"made": ClassName},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("remember that storage class %s was made: %w", ClassName, err)
	}
	return nil
}

// class is the default, unless there is one.
func class(there []storagev1.StorageClass) *storagev1.StorageClass {
	taken := slices.ContainsFunc(there, func(s storagev1.StorageClass) bool { return s.Annotations[defaultclass.StorageAnnotation] == "true" })
	s := &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: ClassName, Annotations: map[string]string{defaultclass.StorageAnnotation: "true"}},
		Provisioner: localvolume.Provisioner, ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer), AllowVolumeExpansion: ptr.To(true),
		AllowedTopologies: []corev1.TopologySelectorTerm{{
			MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: localvolume.Offered, Values: []string{"true"}}},
		}},
	}
	if taken {
		s.Annotations[defaultclass.StorageAnnotation] = "false"
	}
	return s
}
