// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/pluginconfig"
	"github.com/wasmplane/wasmplane/core/admission/reading"
	"github.com/wasmplane/wasmplane/core/quota"
	"github.com/wasmplane/wasmplane/core/resourcename"
)

// Annotations of namespaces that say where their pods go.
const (
	nodeSelectorKey       = "scheduler.alpha.kubernetes.io/node-selector"
	defaultTolerationsKey = "scheduler.alpha.kubernetes.io/defaultTolerations"
	tolerationsKey        = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

// podNodeSelector keeps a namespace's pods on its nodes.
type podNodeSelector struct {
	namespaces
	selectors map[string]string
}

func (podNodeSelector) Name() string { return podNodeSelectorName }

func (podNodeSelector) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "", admission.Create).Handles(r)
}

func (p podNodeSelector) Mutate(ctx context.Context, r *admission.Request) error {
	given, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	selector, err := p.selector(ctx, r, given)
	if err != nil {
		return err
	}
	pod := reading.Copied(given)
	if pod.Spec.NodeSelector = labels.Merge(selector, given.Spec.NodeSelector); len(pod.Spec.NodeSelector) == 0 {
		pod.Spec.NodeSelector = given.Spec.NodeSelector
	}
	reading.SetIfChanged(r, given, pod)
	return nil
}

func (p podNodeSelector) Validate(ctx context.Context, r *admission.Request) error {
	pod, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	if _, err := p.selector(ctx, r, pod); err != nil {
		return err
	}
	most, err := labels.ConvertSelectorToLabelsMap(p.selectors[r.Namespace])
	if err != nil {
		return admission.Forbidden(r, err)
	}
	for k, v := range pod.Spec.NodeSelector {
		if may, ok := most[k]; len(most) > 0 && (!ok || may != v) {
			return admission.Forbidden(r, errors.New("pod node label selector labels conflict with its namespace whitelist"))
		}
	}
	return nil
}

// selector is the namespace's, with which the pod's must not conflict.
func (p podNodeSelector) selector(ctx context.Context, r *admission.Request, pod *corev1.Pod) (labels.Set, error) {
	ns, err := p.of(ctx, r)
	if err != nil {
		return nil, err
	}
	text, own := ns.Annotations[nodeSelectorKey]
	if !own {
		text = p.selectors["clusterDefaultNodeSelector"]
	}
	selector, err := labels.ConvertSelectorToLabelsMap(text)
	if err != nil {
		return nil, admission.Forbidden(r, err)
	}
	if labels.Conflicts(selector, labels.Set(pod.Spec.NodeSelector)) {
		return nil, admission.Forbidden(r, errors.New("pod node label selector conflicts with its namespace node label selector"))
	}
	return selector, nil
}

// extendedToleration lets pods that ask for a device onto the nodes that are
// kept free for it: their taint is named as the resource.
type extendedToleration struct{}

func (extendedToleration) Name() string { return extendedTolerationName }

func (extendedToleration) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "", admission.Create, admission.Update).Handles(r)
}

func (extendedToleration) Mutate(_ context.Context, r *admission.Request) error {
	given, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	devices := sets.New[string]()
	for _, c := range slices.Concat(given.Spec.Containers, given.Spec.InitContainers) {
		for name := range c.Resources.Requests {
			if resourcename.Extended(string(name)) {
				devices.Insert(string(name))
			}
		}
	}
	pod := reading.Copied(given)
	for _, name := range sets.List(devices) {
		add := corev1.Toleration{Key: name, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return t.MatchToleration(&add) }) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, add)
		}
	}
	reading.SetIfChanged(r, given, pod)
	return nil
}

// podTolerations gives a namespace's pods its tolerations, and lets them have no others.
type podTolerations struct {
	namespaces
	cluster pluginconfig.Tolerations
}

func (podTolerations) Name() string { return podTolerationsName }

func (podTolerations) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "", admission.Create, admission.Update).Handles(r)
}

func (p podTolerations) Mutate(ctx context.Context, r *admission.Request) error {
	given, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	var more []corev1.Toleration
	if r.Operation == admission.Create {
		if more, _, err = p.configured(ctx, r, defaultTolerationsKey, p.cluster.Default); err != nil {
			return err
		}
	}
	if !quota.BestEffort(given) {
		more = append(slices.Clone(more), corev1.Toleration{
			Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffectNoSchedule,
		})
	}
	if len(more) == 0 {
		return nil
	}
	pod := reading.Copied(given)
	pod.Spec.Tolerations = mergeTolerations(pod.Spec.Tolerations, more)
	reading.SetIfChanged(r, given, pod)
	return nil
}

func (p podTolerations) Validate(ctx context.Context, r *admission.Request) error {
	pod, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil || len(pod.Spec.Tolerations) == 0 {
		return err
	}
	allowed, own, err := p.configured(ctx, r, tolerationsKey, p.cluster.Whitelist)
	if err != nil || len(allowed) == 0 {
		return err
	}
	for _, t := range pod.Spec.Tolerations {
		if !slices.ContainsFunc(allowed, func(a corev1.Toleration) bool { return covers(a, t) }) {
			scope := "cluster"
			if own {
				scope = "namespace"
			}
			return admission.Forbidden(r, fmt.Errorf("pod tolerations (possibly merged with namespace default tolerations) conflict with its %s whitelist", scope))
		}
	}
	return nil
}

// configured are the tolerations of a namespace's annotation (own), or else the cluster's.
func (p podTolerations) configured(ctx context.Context, r *admission.Request, key string,
	cluster []corev1.Toleration,
) (list []corev1.Toleration, own bool, err error) {
	ns, err := p.of(ctx, r)
	if err != nil {
		return nil, false, err
	}
	text, own := ns.Annotations[key]
	switch {
	case !own:
		return cluster, false, nil
	case text == "":
		return nil, true, nil
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, true, admission.Forbidden(r, fmt.Errorf("annotation %s of namespace %s: %w", key, r.Namespace, err))
	}
	return list, true, nil
}
