// SPDX-License-Identifier: Apache-2.0

// Package volumebinding brings claims and volumes together: a claim gets the volume
// that was made or meant for it or the smallest that fits, a class's provisioner is
// asked for one where there is none, and volumes whose claims are gone are released.
// Volumes of classes that wait for their first consumer are chosen by the scheduler.
//
// planClaim and planVolume decide; they are functions of what there is. Binding
// writes the volume first and the claim last, so that a volume that names a claim is
// found again after a crash in between.
package volumebinding

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/volume"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/defaultclass"
	"github.com/wasmplane/wasmplane/core/run"
)

// Names of indexes.
const (
	byClass  = "wasmplane/class"  // volumes, and claims that have no volume
	byVolume = "wasmplane/volume" // claims by the volume that they name
	byRef    = "wasmplane/ref"    // volumes by the claim that they name
)

// Binder binds PersistentVolumeClaims and PersistentVolumes.
type Binder struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	cached   cached
	claims   *controllers.Loop[controllers.Key]
	volumes  *controllers.Loop[string]
	written  *controllers.Written
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Binder, error) {
	core := env.Informers.Core().V1()
	claims, volumes, pods := core.PersistentVolumeClaims(), core.PersistentVolumes(), core.Pods().Informer()
	classes := env.Informers.Storage().V1().StorageClasses()
	if err := controllers.IndexByClaim(pods); err != nil {
		return nil, fmt.Errorf("persistentvolume-binder: %w", err)
	}
	if err := errors.Join(
		controllers.AddIndex(claims.Informer(), byClass, claimsByClass), controllers.AddIndex(claims.Informer(), byVolume, claimsByVolume),
		controllers.AddIndex(volumes.Informer(), byClass, volumesByClass), controllers.AddIndex(volumes.Informer(), byRef, volumesByRef),
	); err != nil {
		return nil, fmt.Errorf("persistentvolume-binder: %w", err)
	}
	b := &Binder{
		client: env.Client, recorder: env.Recorder("persistentvolume-controller"), written: controllers.NewWritten(),
		cached: cached{
			claimLister: claims.Lister(), volumeLister: volumes.Lister(), classLister: classes.Lister(),
			claimIndex: claims.Informer().GetIndexer(), volumeIndex: volumes.Informer().GetIndexer(), podIndex: pods.GetIndexer(),
		},
	}
	b.claims = controllers.NewLoop(env, "persistentvolume-binder", workers, b.syncClaim)
	b.volumes = controllers.NewLoop(env, "persistentvolume-phases", workers, b.syncVolume)
	b.claims.Watch(claims.Informer(), b.each(func(o metav1.Object) {
		b.claims.Add(cache.MetaObjectToName(o))
		b.addVolumes(cache.MetaObjectToName(o))
	}))
	b.claims.Watch(classes.Informer(), controllers.EachObject(func(o metav1.Object) {
		b.addClaims(byClass, o.GetName())
		b.addClaims(byClass, "") // it is perhaps the default now
	}))
	b.claims.Watch(volumes.Informer(), controllers.EachObject(func(o metav1.Object) {
		if pv, ok := o.(*corev1.PersistentVolume); ok {
			b.addClaimsOf(pv)
		}
	}))
	b.claims.Needs(pods)
	b.volumes.Watch(volumes.Informer(), b.each(func(o metav1.Object) { b.volumes.Add(o.GetName()) }))
	b.volumes.Needs(claims.Informer(), classes.Informer(), pods)
	return b, nil
}

// each calls f with what changed; of what is gone, it forgets what was written.
func (b *Binder) each(f func(metav1.Object)) cache.ResourceEventHandler {
	return controllers.Changes(func(old, current metav1.Object) {
		if current == nil {
			b.written.Forget(old.GetUID())
			current = old
		}
		f(current)
	})
}

// Run works until ctx ends.
func (b *Binder) Run(ctx context.Context) error {
	return run.Together(ctx, b.claims.Run, b.volumes.Run)
}

func claimsByClass(obj any) ([]string, error) {
	c, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok || c.Spec.VolumeName != "" {
		return nil, nil
	}
	return []string{volume.GetPersistentVolumeClaimClass(c)}, nil
}

func claimsByVolume(obj any) ([]string, error) {
	c, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok || c.Spec.VolumeName == "" {
		return nil, nil
	}
	return []string{c.Spec.VolumeName}, nil
}

func volumesByClass(obj any) ([]string, error) {
	pv, ok := obj.(*corev1.PersistentVolume)
	if !ok {
		return nil, nil
	}
	return []string{volume.GetPersistentVolumeClass(pv)}, nil
}

func volumesByRef(obj any) ([]string, error) {
	pv, ok := obj.(*corev1.PersistentVolume)
	if !ok || pv.Spec.ClaimRef == nil {
		return nil, nil
	}
	return []string{refKey(pv.Spec.ClaimRef).String()}, nil
}

func refKey(ref *corev1.ObjectReference) controllers.Key {
	return controllers.Key{Namespace: ref.Namespace, Name: ref.Name}
}

// addClaims queues the claims below a value of an index.
func (b *Binder) addClaims(name, value string) {
	keys, _ := b.cached.claimIndex.IndexKeys(name, value) // fails only without the index
	for _, k := range keys {
		if key, err := cache.ParseObjectName(k); err == nil {
			b.claims.Add(key)
		}
	}
}

// addClaimsOf queues the claims that a change of a volume may concern.
func (b *Binder) addClaimsOf(pv *corev1.PersistentVolume) {
	b.addClaims(byVolume, pv.Name)
	if pv.Spec.ClaimRef != nil {
		b.claims.Add(refKey(pv.Spec.ClaimRef))
		return
	}
	b.addClaims(byClass, volume.GetPersistentVolumeClass(pv))
}

// addVolumes queues the volumes that name a claim.
func (b *Binder) addVolumes(claim controllers.Key) {
	names, _ := b.cached.volumeIndex.IndexKeys(byRef, claim.String())
	for _, name := range names {
		b.volumes.Add(name)
	}
}

// cached is a view of the informers' caches.
type cached struct {
	claimLister             corelisters.PersistentVolumeClaimLister
	volumeLister            corelisters.PersistentVolumeLister
	classLister             storagelisters.StorageClassLister
	claimIndex, volumeIndex cache.Indexer
	podIndex                cache.Indexer
}

// orNil answers nil for what is not there.
func orNil[T any](o *T, err error) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return o, err
}

func (v cached) volume(name string) (*corev1.PersistentVolume, error) {
	return orNil(v.volumeLister.Get(name))
}

func (v cached) volumes(class string) ([]*corev1.PersistentVolume, error) {
	return controllers.Indexed[*corev1.PersistentVolume](v.volumeIndex, byClass, class)
}

func (v cached) meant(c *corev1.PersistentVolumeClaim) ([]*corev1.PersistentVolume, error) {
	return controllers.Indexed[*corev1.PersistentVolume](v.volumeIndex, byRef, controllers.Key{Namespace: c.Namespace, Name: c.Name}.String())
}

func (v cached) claim(namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return orNil(v.claimLister.PersistentVolumeClaims(namespace).Get(name))
}

func (v cached) class(name string) (*storagev1.StorageClass, error) {
	if name == "" {
		return nil, nil
	}
	return orNil(v.classLister.Get(name))
}

func (v cached) defaultClass() (*storagev1.StorageClass, error) {
	all, err := v.classLister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	return defaultclass.Storage(all), nil
}

func (v cached) waiting(c *corev1.PersistentVolumeClaim) ([]string, error) {
	pods, err := controllers.PodsWithClaim(v.podIndex, cache.MetaObjectToName(c))
	var names []string
	for _, p := range pods {
		if p.Spec.NodeName == "" {
			names = append(names, p.Name)
		}
	}
	return names, err
}
