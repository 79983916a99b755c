// SPDX-License-Identifier: Apache-2.0

// Package limitranger is the admission plugin LimitRanger.
package limitranger

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/cache"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
)

// Plugin fills in the default resources of a namespace's LimitRanges and
// holds containers, pods and claims to their bounds.
type Plugin struct {
	client kubernetes.Interface
	lister listers.LimitRangeLister
	warm   reading.Warm
	// live holds what the server said about namespaces for which the informer
	// has no LimitRange: one may just have been made.
	live *cache.LRUExpireCache
	// written are namespaces whose LimitRanges were written here a moment ago: neither
	// the informer nor live may have seen that, so the server is asked each time.
	written *cache.LRUExpireCache
}

const (
	annotation       = "kubernetes.io/limit-ranger"
	limitsLiveFor    = 30 * time.Second
	limitsLiveAtMost = 10000
	// limitsWrittenFor is not shorter than limitsLiveFor: what live holds from before
	// the write must be gone when it is asked again.
	limitsWrittenFor = limitsLiveFor
)

// New is the plugin, which waits for its informer for as long as within.
func New(client kubernetes.Interface, informers informers.SharedInformerFactory, within time.Duration) *Plugin {
	ranges := informers.Core().V1().LimitRanges()
	return &Plugin{
		client: client, lister: ranges.Lister(), warm: reading.WarmOf(within, ranges.Informer()),
		live: cache.NewLRUExpireCache(limitsLiveAtMost), written: cache.NewLRUExpireCache(limitsLiveAtMost),
	}
}

// Name implements admission.Plugin.
func (*Plugin) Name() string { return "LimitRanger" }

// Handles implements admission.Plugin.
func (*Plugin) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "", admission.Create).Handles(r) || reading.On("", "pods", "resize", admission.Update).Handles(r) ||
		reading.On("", "persistentvolumeclaims", "", admission.Create, admission.Update).Handles(r) || writesLimits(r)
}

func writesLimits(r *admission.Request) bool {
	return !r.DryRun && reading.On("", "limitranges", "", admission.Create, admission.Update, admission.Delete).Handles(r)
}

// Mutate implements admission.Mutator.
func (p *Plugin) Mutate(ctx context.Context, r *admission.Request) error {
	if r.Resource.Resource != "pods" || leaving(r) {
		return nil
	}
	ranges, err := p.ranges(ctx, r)
	if err != nil || len(ranges) == 0 {
		return err
	}
	given, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	pod := reading.Copied(given)
	for _, lr := range ranges {
		setDefaults(pod, lr)
	}
	reading.SetIfChanged(r, given, pod)
	return nil
}

// leaving: an object that is being deleted must remain able to be updated.
func leaving(r *admission.Request) bool {
	if r.OldObject == nil {
		return false
	}
	m, err := r.OldObject.Meta()
	return err == nil && m.GetDeletionTimestamp() != nil
}

func (p *Plugin) ranges(ctx context.Context, r *admission.Request) ([]*corev1.LimitRange, error) {
	if err := p.warm.Wait(ctx, r); err != nil {
		return nil, err
	}
	if _, just := p.written.Get(r.Namespace); just {
		return p.ask(ctx, r)
	}
	found, err := p.lister.LimitRanges(r.Namespace).List(labels.Everything())
	if err != nil {
		return nil, admission.Forbidden(r, fmt.Errorf("unable to %s %v at this time because there was an error enforcing limit ranges",
			r.Operation, r.Resource))
	}
	if len(found) > 0 {
		return found, nil
	}
	if known, ok := p.live.Get(r.Namespace); ok {
		return known.([]*corev1.LimitRange), nil
	}
	if found, err = p.ask(ctx, r); err != nil {
		return nil, err
	}
	p.live.Add(r.Namespace, found, limitsLiveFor)
	return found, nil
}

// ask the server itself.
func (p *Plugin) ask(ctx context.Context, r *admission.Request) (found []*corev1.LimitRange, err error) {
	list, err := p.client.CoreV1().LimitRanges(r.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, admission.Forbidden(r, err)
	}
	for i := range list.Items {
		found = append(found, &list.Items[i])
	}
	return found, nil
}

// setDefaults fills in what containers leave open, and notes what it did.
func setDefaults(pod *corev1.Pod, lr *corev1.LimitRange) {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	for _, l := range lr.Spec.Limits {
		if l.Type == corev1.LimitTypeContainer {
			addMissing(requests, l.DefaultRequest)
			addMissing(limits, l.Default)
		}
	}
	var notes []string
	fill := func(kind string, containers []corev1.Container) {
		for i := range containers {
			c := &containers[i]
			notes = appendSet(notes, setMissing(&c.Resources.Requests, requests), "request", kind, c.Name)
			notes = appendSet(notes, setMissing(&c.Resources.Limits, limits), "limit", kind, c.Name)
		}
	}
	fill("container", pod.Spec.Containers)
	fill("init container", pod.Spec.InitContainers)
	if len(notes) > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotation, "LimitRanger plugin set: "+strings.Join(notes, "; "))
	}
}

func appendSet(notes, set []string, what, kind, name string) []string {
	if len(set) == 0 {
		return notes
	}
	slices.Sort(set)
	return append(notes, fmt.Sprintf("%s %s for %s %s", strings.Join(set, ", "), what, kind, name))
}

func addMissing(into, from corev1.ResourceList) {
	for k, v := range from {
		into[k] = v.DeepCopy()
	}
}

func setMissing(into *corev1.ResourceList, from corev1.ResourceList) (set []string) {
	for k, v := range from {
		if _, has := (*into)[k]; has {
			continue
		}
		if *into == nil {
			*into = corev1.ResourceList{}
		}
		(*into)[k] = v.DeepCopy()
		set = append(set, string(k))
	}
	return set
}

// Validate implements admission.Validator.
func (p *Plugin) Validate(ctx context.Context, r *admission.Request) error {
	if writesLimits(r) {
		p.written.Add(r.Namespace, true, limitsWrittenFor)
		return nil
	}
	if leaving(r) {
		return nil
	}
	ranges, err := p.ranges(ctx, r)
	if err != nil {
		return err
	}
	for _, lr := range ranges {
		var errs []error
		if r.Resource.Resource == "pods" {
			pod, err := reading.Typed[*corev1.Pod](r.Object)
			if err != nil {
				return err
			}
			errs = podBounds(pod, lr)
		} else {
			claim, err := reading.Typed[*corev1.PersistentVolumeClaim](r.Object)
			if err != nil {
				return err
			}
			errs = claimBounds(claim, lr)
		}
		if err := utilerrors.NewAggregate(errs); err != nil {
			return admission.Forbidden(r, err)
		}
	}
	return nil
}

func podBounds(pod *corev1.Pod, lr *corev1.LimitRange) (errs []error) {
	for _, l := range lr.Spec.Limits {
		switch l.Type {
		case corev1.LimitTypeContainer:
			for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
				errs = append(errs, bounds(l, c.Resources.Requests, c.Resources.Limits)...)
			}
		case corev1.LimitTypePod:
			// The pod's sum is what its spec says: overhead is the runtime's, not the user's.
			o := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
			errs = append(errs, bounds(l, resourcehelper.PodRequests(pod, o), resourcehelper.PodLimits(pod, o))...)
		default: // a bound on something else
		}
	}
	return errs
}

func claimBounds(claim *corev1.PersistentVolumeClaim, lr *corev1.LimitRange) (errs []error) {
	requests := claim.Spec.Resources.Requests
	for _, l := range lr.Spec.Limits {
		if l.Type != corev1.LimitTypePersistentVolumeClaim {
			continue
		}
		for _, k := range sorted(l.Min) {
			errs = appendError(errs, atLeast(l.Type, k, l.Min[k], requests, nil))
		}
		for _, k := range sorted(l.Max) {
			errs = appendError(errs, requestAtMost(l.Type, k, l.Max[k], requests))
		}
	}
	return errs
}

func bounds(l corev1.LimitRangeItem, requests, limits corev1.ResourceList) (errs []error) {
	for _, k := range sorted(l.Min) {
		errs = appendError(errs, atLeast(l.Type, k, l.Min[k], requests, limits))
	}
	for _, k := range sorted(l.Max) {
		errs = appendError(errs, atMost(l.Type, k, l.Max[k], requests, limits))
	}
	for _, k := range sorted(l.MaxLimitRequestRatio) {
		errs = appendError(errs, ratioAtMost(l.Type, k, l.MaxLimitRequestRatio[k], requests, limits))
	}
	return errs
}

func appendError(errs []error, err error) []error {
	if err == nil {
		return errs
	}
	return append(errs, err)
}

// sorted, so that the same pod is refused with the same words every time.
func sorted(l corev1.ResourceList) []corev1.ResourceName {
	keys := make([]corev1.ResourceName, 0, len(l))
	for k := range l {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func atLeast(t corev1.LimitType, k corev1.ResourceName, bound resource.Quantity, requests, limits corev1.ResourceList) error {
	request, requested := requests[k]
	limit, limited := limits[k]
	switch {
	case !requested:
		return fmt.Errorf("minimum %s usage per %s is %s.  No request is specified", k, t, bound.String())
	case request.Cmp(bound) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but request is %s", k, t, bound.String(), request.String())
	case limited && limit.Cmp(bound) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but limit is %s", k, t, bound.String(), limit.String())
	}
	return nil
}

func requestAtMost(t corev1.LimitType, k corev1.ResourceName, bound resource.Quantity, requests corev1.ResourceList) error {
	request, requested := requests[k]
	switch {
	case !requested:
		return fmt.Errorf("maximum %s usage per %s is %s.  No request is specified", k, t, bound.String())
	case request.Cmp(bound) > 0:
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", k, t, bound.String(), request.String())
	}
	return nil
}

func atMost(t corev1.LimitType, k corev1.ResourceName, bound resource.Quantity, requests, limits corev1.ResourceList) error {
	request, requested := requests[k]
	limit, limited := limits[k]
	switch {
	case !limited:
		return fmt.Errorf("maximum %s usage per %s is %s.  No limit is specified", k, t, bound.String())
	case limit.Cmp(bound) > 0:
		return fmt.Errorf("maximum %s usage per %s is %s, but limit is %s", k, t, bound.String(), limit.String())
	case requested && request.Cmp(bound) > 0:
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", k, t, bound.String(), request.String())
	}
	return nil
}

func ratioAtMost(t corev1.LimitType, k corev1.ResourceName, bound resource.Quantity, requests, limits corev1.ResourceList) error {
	request, requested := requests[k]
	limit, limited := limits[k]
	switch {
	case !requested || request.IsZero():
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0", k, t, bound.String())
	case !limited || limit.IsZero():
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", k, t, bound.String())
	}
	if ratio := limit.AsApproximateFloat64() / request.AsApproximateFloat64(); ratio > bound.AsApproximateFloat64() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", k, t, bound.String(), ratio)
	}
	return nil
}
