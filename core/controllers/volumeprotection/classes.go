// SPDX-License-Identifier: Apache-2.0

package volumeprotection

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/wasmplane/wasmplane/core/controllers"
)

const classFinalizer = "kubernetes.io/vac-protection"

// Classes protects VolumeAttributesClasses: one stays as long as a claim or a
// volume has its attributes, or is to get them.
type Classes struct {
	client  kubernetes.Interface
	classes storagelisters.VolumeAttributesClassLister
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	loop    *controllers.Loop[string]
}

// NewClasses makes the controller of VolumeAttributesClasses.
func NewClasses(env controllers.Env, workers int) (*Classes, error) {
	classes := env.Informers.Storage().V1().VolumeAttributesClasses()
	claims, volumes := env.Informers.Core().V1().PersistentVolumeClaims(), env.Informers.Core().V1().PersistentVolumes()
	c := &Classes{client: env.Client, classes: classes.Lister(), claims: claims.Lister(), volumes: volumes.Lister()}
	c.loop = controllers.NewLoop(env, "volumeattributesclass-protection-controller", workers, c.reconcile)
	c.loop.Watch(classes.Informer(), controllers.EachObject(func(o metav1.Object) { c.loop.Add(o.GetName()) }))
	// Whatever no longer names a class was perhaps the last that did.
	c.loop.Watch(claims.Informer(), controllers.Changes(func(old, _ metav1.Object) {
		if claim, ok := old.(*corev1.PersistentVolumeClaim); ok && claim != nil {
			c.addAll(classesOfClaim(claim))
		}
	}))
	c.loop.Watch(volumes.Informer(), controllers.Changes(func(old, _ metav1.Object) {
		if volume, ok := old.(*corev1.PersistentVolume); ok && volume != nil {
			c.addAll(names(volume.Spec.VolumeAttributesClassName))
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Classes) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Classes) addAll(classes []string) {
	for _, name := range classes {
		c.loop.Add(name)
	}
}

func names(list ...*string) []string {
	var out []string
	for _, n := range list {
		if n != nil && *n != "" {
			out = append(out, *n)
		}
	}
	return out
}

// classesOfClaim are the classes that a claim has, wants, or is on its way to.
func classesOfClaim(claim *corev1.PersistentVolumeClaim) []string {
	all := names(claim.Spec.VolumeAttributesClassName, claim.Status.CurrentVolumeAttributesClassName)
	if m := claim.Status.ModifyVolumeStatus; m != nil && m.TargetVolumeAttributesClassName != "" {
		all = append(all, m.TargetVolumeAttributesClassName)
	}
	return all
}

func (c *Classes) reconcile(ctx context.Context, name string) error {
	class, err := c.classes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return controllers.Guard(ctx, controllers.Protection[*storagev1.VolumeAttributesClass]{
		Kind: "VolumeAttributesClass", Finalizer: classFinalizer, Update: c.client.StorageV1().VolumeAttributesClasses().Update,
		Used: func(ctx context.Context) (bool, error) { return c.used(ctx, name) },
	}, class)
}

// used asks the caches first, and the server before a class is let go.
func (c *Classes) used(ctx context.Context, name string) (bool, error) {
	claims, err := c.claims.List(labels.Everything())
	if err != nil {
		return false, err
	}
	for _, claim := range claims {
		if slices.Contains(classesOfClaim(claim), name) {
			return true, nil
		}
	}
	volumes, err := c.volumes.List(labels.Everything())
	if err != nil {
		return false, err
	}
	for _, volume := range volumes {
		if slices.Contains(names(volume.Spec.VolumeAttributesClassName), name) {
			return true, nil
		}
	}
	live, err := c.client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("looking for claims of volume attributes class %s: %w", name, err)
	}
	for i := range live.Items {
		if slices.Contains(classesOfClaim(&live.Items[i]), name) {
			return true, nil
		}
	}
	return false, nil
}
