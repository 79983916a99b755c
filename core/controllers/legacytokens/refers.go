// SPDX-License-Identifier: Apache-2.0

package legacytokens

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// refers says that a pod names a Secret of its namespace.
func refers(p *corev1.Pod, secret string) bool {
	is := func(name string) bool { return name == secret }
	local := func(r *corev1.LocalObjectReference) bool { return r != nil && is(r.Name) }
	env := func(from []corev1.EnvFromSource, vars []corev1.EnvVar) bool {
		return slices.ContainsFunc(from, func(f corev1.EnvFromSource) bool { return f.SecretRef != nil && is(f.SecretRef.Name) }) ||
			slices.ContainsFunc(vars, func(v corev1.EnvVar) bool {
				return v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil && is(v.ValueFrom.SecretKeyRef.Name)
			})
	}
	container := func(c corev1.Container) bool { return env(c.EnvFrom, c.Env) }
	return slices.ContainsFunc(p.Spec.ImagePullSecrets, func(r corev1.LocalObjectReference) bool { return is(r.Name) }) ||
		slices.ContainsFunc(p.Spec.InitContainers, container) || slices.ContainsFunc(p.Spec.Containers, container) ||
		slices.ContainsFunc(p.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return env(c.EnvFrom, c.Env) }) ||
		slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return volume(v.VolumeSource, is, local) })
}

func volume(v corev1.VolumeSource, is func(string) bool, local func(*corev1.LocalObjectReference) bool) bool {
	switch {
	case v.Secret != nil:
		return is(v.Secret.SecretName)
	case v.Projected != nil:
		return slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.Secret != nil && is(s.Secret.Name) })
	case v.CSI != nil:
		return local(v.CSI.NodePublishSecretRef)
	case v.FlexVolume != nil:
		return local(v.FlexVolume.SecretRef)
	case v.AzureFile != nil:
		return is(v.AzureFile.SecretName)
	case v.CephFS != nil:
		return local(v.CephFS.SecretRef)
	case v.Cinder != nil:
		return local(v.Cinder.SecretRef)
	case v.RBD != nil:
		return local(v.RBD.SecretRef)
	case v.ISCSI != nil:
		return local(v.ISCSI.SecretRef)
	case v.ScaleIO != nil:
		return local(v.ScaleIO.SecretRef)
	case v.StorageOS != nil:
		return local(v.StorageOS.SecretRef)
	default:
		return false
	}
}
