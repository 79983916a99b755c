// SPDX-License-Identifier: Apache-2.0

package worlds

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Pods of statefulset-0 have volumes of a class that is bound at once, those of others of one
// that is bound when a pod is scheduled.
const (
	atOnce = "at-once"
	later  = "later"
	spare  = 5 // volumes of a class: as many as the pods that a StatefulSet may have, and one
)

func claimTemplate(set string) corev1.PersistentVolumeClaim {
	class := later
	if set == "statefulset-0" {
		class = atOnce
	}
	return corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

// volumes makes the storage classes, and some volumes of each.
func (a *asked) volumes() error {
	for class, mode := range map[string]storagev1.VolumeBindingMode{
		atOnce: storagev1.VolumeBindingImmediate,
		later:  storagev1.VolumeBindingWaitForFirstConsumer,
	} {
		sc := &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "kubernetes.io/no-provisioner",
			VolumeBindingMode: &mode,
		}
		if _, err := a.w.user.Kube.StorageV1().StorageClasses().Create(a.w.ctx, sc, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for _, class := range []string{atOnce, later} {
		for range spare {
			if err := a.volume(class); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *asked) volume(class string) error {
	a.made++
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("volume-%d", a.made)},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/volumes"}},
		},
	}
	_, err := a.w.user.Kube.CoreV1().PersistentVolumes().Create(a.w.ctx, v, metav1.CreateOptions{})
	return err
}

// recycle deletes the claims of a StatefulSet that is gone with its pods, and puts new volumes in the
// place of those that were released.
func (a *asked) recycle() {
	core := a.w.user.Kube.CoreV1()
	for _, name := range []string{"statefulset-0", "statefulset-1"} {
		l := a.want["StatefulSet/"+name]
		if l == nil || !l.gone || len(a.pods(name)) > 0 || !apierrors.IsNotFound(a.exists(l)) {
			continue
		}
		claims, err := core.PersistentVolumeClaims(namespace).List(a.w.ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if !a.done(err, nil, "list the %d claims of %s, which is gone", len(claims.Items), name) {
			return
		}
		for _, c := range claims.Items {
			err := core.PersistentVolumeClaims(namespace).Delete(a.w.ctx, c.Name,
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.UID}})
			a.done(err, apierrors.IsNotFound, "delete claim %s", c.Name)
		}
	}
	volumes, err := core.PersistentVolumes().List(a.w.ctx, metav1.ListOptions{})
	if !a.done(err, nil, "list %d volumes", len(volumes.Items)) {
		return
	}
	for _, v := range volumes.Items {
		if v.Status.Phase != corev1.VolumeReleased {
			continue
		}
		if err := core.PersistentVolumes().Delete(a.w.ctx, v.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &v.UID}}); a.done(err, apierrors.IsNotFound, "delete volume %s", v.Name) {
			a.done(a.volume(v.Spec.StorageClassName), nil, "make another of class %s", v.Spec.StorageClassName)
		}
	}
}

// bound holds the claims of a StatefulSet's pods against the volumes.
func (a *asked) bound(l *workload, miss func(string, ...any)) {
	core := a.w.user.Kube.CoreV1()
	for i := range l.pods {
		name := fmt.Sprintf("data-%s-%d", l.name, i)
		c, err := core.PersistentVolumeClaims(namespace).Get(a.w.ctx, name, metav1.GetOptions{})
		if err != nil {
			miss("claim %s: %v", name, err)
			continue
		}
		v, err := core.PersistentVolumes().Get(a.w.ctx, c.Spec.VolumeName, metav1.GetOptions{})
		if c.Status.Phase != corev1.ClaimBound || err != nil || v.Status.Phase != corev1.VolumeBound || v.Spec.ClaimRef == nil ||
			v.Spec.ClaimRef.UID != c.UID {
			miss("claim %s is %s, with the volume %q, %v, %v", name, c.Status.Phase, c.Spec.VolumeName, v, err)
		}
	}
}

// giveUp removes the pods of a machine that is away by force, as an operator does who knows
// that it will not come back, and sometimes the node.
func (a *asked) giveUp() {
	i := slices.IndexFunc(a.w.parts, func(p *part) bool {
		return p.isNode && (p.life == nil || time.Now().Before(a.w.cutOff[p]) || time.Now().Before(a.w.mute[p]))
	})
	if i < 0 {
		return
	}
	node, core := a.w.machine(a.w.parts[i]).name, a.w.user.Kube.CoreV1()
	pods, err := core.Pods(namespace).List(a.w.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if !a.done(err, nil, "give up %s, with %d pods", node, len(pods.Items)) {
		return
	}
	for _, p := range pods.Items {
		err := core.Pods(namespace).Delete(a.w.ctx, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0),
			Preconditions:      &metav1.Preconditions{UID: &p.UID},
		})
		a.done(err, func(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }, "delete pod %s by force", p.Name)
	}
	if a.w.chance(3) {
		a.done(core.Nodes().Delete(a.w.ctx, node, metav1.DeleteOptions{}), apierrors.IsNotFound, "delete node %s", node)
	}
}

// failures is the backoffLimit of Jobs whose pods fail.
const failures = 2
