// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resources "k8s.io/component-helpers/resource"

	"github.com/wasmplane/wasmplane/core/controllers"
)

const (
	// cpuInitialization is how long after its start a pod may use processors as it
	// never will again.
	cpuInitialization = 5 * time.Minute
	// initialReadiness is how long after its start a pod that becomes unready counts
	// as one that was never ready.
	initialReadiness = 30 * time.Second
)

// groups of pods, by what their samples are worth.
type groups struct {
	ready                     int
	unready, missing, ignored []string
}

func (s *situation) group(of samples, name corev1.ResourceName) groups {
	var g groups
	for _, pod := range s.pods {
		sample, found := of[pod.Name]
		switch {
		case pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed:
			g.ignored = append(g.ignored, pod.Name)
		case pod.Status.Phase == corev1.PodPending:
			g.unready = append(g.unready, pod.Name)
		case !found:
			g.missing = append(g.missing, pod.Name)
		case name == corev1.ResourceCPU && starting(pod, sample, s.now):
			g.unready = append(g.unready, pod.Name)
		default:
			g.ready++
		}
	}
	return g
}

// starting tells whether what a pod uses of processors says nothing yet.
func starting(pod *corev1.Pod, s sample, now time.Time) bool {
	ready := controllers.PodCondition(pod, corev1.PodReady)
	if ready == nil || pod.Status.StartTime == nil {
		return true
	}
	started, unready := pod.Status.StartTime.Time, ready.Status == corev1.ConditionFalse
	if started.Add(cpuInitialization).After(now) {
		return unready || s.at.Before(ready.LastTransitionTime.Add(s.window))
	}
	return unready && started.Add(initialReadiness).After(ready.LastTransitionTime.Time)
}

func readyPods(pods []*corev1.Pod) (n int) {
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodRunning && controllers.PodReady(pod) {
			n++
		}
	}
	return n
}

// requestsOf are what pods, or one container of each, request of a resource.
func requestsOf(pods []*corev1.Pod, container string, name corev1.ResourceName) (map[string]int64, error) {
	out := make(map[string]int64, len(pods))
	for _, pod := range pods {
		n, err := requestOf(pod, container, name)
		if err != nil {
			return nil, err
		}
		out[pod.Name] = n
	}
	return out, nil
}

func requestOf(pod *corev1.Pod, container string, name corev1.ResourceName) (int64, error) {
	if container == "" && resources.IsPodLevelRequestsSet(pod) {
		q, ok := resources.PodRequests(pod, resources.PodResourcesOptions{})[name]
		if !ok {
			return 0, fmt.Errorf("missing pod-level request for %s in Pod %s", name, pod.Name)
		}
		return q.MilliValue(), nil
	}
	var sum int64
	for _, c := range longRunning(&pod.Spec) {
		if container != "" && container != c.Name {
			continue
		}
		q, ok := c.Resources.Requests[name]
		if !ok {
			return 0, fmt.Errorf("missing request for %s in container %s of Pod %s", name, c.Name, pod.Name)
		}
		if container != "" {
			return q.MilliValue(), nil
		}
		sum = add(sum, q.MilliValue())
	}
	if container != "" {
		return 0, fmt.Errorf("container %s not found in Pod %s", container, pod.Name)
	}
	return sum, nil
}

// longRunning are the containers that run as long as the pod: sidecars too.
func longRunning(spec *corev1.PodSpec) []*corev1.Container {
	var out []*corev1.Container
	for i := range spec.Containers {
		out = append(out, &spec.Containers[i])
	}
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out = append(out, c)
		}
	}
	return out
}
