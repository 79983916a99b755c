// SPDX-License-Identifier: Apache-2.0

// Package disruption keeps the status of PodDisruptionBudgets: how many pods are
// healthy, how many there should be, and how many evictions that leaves room for. The
// server grants or refuses evictions by it.
package disruption

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	helper "k8s.io/component-helpers/apps/poddisruptionbudget"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/run"
)

const (
	// evictionTimeout is how long an eviction that the server granted counts as
	// lost before its pod shows a deletion timestamp.
	evictionTimeout = 2 * time.Minute
	// staleTarget is how long a pod may be marked for disruption without being deleted.
	staleTarget = 2 * time.Minute
)

// Controller keeps budgets.
type Controller struct {
	client   kubernetes.Interface
	dynamic  dynamic.Interface
	recorder record.EventRecorder
	budgets  policylisters.PodDisruptionBudgetLister
	pods     corelisters.PodLister
	sets     appslisters.ReplicaSetLister
	loop     *controllers.Loop[controllers.Key]
	stale    *controllers.Loop[controllers.Key]
}

// New makes the controller. The dynamic client reads the scale of controllers of
// any kind.
func New(env controllers.Env, workers int, dyn dynamic.Interface) (*Controller, error) {
	core, budgets := env.Informers.Core().V1(), env.Informers.Policy().V1().PodDisruptionBudgets()
	sets := env.Informers.Apps().V1().ReplicaSets()
	c := &Controller{
		client: env.Client, dynamic: dyn, recorder: env.Recorder("controllermanager"),
		budgets: budgets.Lister(), pods: core.Pods().Lister(), sets: sets.Lister(),
	}
	c.loop = controllers.NewLoop(env, "disruption-controller", workers, c.reconcile)
	c.stale = controllers.NewLoop(env, "disruption-controller-stale-targets", 1, c.clearStale)
	c.loop.Watch(budgets.Informer(), controllers.KeyHandler(c.loop))
	c.loop.Watch(core.Pods().Informer(), controllers.Changes(func(old, current metav1.Object) {
		for _, obj := range []metav1.Object{old, current} {
			if pod, ok := obj.(*corev1.Pod); ok {
				c.queueBudgets(pod)
			}
		}
		if pod, ok := current.(*corev1.Pod); ok {
			if wait, targeted := staleIn(pod); targeted {
				c.stale.AddAfter(cache.MetaObjectToName(pod), wait)
			}
		}
	}))
	// A ReplicaSet's size counts; others are asked for when a pod changes.
	c.loop.Needs(sets.Informer())
	c.stale.Needs(core.Pods().Informer())
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	return run.Together(ctx, c.loop.Run, c.stale.Run)
}

func (c *Controller) queueBudgets(pod *corev1.Pod) {
	budgets, err := c.budgets.PodDisruptionBudgets(pod.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, b := range budgets {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			c.loop.Add(cache.MetaObjectToName(b))
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	budget, err := c.budgets.PodDisruptionBudgets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	controllers.About(ctx, "PodDisruptionBudget", budget)
	next, err := c.status(ctx, key, budget)
	if err != nil {
		// Rather no eviction than one too many.
		next = budget.DeepCopy()
		next.Status.DisruptionsAllowed = 0
		meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
			Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
			Message: err.Error(), ObservedGeneration: next.Status.ObservedGeneration,
		})
	}
	if equality.Semantic.DeepEqual(next.Status, budget.Status) {
		return err
	}
	if _, writeErr := c.client.PolicyV1().PodDisruptionBudgets(key.Namespace).UpdateStatus(ctx, next,
		metav1.UpdateOptions{}); writeErr != nil {
		if apierrors.IsNotFound(writeErr) {
			return nil
		}
		return fmt.Errorf("updating status: %w", writeErr)
	}
	controllers.Did(ctx, "status updated", "PodDisruptionBudget", nil)
	return err
}

func (c *Controller) status(ctx context.Context, key controllers.Key,
	budget *policyv1.PodDisruptionBudget,
) (*policyv1.PodDisruptionBudget, error) {
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		return nil, err
	}
	pods, err := c.pods.Pods(key.Namespace).List(selector)
	if err != nil {
		c.recorder.Eventf(budget, corev1.EventTypeWarning, "NoPods", "Failed to get pods: %v", err)
		return nil, err
	}
	if len(pods) == 0 {
		c.recorder.Event(budget, corev1.EventTypeNormal, "NoPods", "No matching pods found")
	}
	expected, desired, err := c.expected(ctx, budget, pods)
	if err != nil {
		c.recorder.Eventf(budget, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed",
			"Failed to calculate the number of expected pods: %v", err)
		return nil, err
	}
	now := time.Now()
	disrupted, recheck := c.pending(budget, pods, now)
	if recheck > 0 {
		c.loop.AddAfter(key, recheck)
	}
	healthy := countHealthy(pods, disrupted)
	next := budget.DeepCopy()
	next.Status = policyv1.PodDisruptionBudgetStatus{
		CurrentHealthy: healthy, DesiredHealthy: desired, ExpectedPods: expected, DisruptedPods: disrupted,
		ObservedGeneration: budget.Generation, Conditions: next.Status.Conditions,
	}
	if expected > 0 {
		next.Status.DisruptionsAllowed = max(healthy-desired, 0)
	}
	helper.UpdateDisruptionAllowedCondition(next)
	return next, nil
}

// pending are the evictions that the server granted and that no deletion timestamp
// shows yet.
func (c *Controller) pending(budget *policyv1.PodDisruptionBudget, pods []*corev1.Pod,
	now time.Time,
) (map[string]metav1.Time, time.Duration) {
	if len(budget.Status.DisruptedPods) == 0 {
		return nil, 0
	}
	disrupted, recheck := map[string]metav1.Time{}, time.Duration(0)
	for _, pod := range pods {
		at, listed := budget.Status.DisruptedPods[pod.Name]
		if !listed || pod.DeletionTimestamp != nil {
			continue
		}
		left := at.Add(evictionTimeout).Sub(now)
		if left < 0 {
			c.recorder.Eventf(pod, corev1.EventTypeWarning, "NotDeleted", "Pod was expected by PDB %s/%s to be deleted but it wasn't",
				budget.Namespace, budget.Name)
			continue
		}
		disrupted[pod.Name] = at
		if recheck == 0 || left < recheck {
			recheck = left + time.Second
		}
	}
	return disrupted, recheck
}

func countHealthy(pods []*corev1.Pod, disrupted map[string]metav1.Time) int32 {
	var n int32
	for _, pod := range pods {
		if _, leaving := disrupted[pod.Name]; !leaving && pod.DeletionTimestamp == nil && controllers.PodReady(pod) {
			n++
		}
	}
	return n
}

// expected is how many pods there should be, and how many of them healthy.
func (c *Controller) expected(ctx context.Context, budget *policyv1.PodDisruptionBudget,
	pods []*corev1.Pod,
) (expected, desired int32, err error) {
	switch least := budget.Spec.MinAvailable; {
	case budget.Spec.MaxUnavailable != nil:
		expected, err = c.scale(ctx, budget, pods)
		if err != nil {
			return 0, 0, err
		}
		most, err := intstr.GetScaledValueFromIntOrPercent(budget.Spec.MaxUnavailable, int(expected), true)
		return expected, max(expected-int32(most), 0), err
	case least == nil:
		return 0, 0, nil
	case least.Type == intstr.Int:
		return int32(len(pods)), least.IntVal, nil
	default:
		expected, err = c.scale(ctx, budget, pods)
		if err != nil {
			return 0, 0, err
		}
		n, err := intstr.GetScaledValueFromIntOrPercent(least, int(expected), true)
		return expected, int32(n), err
	}
}

// scale adds up the sizes of everything that controls one of the pods.
func (c *Controller) scale(ctx context.Context, budget *policyv1.PodDisruptionBudget, pods []*corev1.Pod) (int32, error) {
	sizes := map[types.UID]int32{}
	asked := map[types.UID]bool{}
	unmanaged := false
	for _, pod := range pods {
		ref := metav1.GetControllerOfNoCopy(pod)
		if ref == nil {
			unmanaged = true
			continue
		}
		if asked[ref.UID] {
			continue
		}
		asked[ref.UID] = true
		uid, size, err := c.sizeOf(ctx, pod.Namespace, *ref)
		if err != nil {
			return 0, fmt.Errorf("found no controllers for pod %q: %w", pod.Name, err)
		}
		sizes[uid] = size
	}
	if unmanaged {
		c.recorder.Eventf(budget, corev1.EventTypeWarning,
			"UnmanagedPods", "Pods selected by this PodDisruptionBudget (selector: %v) were found "+
				"to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. "+
				"To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.", budget.Spec.Selector)
	}
	var total int32
	for _, size := range sizes {
		total += size
	}
	return total, nil
}

// sizeOf is the size of a controller, or of the Deployment above a ReplicaSet.
func (c *Controller) sizeOf(ctx context.Context, namespace string, ref metav1.OwnerReference) (types.UID, int32, error) {
	if ref.Kind == "ReplicaSet" {
		rs, err := c.sets.ReplicaSets(namespace).Get(ref.Name)
		if apierrors.IsNotFound(err) || (err == nil && rs.UID != ref.UID) {
			return ref.UID, 0, fmt.Errorf("replica set %s is gone: %w", ref.Name, controllers.ErrNotYet)
		}
		if err != nil {
			return ref.UID, 0, err
		}
		above := metav1.GetControllerOfNoCopy(rs)
		if above == nil {
			return rs.UID, *rs.Spec.Replicas, nil
		}
		ref = *above
	}
	size, err := c.askScale(ctx, namespace, ref)
	return ref.UID, size, err
}

// askScale reads the scale subresource, which is the same for every kind.
func (c *Controller) askScale(ctx context.Context, namespace string, ref metav1.OwnerReference) (int32, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return 0, err
	}
	list, err := c.client.Discovery().ServerResourcesForGroupVersion(ref.APIVersion)
	if err != nil {
		return 0, fmt.Errorf("looking for kind %s: %w", ref.Kind, err)
	}
	for _, r := range list.APIResources {
		if r.Kind != ref.Kind {
			continue
		}
		scale, err := c.dynamic.Resource(gv.WithResource(r.Name)).Namespace(namespace).Get(ctx, ref.Name, metav1.GetOptions{}, "scale")
		if apierrors.IsNotFound(err) {
			// It is being deleted, and its pods are next.
			return 0, fmt.Errorf("%s %s is gone: %w", ref.Kind, ref.Name, controllers.ErrNotYet)
		}
		if err != nil {
			return 0, fmt.Errorf("reading the scale of %s %s: %w", ref.Kind, ref.Name, err)
		}
		n, _, err := unstructured.NestedInt64(scale.Object, "spec", "replicas")
		return int32(n), err
	}
	return 0, fmt.Errorf("the server has no kind %s in %s", ref.Kind, ref.APIVersion)
}

// staleIn is how long until a pod's mark as a target of disruption is taken back.
func staleIn(pod *corev1.Pod) (time.Duration, bool) {
	c := controllers.PodCondition(pod, corev1.DisruptionTarget)
	if c == nil || c.Status != corev1.ConditionTrue || c.Reason == corev1.PodReasonTerminationByKubelet ||
		pod.DeletionTimestamp != nil || controllers.PodFinished(pod) {
		return 0, false
	}
	return max(time.Until(c.LastTransitionTime.Add(staleTarget)), 0), true
}

func (c *Controller) clearStale(ctx context.Context, key controllers.Key) error {
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	wait, targeted := staleIn(pod)
	if !targeted {
		return nil
	}
	if wait > 0 {
		c.stale.AddAfter(key, wait)
		return nil
	}
	return controllers.PatchPodStatus(ctx, c.client, pod, "", corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now(), ObservedGeneration: pod.Generation,
	})
}
