// SPDX-License-Identifier: Apache-2.0

package static

import corev1 "k8s.io/api/core/v1"

// refersTo is what of the API a pod refers to, in upstream's words; "" if nothing.
func refersTo(s *corev1.PodSpec) string {
	switch {
	case s.ServiceAccountName != "" || s.DeprecatedServiceAccount != "":
		return "serviceaccounts"
	case len(s.ImagePullSecrets) > 0:
		return "secrets"
	case len(s.ResourceClaims) > 0:
		return "resourceclaims"
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			if what := environment(&list[i]); what != "" {
				return what
			}
		}
	}
	for i := range s.Volumes {
		if what := volume(&s.Volumes[i].VolumeSource); what != "" {
			return what
		}
	}
	return ""
}

func environment(c *corev1.Container) string {
	for _, e := range c.EnvFrom {
		switch {
		case e.SecretRef != nil:
			return "secrets"
		case e.ConfigMapRef != nil:
			return "configmaps"
		}
	}
	for _, e := range c.Env {
		switch {
		case e.ValueFrom == nil:
		case e.ValueFrom.SecretKeyRef != nil:
			return "secrets"
		case e.ValueFrom.ConfigMapKeyRef != nil:
			return "configmaps"
		}
	}
	return ""
}

// volume allows what needs no API, and nothing else: kinds to come are refused.
func volume(v *corev1.VolumeSource) string {
	switch {
	case v.DownwardAPI != nil, v.EmptyDir != nil, v.HostPath != nil, v.Image != nil, v.ISCSI != nil && v.ISCSI.SecretRef == nil, v.NFS != nil:
		return ""
	case v.ConfigMap != nil:
		return "configmaps (via configmap volumes)"
	case v.Secret != nil:
		return "secrets (via secret volumes)"
	case v.CSI != nil:
		return "csidrivers (via CSI volumes)"
	case v.PersistentVolumeClaim != nil:
		return "persistentvolumeclaims"
	case v.Ephemeral != nil:
		return "persistentvolumeclaims (via ephemeral volumes)"
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if what := projected(&s); what != "" {
				return what
			}
		}
		return ""
	}
	return "volumes of this kind"
}

func projected(s *corev1.VolumeProjection) string {
	switch {
	case s.DownwardAPI != nil:
		return ""
	case s.ConfigMap != nil:
		return "configmaps (via projected volumes)"
	case s.Secret != nil:
		return "secrets (via projected volumes)"
	case s.ServiceAccountToken != nil:
		return "serviceaccounts (via projected volumes)"
	case s.ClusterTrustBundle != nil:
		return "clustertrustbundles"
	case s.PodCertificate != nil:
		return "podcertificates"
	}
	return "volumes of this kind (via projected volumes)"
}
