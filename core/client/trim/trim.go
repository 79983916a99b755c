// SPDX-License-Identifier: Apache-2.0

// Package trim makes the objects that an informer keeps small. What it takes out is
// gone for every reader of that informer, so a trim is made for one set of readers and
// says what they read; whoever shows or writes an object reads it from the API.
package trim

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Server is the transform of the API server's own informers. It changes nothing that the pod shares with
// others (see client.New), but for the fields of the pod itself. It takes out of pods
// what the server never reads in them: the node authorizer, NodeRestriction, PodSecurity
// and the check of bound tokens read metadata, claims, what a pod refers to, what
// bears on its security, and the annotations of Kubernetes. The rest is most of a
// pod, which the watch cache holds already.
func Server(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	pod.ManagedFields, pod.GenerateName = nil, ""
	pod.Annotations = trimAnnotations(pod.Annotations)
	trimSpec(&pod.Spec)
	pod.Status = corev1.PodStatus{
		Phase:                       pod.Status.Phase,
		ResourceClaimStatuses:       pod.Status.ResourceClaimStatuses,
		ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus,
	}
	return pod, nil
}

// trimAnnotations is those of Kubernetes.
func trimAnnotations(all map[string]string) map[string]string {
	var kept map[string]string
	for key, value := range all {
		if domain, _, _ := strings.Cut(key, "/"); !strings.HasSuffix(domain, "kubernetes.io") || key == corev1.LastAppliedConfigAnnotation {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[key] = value
	}
	return kept
}

// trimSpec takes out where and how a pod runs.
func trimSpec(s *corev1.PodSpec) {
	s.InitContainers, s.Containers = trimContainers(s.InitContainers), trimContainers(s.Containers)
	s.EphemeralContainers = slices.Clone(s.EphemeralContainers)
	for i := range s.EphemeralContainers {
		c := corev1.Container(s.EphemeralContainers[i].EphemeralContainerCommon)
		trimContainer(&c)
		s.EphemeralContainers[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon(c)
	}
	s.Tolerations, s.Affinity, s.NodeSelector, s.TopologySpreadConstraints = nil, nil, nil, nil
	s.SchedulerName, s.SchedulingGates, s.ReadinessGates = "", nil, nil
	s.PriorityClassName, s.Priority, s.PreemptionPolicy, s.Overhead = "", nil, nil, nil
	s.DNSPolicy, s.DNSConfig, s.HostAliases, s.Hostname, s.Subdomain = "", nil, nil, "", ""
	s.RestartPolicy, s.TerminationGracePeriodSeconds, s.EnableServiceLinks = "", nil, nil
	s.DeprecatedServiceAccount = "" // the other one says the same
}

func trimContainers(containers []corev1.Container) []corev1.Container {
	containers = slices.Clone(containers)
	for i := range containers {
		trimContainer(&containers[i])
	}
	return containers
}

// trimContainer takes out what a container runs and has. Its claims are among
// those of its pod.
func trimContainer(c *corev1.Container) {
	c.Image, c.ImagePullPolicy, c.Command, c.Args, c.WorkingDir = "", "", nil, nil, ""
	c.Resources, c.ResizePolicy, c.VolumeMounts, c.VolumeDevices = corev1.ResourceRequirements{}, nil, nil, nil
	c.TerminationMessagePath, c.TerminationMessagePolicy = "", ""
	c.Env = only(c.Env, func(e corev1.EnvVar) bool {
		return e.ValueFrom != nil && (e.ValueFrom.SecretKeyRef != nil || e.ValueFrom.ConfigMapKeyRef != nil)
	})
	c.Ports = only(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 })
	c.LivenessProbe, c.ReadinessProbe, c.StartupProbe = trimProbe(c.LivenessProbe), trimProbe(c.ReadinessProbe), trimProbe(c.StartupProbe)
}

// trimProbe lets go of a probe that asks nobody but its own pod.
func trimProbe(p *corev1.Probe) *corev1.Probe {
	if p == nil || (p.HTTPGet == nil || p.HTTPGet.Host == "") && (p.TCPSocket == nil || p.TCPSocket.Host == "") {
		return nil
	}
	return p
}

// only is a list of those that are kept, and has no room for the others.
func only[T any](list []T, keep func(T) bool) []T {
	var kept []T
	for _, one := range list {
		if keep(one) {
			kept = append(kept, one)
		}
	}
	return slices.Clip(kept)
}
