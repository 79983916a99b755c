// SPDX-License-Identifier: Apache-2.0

package action

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	pdbhelper "k8s.io/component-helpers/apps/poddisruptionbudget"

	"github.com/wasmplane/wasmplane/core/registry"
)

// maxDisrupted bounds how many evictions the disruption controller may be behind.
const maxDisrupted = 2000

// eviction deletes a pod if its disruption budget allows it. The budget is charged
// first: charged for nothing does less harm than a pod too many gone.
type eviction struct {
	registries *registry.Set
	now        func() time.Time
}

// Do implements Action.
func (e eviction) Do(ctx context.Context, r *registry.Registry, req *registry.Request) (runtime.Object, error) {
	wanted, judge, err := judged[*policyv1.Eviction](ctx, r, req, policyv1.SchemeGroupVersion.WithKind("Eviction"))
	if err != nil {
		return nil, err
	}
	if req.Name != wanted.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	options, err := evictionOptions(wanted, req.DryRun())
	if err != nil {
		return nil, err
	}
	own := *req
	own.Judge, req = judge, &own
	pod, err := e.registries.ReadPod(ctx, req.Namespace, req.Name)
	if err != nil {
		return nil, err
	}
	if needsNoBudget(pod) {
		return e.evictFreely(ctx, r, req, pod, options)
	}
	return e.evictWithin(ctx, r, req, pod, options)
}

func evictionOptions(wanted *policyv1.Eviction, dryRun []string) (*metav1.DeleteOptions, error) {
	options := wanted.DeleteOptions
	if options == nil {
		return &metav1.DeleteOptions{DryRun: dryRun}, nil
	}
	switch {
	case len(options.DryRun) == 0:
		options.DryRun = dryRun
	case len(dryRun) > 0 && !slices.Equal(dryRun, options.DryRun):
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Non-matching dry-run options in request and content: %v and %v", dryRun, options.DryRun))
	}
	return options, nil
}

// needsNoBudget: the pod disrupts nothing by going, or has done so already.
func needsNoBudget(pod *corev1.Pod) bool {
	return finished(pod) || pod.Status.Phase == corev1.PodPending
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || pod.DeletionTimestamp != nil
}

func (e eviction) evictFreely(ctx context.Context, r *registry.Registry, req *registry.Request, pod *corev1.Pod,
	options *metav1.DeleteOptions,
) (runtime.Object, error) {
	pinned := options.Preconditions != nil && options.Preconditions.ResourceVersion != nil
	for {
		o := options.DeepCopy()
		if !finished(pod) && !pinned {
			pin(o, pod.ResourceVersion) // it may become ready, and so guarded, meanwhile
		}
		err := e.evictNow(ctx, r, req, o)
		if err == nil {
			return &metav1.Status{Status: metav1.StatusSuccess}, nil
		}
		if pinned || !apierrors.IsConflict(err) {
			return nil, err
		}
		if pod, err = e.registries.ReadPod(ctx, req.Namespace, req.Name); err != nil {
			return nil, err
		}
		if !needsNoBudget(pod) {
			return e.evictWithin(ctx, r, req, pod, options)
		}
	}
}

func pin(o *metav1.DeleteOptions, resourceVersion string) {
	if o.Preconditions == nil {
		o.Preconditions = &metav1.Preconditions{}
	}
	o.Preconditions.ResourceVersion = &resourceVersion
}

func (e eviction) evictWithin(ctx context.Context, r *registry.Registry, req *registry.Request, pod *corev1.Pod,
	options *metav1.DeleteOptions,
) (runtime.Object, error) {
	budget, err := e.budgetOf(ctx, req, pod)
	if err != nil {
		return nil, err
	}
	pinned := false
	switch {
	case budget == nil:
	case !ready(pod) && sparesUnready(budget):
		// It counts for nothing as it is; it must only not become ready meanwhile.
		pinned = options.Preconditions == nil || options.Preconditions.ResourceVersion == nil
		options = options.DeepCopy()
		pin(options, pod.ResourceVersion)
	default:
		if err := e.charge(ctx, pod, budget.Name, options.DryRun); err != nil {
			return nil, err
		}
	}
	if err := e.evictNow(ctx, r, req, options); err != nil {
		if pinned && apierrors.IsConflict(err) {
			return nil, budgetBusy(budget.Name)
		}
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func ready(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// sparesUnready: the budget lets pods go that are not ready.
func sparesUnready(b *policyv1.PodDisruptionBudget) bool {
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0
}

// budgetOf finds the budget that guards a pod, nil for none.
func (e eviction) budgetOf(ctx context.Context, req *registry.Request, pod *corev1.Pod) (*policyv1.PodDisruptionBudget, error) {
	budgets, err := e.registries.Builtin(policyv1.Resource("poddisruptionbudgets"))
	if err != nil {
		return nil, err
	}
	all, err := budgets.List(ctx, &registry.Request{Version: "v1", Namespace: req.Namespace, User: req.User}, registry.ListOptions{})
	if err != nil {
		return nil, err
	}
	var found *policyv1.PodDisruptionBudget
	for _, item := range all.Items {
		versioned, err := item.Object.Versioned()
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		b, ok := versioned.(*policyv1.PodDisruptionBudget)
		if !ok {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue // one that cannot be read guards nothing, as upstream has it
		}
		if found != nil {
			return nil, apierrors.NewInternalError(errors.New("This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")) //nolint:staticcheck,revive // upstream's words
		}
		found = b
	}
	return found, nil
}

// charge takes one disruption from a budget.
func (e eviction) charge(ctx context.Context, pod *corev1.Pod, name string, dryRun []string) error {
	budgets, err := e.registries.Builtin(policyv1.Resource("poddisruptionbudgets"))
	if err != nil {
		return err
	}
	now := metav1.NewTime(e.now())
	_, err = budgets.Change(ctx, pod.Namespace, name, dryRun, func(o runtime.Object) error {
		b, ok := o.(*policyv1.PodDisruptionBudget)
		if !ok {
			return apierrors.NewInternalError(fmt.Errorf("stored PodDisruptionBudget is a %T", o))
		}
		if err := mayDisrupt(b); err != nil {
			return err
		}
		b.Status.DisruptionsAllowed--
		if b.Status.DisruptionsAllowed == 0 {
			pdbhelper.UpdateDisruptionAllowedCondition(b)
		}
		if b.Status.DisruptedPods == nil {
			b.Status.DisruptedPods = map[string]metav1.Time{}
		}
		// The disruption controller takes the entry out when it has seen the pod go.
		b.Status.DisruptedPods[pod.Name] = now
		return nil
	})
	return err
}

func budgetBusy(name string) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 10)
	return because(err, fmt.Sprintf("The disruption budget %s is still being processed by the server.", name))
}

func because(err *apierrors.StatusError, message string) error {
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes,
		metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: message})
	return err
}

// mayDisrupt refuses in upstream's words, which kubectl drain waits on.
func mayDisrupt(b *policyv1.PodDisruptionBudget) error {
	gr := schema.GroupResource{Group: policyv1.GroupName, Resource: "poddisruptionbudget"}
	switch {
	case b.Status.ObservedGeneration < b.Generation:
		return budgetBusy(b.Name)
	case b.Status.DisruptionsAllowed < 0:
		return because(apierrors.NewForbidden(gr, b.Name, errors.New("pdb disruptions allowed is negative")),
			fmt.Sprintf("The disruption budget %s does not allow evicting pods currently: pdb disruptions allowed is negative", b.Name))
	case len(b.Status.DisruptedPods) > maxDisrupted:
		return because(apierrors.NewForbidden(gr, b.Name,
			errors.New("DisruptedPods map too big - too many evictions not confirmed by PDB controller")),
			fmt.Sprintf("The disruption budget %s does not allow evicting pods currently: too many pending evictions not confirmed by PDB controller", b.Name))
	case b.Status.DisruptionsAllowed > 0:
		return nil
	}
	message := fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", b.Name)
	c := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	refused := c != nil && c.Status == metav1.ConditionFalse && c.Message != ""
	switch {
	case refused && c.Reason == policyv1.SyncFailedReason:
		message += " because it failed sync: " + c.Message
	case b.Status.CurrentHealthy <= b.Status.DesiredHealthy:
		message = fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, b.Status.DesiredHealthy,
			b.Status.CurrentHealthy)
	case refused:
		message += fmt.Sprintf(" (%s): %s", c.Reason, c.Message)
	}
	return because(apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0), message)
}

// evictNow marks the pod as disrupted, so that its owner knows why, and deletes it.
func (e eviction) evictNow(ctx context.Context, r *registry.Registry, req *registry.Request, options *metav1.DeleteOptions) error {
	if len(options.DryRun) == 0 {
		marked, err := r.Change(ctx, req.Namespace, req.Name, nil, func(o runtime.Object) error {
			pod, ok := o.(*corev1.Pod)
			if !ok {
				return apierrors.NewInternalError(fmt.Errorf("stored pod is a %T", o))
			}
			if err := r.CheckPreconditions(pod, options.Preconditions); err != nil {
				return err
			}
			setPodCondition(pod, corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
			}, metav1.NewTime(e.now()))
			return nil
		})
		if err != nil {
			return err
		}
		if options.Preconditions != nil && options.Preconditions.ResourceVersion != nil {
			m, err := marked.Meta()
			if err != nil {
				return apierrors.NewInternalError(err)
			}
			options = options.DeepCopy()
			pin(options, m.GetResourceVersion()) // it was us who moved it
		}
	}
	one := *req
	one.Subresource, one.Options, one.Admitted = "", options, true
	_, err := r.Delete(ctx, &one)
	return err
}
