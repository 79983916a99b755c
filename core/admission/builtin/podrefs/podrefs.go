// SPDX-License-Identifier: Apache-2.0

// Package podrefs finds which objects of the API a pod refers to, wherever in its spec.
package podrefs

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// environment visits the environment of every container, of all kinds.
func environment(p *corev1.Pod, visit func(env []corev1.EnvVar, from []corev1.EnvFromSource)) {
	for _, c := range p.Spec.InitContainers {
		visit(c.Env, c.EnvFrom)
	}
	for _, c := range p.Spec.Containers {
		visit(c.Env, c.EnvFrom)
	}
	for _, c := range p.Spec.EphemeralContainers {
		visit(c.Env, c.EnvFrom)
	}
}

// Secret says whether a pod refers to a Secret.
func Secret(p *corev1.Pod) bool {
	found := len(p.Spec.ImagePullSecrets) > 0
	environment(p, func(env []corev1.EnvVar, from []corev1.EnvFromSource) {
		for _, e := range env {
			found = found || e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil
		}
		for _, f := range from {
			found = found || f.SecretRef != nil
		}
	})
	for _, v := range p.Spec.Volumes {
		found = found || volumeSecret(v)
	}
	return found
}

// volumeSecret: several kinds of volumes name a secret.
func volumeSecret(v corev1.Volume) bool {
	s := v.VolumeSource
	switch {
	case s.Secret != nil, s.AzureFile != nil && s.AzureFile.SecretName != "":
		return true
	case s.CephFS != nil:
		return s.CephFS.SecretRef != nil
	case s.Cinder != nil:
		return s.Cinder.SecretRef != nil
	case s.FlexVolume != nil:
		return s.FlexVolume.SecretRef != nil
	case s.RBD != nil:
		return s.RBD.SecretRef != nil
	case s.ScaleIO != nil:
		return s.ScaleIO.SecretRef != nil
	case s.ISCSI != nil:
		return s.ISCSI.SecretRef != nil
	case s.StorageOS != nil:
		return s.StorageOS.SecretRef != nil
	case s.CSI != nil:
		return s.CSI.NodePublishSecretRef != nil
	case s.Projected != nil:
		for _, p := range s.Projected.Sources {
			if p.Secret != nil {
				return true
			}
		}
	}
	return false
}

// ConfigMap says whether a pod refers to a ConfigMap.
func ConfigMap(p *corev1.Pod) bool {
	found := false
	environment(p, func(env []corev1.EnvVar, from []corev1.EnvFromSource) {
		for _, e := range env {
			found = found || e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil
		}
		for _, f := range from {
			found = found || f.ConfigMapRef != nil
		}
	})
	for _, v := range p.Spec.Volumes {
		found = found || v.ConfigMap != nil
	}
	return found
}

// Any names the resource of an API object that the pod refers to; "" =
// none. What is not known counts as a reference.
func Any(p *corev1.Pod) (string, error) {
	switch {
	case p.Spec.ServiceAccountName != "":
		return "serviceaccounts", nil
	case Secret(p):
		return "secrets", nil
	case ConfigMap(p):
		return "configmaps", nil
	case len(p.Spec.ResourceClaims) > 0:
		return "resourceclaims", nil
	}
	for _, v := range p.Spec.Volumes {
		if resource, err := volumeReference(v); resource != "" || err != nil {
			return resource, err
		}
	}
	return "", nil
}

func volumeReference(v corev1.Volume) (string, error) {
	s := v.VolumeSource
	switch {
	case s.CSI != nil:
		return "csidrivers (via CSI volumes)", nil
	case s.Glusterfs != nil:
		return "endpoints (via glusterFS volumes)", nil
	case s.PersistentVolumeClaim != nil:
		return "persistentvolumeclaims", nil
	case s.Ephemeral != nil:
		return "persistentvolumeclaims (via ephemeral volumes)", nil
	case s.AzureFile != nil:
		return "secrets (via azureFile volumes)", nil
	case s.Projected != nil:
		for _, p := range s.Projected.Sources {
			if resource, err := projectedReference(v.Name, p); resource != "" || err != nil {
				return resource, err
			}
		}
		return "", nil
	case s.AWSElasticBlockStore != nil, s.AzureDisk != nil, s.CephFS != nil, s.Cinder != nil, s.DownwardAPI != nil,
		s.EmptyDir != nil, s.FC != nil, s.FlexVolume != nil, s.Flocker != nil, s.GCEPersistentDisk != nil, s.GitRepo != nil,
		s.HostPath != nil, s.Image != nil, s.ISCSI != nil, s.NFS != nil, s.PhotonPersistentDisk != nil, s.PortworxVolume != nil,
		s.Quobyte != nil, s.RBD != nil, s.ScaleIO != nil, s.StorageOS != nil, s.VsphereVolume != nil:
		return "", nil
	}
	return "", fmt.Errorf("unknown volume type for volume  %q", v.Name)
}

func projectedReference(volume string, p corev1.VolumeProjection) (string, error) {
	switch {
	case p.ConfigMap != nil:
		return "configmaps (via projected volumes)", nil
	case p.Secret != nil:
		return "secrets (via projected volumes)", nil
	case p.ServiceAccountToken != nil:
		return "serviceaccounts (via projected volumes)", nil
	case p.ClusterTrustBundle != nil:
		return "clustertrustbundles", nil
	case p.PodCertificate != nil:
		return "podcertificates", nil
	case p.DownwardAPI != nil:
		return "", nil
	}
	return "", fmt.Errorf("unknown source for projected volume %q", volume)
}

// IsMirror says whether a pod stands for a static one, of a file on its node.
func IsMirror(p *corev1.Pod) bool {
	_, ok := p.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}
