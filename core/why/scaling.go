// SPDX-License-Identifier: Apache-2.0

package why

import (
	"maps"
	"slices"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/reply"
)

func sortedNames(m corev1.ResourceList) []corev1.ResourceName { return slices.Sorted(maps.Keys(m)) }

// autoscaler: why it does not scale.
func (e *explainer) autoscaler(name string) *Answer {
	h, ok := facts.Find(e.Autoscalers, e.in, name)
	if !ok {
		return nil
	}
	state := map[autoscalingv2.HorizontalPodAutoscalerConditionType]autoscalingv2.HorizontalPodAutoscalerCondition{}
	for _, c := range h.Status.Conditions {
		state[c.Type] = c
	}
	target := strings.ToLower(h.Spec.ScaleTargetRef.Kind) + "/" + h.Spec.ScaleTargetRef.Name
	able, active, limited := state[autoscalingv2.AbleToScale], state[autoscalingv2.ScalingActive], state[autoscalingv2.ScalingLimited]
	switch {
	case len(h.Status.Conditions) == 0:
		return reply.Stuck("its controller has not looked at it yet")
	case able.Status == corev1.ConditionFalse:
		return e.noTarget(h, reply.Stuck("it cannot scale %s: %s", target, able.Message))
	case active.Status == corev1.ConditionFalse && active.Reason == "ScalingDisabled":
		return reply.Stuck("it does nothing while %s has 0 replicas", target).
			Or("give it a replica", "kubectl scale %s -n %s --replicas=%d", target, e.in, max(1, wanted(h.Spec.MinReplicas)))
	case active.Status == corev1.ConditionFalse:
		return e.noMetrics(target, active.Message)
	case limited.Status == corev1.ConditionTrue && limited.Reason == "TooManyReplicas":
		return reply.Stuck("it would have more than %d replicas of %s, its maxReplicas", h.Spec.MaxReplicas, target).
			Or("allow it more", `kubectl patch hpa %s -n %s --type=merge -p '{"spec":{"maxReplicas":%d}}'`, name, e.in, 2*h.Spec.MaxReplicas)
	}
	return reply.Well("it keeps %s at %d replicas", target, h.Status.DesiredReplicas)
}

// noTarget names workloads that could have been meant.
func (e *explainer) noTarget(h *autoscalingv2.HorizontalPodAutoscaler, a *Answer) *Answer {
	if _, ok := facts.Find(e.Deployments, e.in, h.Spec.ScaleTargetRef.Name); ok || h.Spec.ScaleTargetRef.Kind != "Deployment" {
		return a
	}
	for _, d := range e.Deployments[:min(len(e.Deployments), 3)] {
		if d.Namespace == e.in {
			a.Or("scale deployment "+d.Name, `kubectl patch hpa %s -n %s --type=merge -p '{"spec":{"scaleTargetRef":{"name":"%s"}}}'`, h.Name, e.in, d.Name)
		}
	}
	return a
}

// noMetrics: it does not know how busy the pods are.
func (e *explainer) noMetrics(target, message string) *Answer {
	if _, about, ok := strings.Cut(message, "missing request for "); ok {
		what, where, _ := strings.Cut(about, " in container ")
		container, _, _ := strings.Cut(where, " ")
		amount := "100m"
		if what == string(corev1.ResourceMemory) {
			amount = "128Mi"
		}
		return reply.Stuck("it cannot tell how busy %s is: container %s requests no %s", target, container, what).
			Or("have it request some", "kubectl set resources %s -n %s -c %s --requests=%s=%s", target, e.in, container, what, amount)
	}
	a := reply.Stuck("it cannot tell how busy %s is: %s", target, message)
	groups := map[string]string{
		"resource metrics": "metrics.k8s.io", "custom metrics": "custom.metrics.k8s.io",
		"external metrics": "external.metrics.k8s.io",
	}
	for what, group := range groups {
		if !strings.Contains(message, "from "+what+" API") {
			continue
		}
		for _, api := range e.APIs {
			if api.Spec.Group == group {
				if served := e.explainAPI(api); !served.Well {
					return served.Of("it cannot tell how busy %s is: the API of %s", target, what)
				}
				return a
			}
		}
		if what != "resource metrics" {
			return a.Or("see who would serve them: a metrics adapter has to be installed", "kubectl get apiservices v1beta1.%s", group)
		}
	}
	for _, p := range e.Pods {
		of := strings.TrimPrefix(e.Owner(p), "")
		if p.Namespace == e.in && of == target && p.Spec.NodeName != "" {
			if pod := e.explainPod(p); !pod.Well {
				return pod.Of("it cannot tell how busy %s is: pod %s", target, p.Name)
			}
		}
	}
	return a
}

// budget: why it lets nobody evict a pod, so that a drain waits.
func (e *explainer) budget(name string) *Answer {
	b, ok := facts.Find(e.Budgets, e.in, name)
	if !ok {
		return nil
	}
	if b.Status.ObservedGeneration < b.Generation {
		return reply.Stuck("its controller has not looked at it yet: until then nothing may be evicted")
	}
	for _, c := range b.Status.Conditions {
		if c.Type == policyv1.DisruptionAllowedCondition && c.Reason == policyv1.SyncFailedReason {
			return reply.Stuck("it lets no pod be evicted: %s", c.Message)
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	switch {
	case b.Status.DisruptionsAllowed > 0:
		return reply.Well("it lets %d of %d pods be evicted now", b.Status.DisruptionsAllowed, b.Status.ExpectedPods)
	case err != nil || b.Spec.Selector == nil:
		return reply.Stuck("it protects nothing: it selects no pod")
	case b.Status.ExpectedPods == 0:
		return reply.Stuck("it protects nothing: no pod has the labels %s that it selects", metav1.FormatLabelSelector(b.Spec.Selector)).
			Or("see which labels pods have", "kubectl get pods -n %s --show-labels", e.in)
	}
	var unready *corev1.Pod
	var owner string
	for _, p := range e.Pods {
		if p.Namespace != e.in || !selector.Matches(labels.Set(p.Labels)) {
			continue
		}
		owner = e.Owner(p)
		if condition(p, corev1.PodReady).Status != corev1.ConditionTrue && (unready == nil || p.Name < unready.Name) {
			unready = p
		}
	}
	if b.Status.CurrentHealthy < b.Status.DesiredHealthy && unready != nil {
		return e.explainPod(unready).Of("it lets no pod be evicted: %d are healthy, and %d have to be: pod %s", b.Status.CurrentHealthy,
			b.Status.DesiredHealthy, unready.Name)
	}
	a := reply.Stuck("it lets no pod be evicted: %d are healthy, and %d have to be (%s)", b.Status.CurrentHealthy, b.Status.DesiredHealthy,
		facts.Rule(b))
	if b.Spec.MaxUnavailable == nil && !strings.HasPrefix(owner, "pod/") && owner != "" {
		a.Or("make one more pod", "kubectl scale %s -n %s --replicas=%d", owner, e.in, b.Status.DesiredHealthy+1)
	}
	return a.Or("let one pod be missing", `kubectl patch pdb %s -n %s --type=merge -p '{"spec":{"minAvailable":null,"maxUnavailable":1}}'`, name, e.in)
}
