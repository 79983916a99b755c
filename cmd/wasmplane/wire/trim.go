package wire

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// trim takes out of the pods that the server's own informers keep what the
// server never reads in them: the node authorizer, NodeRestriction, PodSecurity
// and the check of bound tokens read metadata, specs, claims and the annotations
// of Kubernetes. The rest is most of a pod, which the watch cache holds already.
func trim(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	pod.ManagedFields = nil
	for key := range pod.Annotations {
		if domain, _, _ := strings.Cut(key, "/"); !strings.HasSuffix(domain, "kubernetes.io") || key == corev1.LastAppliedConfigAnnotation {
			delete(pod.Annotations, key)
		}
	}
	trimContainers(pod.Spec.InitContainers)
	trimContainers(pod.Spec.Containers)
	pod.Spec.Tolerations, pod.Spec.Affinity = nil, nil
	pod.Status = corev1.PodStatus{
		Phase:                       pod.Status.Phase,
		ResourceClaimStatuses:       pod.Status.ResourceClaimStatuses,
		ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus,
	}
	return pod, nil
}

// trimContainers: a container's claims are among those of its pod.
func trimContainers(containers []corev1.Container) {
	for i := range containers {
		containers[i].Resources, containers[i].VolumeMounts = corev1.ResourceRequirements{}, nil
	}
}
