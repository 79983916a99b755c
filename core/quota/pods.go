// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/wasmplane/wasmplane/core/resourcename"
)

const (
	requestsPrefix    = corev1.DefaultResourceRequestsPrefix
	deviceClassPrefix = "deviceclass.resource.kubernetes.io/"
)

func pods() *Measure {
	gr := schema.GroupResource{Resource: "pods"}
	return &Measure{
		Resource: gr,
		names: []corev1.ResourceName{
			CountName(gr), corev1.ResourcePods,
			corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
			corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
			corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
		},
		more:     podName,
		usage:    podUsage,
		scope:    podScope,
		required: podRequired,
		changes: func(subresource string, o, old runtime.Object) bool {
			p, err1 := as[*corev1.Pod](o)
			was, err2 := as[*corev1.Pod](old)
			return errors.Join(err1, err2) == nil && (subresource == "resize" || subresource == "" && limitedInTime(p) != limitedInTime(was))
		},
		releases: func(o, old runtime.Object, now time.Time) bool {
			p, err1 := as[*corev1.Pod](o)
			was, err2 := as[*corev1.Pod](old)
			return errors.Join(err1, err2) == nil &&
				(limitedInTime(p) != limitedInTime(was) || counts(was, now) && !counts(p, now) || resized(p, was))
		},
	}
}

// podName: huge pages, and extended resources as requests.NAME.
func podName(n corev1.ResourceName) bool {
	s := string(n)
	if strings.HasPrefix(s, corev1.ResourceHugePagesPrefix) || strings.HasPrefix(s, corev1.ResourceRequestsHugePagesPrefix) {
		return true
	}
	return strings.HasPrefix(s, requestsPrefix) && (!resourcename.Native(string(n)) || strings.HasPrefix(s, requestsPrefix+deviceClassPrefix))
}

// extended resources are those of devices: example.com/gpu.
func extended(n corev1.ResourceName) bool {
	return strings.HasPrefix(string(n), deviceClassPrefix) || !resourcename.Native(string(n)) && !strings.HasPrefix(string(n), requestsPrefix)
}

// counts: a pod that has ended, or should have long ago, takes nothing from others.
func counts(p *corev1.Pod, now time.Time) bool {
	if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		return false
	}
	if p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil {
		return !now.After(p.DeletionTimestamp.Add(time.Duration(*p.DeletionGracePeriodSeconds) * time.Second))
	}
	return true
}

func podUsage(o runtime.Object, now time.Time) (corev1.ResourceList, error) {
	p, err := as[*corev1.Pod](o)
	if err != nil {
		return nil, err
	}
	out := corev1.ResourceList{CountName(schema.GroupResource{Resource: "pods"}): one()}
	if !counts(p, now) {
		return out, nil
	}
	options := resourcehelper.PodResourcesOptions{UseStatusResources: true}
	return quotav1.Add(out, compute(resourcehelper.PodRequests(p, options), resourcehelper.PodLimits(p, options))), nil
}

// compute gives what is requested the names that quotas have for it.
func compute(requests, limits corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}
	for _, n := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, ok := requests[n]; ok {
			out[n], out[requestsPrefix+n] = q, q
		}
		if q, ok := limits[n]; ok {
			out["limits."+n] = q
		}
	}
	for n, q := range requests {
		if strings.HasPrefix(string(n), corev1.ResourceHugePagesPrefix) {
			out[n], out[requestsPrefix+n] = q, q
		}
		if extended(n) {
			out[requestsPrefix+n] = q
		}
	}
	return out
}

// podRequired: a quota of processor time or memory wants every container to say
// how much it takes, unless the pod says so as a whole.
func podRequired(names []corev1.ResourceName, o runtime.Object) error {
	p, err := as[*corev1.Pod](o)
	if err != nil {
		return err
	}
	if resourcehelper.IsPodLevelResourcesSet(p) {
		return nil
	}
	missing := map[corev1.ResourceName]sets.Set[string]{}
	for _, c := range slices.Concat(p.Spec.Containers, p.Spec.InitContainers) {
		has := compute(c.Resources.Requests, c.Resources.Limits)
		for _, n := range names {
			if _, ok := has[n]; ok || !wanted(n) {
				continue
			}
			if missing[n] == nil {
				missing[n] = sets.New[string]()
			}
			missing[n].Insert(c.Name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var parts []string
	for _, n := range sets.List(sets.KeySet(missing)) {
		parts = append(parts, string(n)+" for: "+strings.Join(sets.List(missing[n]), ","))
	}
	return errors.New("must specify " + strings.Join(parts, "; "))
}

func wanted(n corev1.ResourceName) bool {
	switch n {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceLimitsCPU,
		corev1.ResourceLimitsMemory:
		return true
	default:
		return false
	}
}

func limitedInTime(p *corev1.Pod) bool {
	return p.Spec.ActiveDeadlineSeconds != nil && *p.Spec.ActiveDeadlineSeconds >= 0
}

func podScope(s corev1.ScopedResourceSelectorRequirement, o runtime.Object) (bool, error) {
	p, err := as[*corev1.Pod](o)
	if err != nil {
		return false, err
	}
	switch s.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return limitedInTime(p), nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return !limitedInTime(p), nil
	case corev1.ResourceQuotaScopeBestEffort:
		return BestEffort(p), nil
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !BestEffort(p), nil
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossesNamespaces(p.Spec.Affinity), nil
	case corev1.ResourceQuotaScopePriorityClass:
		selector, err := scopeSelector(s)
		if err != nil {
			return false, err
		}
		set := labels.Set{}
		if p.Spec.PriorityClassName != "" {
			set[string(corev1.ResourceQuotaScopePriorityClass)] = p.Spec.PriorityClassName
		}
		return selector.Matches(set), nil
	default: // a scope of other objects
		return false, nil
	}
}

// BestEffort is a quality of service: the pod asks for nothing.
func BestEffort(p *corev1.Pod) bool {
	if p.Status.QOSClass != "" {
		return p.Status.QOSClass == corev1.PodQOSBestEffort
	}
	asks := func(l corev1.ResourceList) bool {
		return !l.Cpu().IsZero() || !l.Memory().IsZero()
	}
	if r := p.Spec.Resources; r != nil && (asks(r.Requests) || asks(r.Limits)) {
		return false
	}
	return !slices.ContainsFunc(slices.Concat(p.Spec.Containers, p.Spec.InitContainers), func(c corev1.Container) bool {
		return asks(c.Resources.Requests) || asks(c.Resources.Limits)
	})
}

func crossesNamespaces(a *corev1.Affinity) bool {
	crosses := func(t corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil }
	weighted := func(t corev1.WeightedPodAffinityTerm) bool { return crosses(t.PodAffinityTerm) }
	if a == nil {
		return false
	}
	if p := a.PodAffinity; p != nil && (slices.ContainsFunc(p.RequiredDuringSchedulingIgnoredDuringExecution, crosses) ||
		slices.ContainsFunc(p.PreferredDuringSchedulingIgnoredDuringExecution, weighted)) {
		return true
	}
	p := a.PodAntiAffinity
	return p != nil && (slices.ContainsFunc(p.RequiredDuringSchedulingIgnoredDuringExecution, crosses) ||
		slices.ContainsFunc(p.PreferredDuringSchedulingIgnoredDuringExecution, weighted))
}

// resized: the resources that the node gives a container have changed.
func resized(p, was *corev1.Pod) bool {
	changed := func(now, before []corev1.ContainerStatus) bool {
		return slices.ContainsFunc(before, func(b corev1.ContainerStatus) bool {
			i := slices.IndexFunc(now, func(n corev1.ContainerStatus) bool { return n.Name == b.Name })
			return i >= 0 && !equality.Semantic.DeepEqual(b.Resources, now[i].Resources)
		})
	}
	return changed(p.Status.ContainerStatuses, was.Status.ContainerStatuses) || changed(p.Status.InitContainerStatuses,
		was.Status.InitContainerStatuses)
}
