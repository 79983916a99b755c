// SPDX-License-Identifier: Apache-2.0

package arrivals

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Shorten is the transform of an informer: of a pod it keeps what a scheduler looks at, and when it ran.
func Shorten(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	short := &corev1.Pod{}
	short.Namespace, short.Name, short.UID, short.Labels = p.Namespace, p.Name, p.UID, p.Labels
	short.CreationTimestamp, short.ResourceVersion = p.CreationTimestamp, p.ResourceVersion
	if owner := metav1.GetControllerOf(p); owner != nil {
		short.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	s := &p.Spec
	short.Spec = corev1.PodSpec{
		NodeName: s.NodeName, NodeSelector: s.NodeSelector, Affinity: s.Affinity, Tolerations: s.Tolerations,
		TopologySpreadConstraints: s.TopologySpreadConstraints, Priority: s.Priority, PreemptionPolicy: s.PreemptionPolicy,
		SchedulerName: s.SchedulerName, Overhead: s.Overhead, RestartPolicy: s.RestartPolicy, Resources: s.Resources,
		TerminationGracePeriodSeconds: s.TerminationGracePeriodSeconds, HostNetwork: s.HostNetwork,
		Containers: shortened(s.Containers), InitContainers: shortened(s.InitContainers),
	}
	short.Status.Phase = p.Status.Phase
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			short.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil {
			short.Status.ContainerStatuses = append(short.Status.ContainerStatuses, corev1.ContainerStatus{
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: t.FinishedAt}},
			})
		}
	}
	return short, nil
}

func shortened(all []corev1.Container) (out []corev1.Container) {
	for _, c := range all {
		one := corev1.Container{Name: c.Name, Image: c.Image, RestartPolicy: c.RestartPolicy}
		one.Resources.Requests, one.Resources.Limits = c.Resources.Requests, c.Resources.Limits
		for _, port := range c.Ports {
			if port.HostPort != 0 {
				one.Ports = append(one.Ports, corev1.ContainerPort{
					ContainerPort: port.ContainerPort, HostPort: port.HostPort, HostIP: port.HostIP,
					Protocol: port.Protocol,
				})
			}
		}
		out = append(out, one)
	}
	return out
}

// manifest of a pod as a simulation reads it. Names come again (a StatefulSet's pods); in a
// recording each is its own.
func (r *Recorder) manifest(l *life, lasts time.Duration) map[string]any {
	p := l.pod.DeepCopy()
	p.Spec.NodeName = ""
	if r.names != nil {
		r.names.hide(p)
	}
	times := map[string]string{ArrivesKey: l.arrives.Round(time.Millisecond).String()}
	if lasts > 0 {
		times[LastsKey] = lasts.Round(time.Millisecond).String()
	}
	meta := map[string]any{"name": fmt.Sprintf("%.200s-%d", p.Name, l.number), "namespace": p.Namespace, "annotations": times}
	if len(p.Labels) > 0 {
		meta["labels"] = p.Labels
	}
	if len(p.OwnerReferences) > 0 {
		meta["ownerReferences"] = p.OwnerReferences
	}
	return map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": p.Spec}
}
