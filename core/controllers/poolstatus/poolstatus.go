// SPDX-License-Identifier: Apache-2.0

// Package poolstatus answers ResourcePoolStatusRequests (KEP-5677): how many devices a driver's
// pools have, and how many of them are allocated, tainted and free, at the moment of the answer.
//
// A request is answered once, and its answer never changes. A pool whose driver is still
// publishing slices is waited for, up to 10 seconds after the request was made; then it is
// reported with what is missing. Requests go an hour after their answer, and a day after they
// were made where none came.
package poolstatus

import (
	"context"
	"fmt"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	alphalisters "k8s.io/client-go/listers/resource/v1alpha3"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// Name is upstream's.
const Name = "resourcepoolstatusrequest-controller"

const (
	answered   = time.Hour        // a request stays so long after its answer
	unanswered = 24 * time.Hour   // and so long without one
	patience   = 10 * time.Second // with drivers that have not published all slices of a pool
	maxReason  = 1024             // bytes of an error that a condition shows
)

// The indexes: slices by their driver, and requests without an answer by the driver they ask about.
const (
	byDriver = "poolstatus-driver"
	waiting  = "poolstatus-waiting"
)

// Controller answers requests, and removes old ones.
type Controller struct {
	client   kubernetes.Interface
	requests alphalisters.ResourcePoolStatusRequestLister
	pending  cache.Indexer // requests
	offers   cache.Indexer // slices
	claims   resourcelisters.ResourceClaimLister
	rules    resourcelisters.DeviceTaintRuleLister
	loop     *controllers.Loop[controllers.Key]
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	requests, stable := env.Informers.Resource().V1alpha3().ResourcePoolStatusRequests(), env.Informers.Resource().V1()
	slices, claims, rules := stable.ResourceSlices(), stable.ResourceClaims(), stable.DeviceTaintRules()
	for _, err := range []error{
		controllers.AddIndex(requests.Informer(), waiting, waitsFor),
		controllers.AddIndex(slices.Informer(), byDriver, driverOf),
	} {
		if err != nil {
			return nil, fmt.Errorf("%s: %w", Name, err)
		}
	}
	register()
	c := &Controller{
		client: env.Client, requests: requests.Lister(), pending: requests.Informer().GetIndexer(),
		offers: slices.Informer().GetIndexer(), claims: claims.Lister(), rules: rules.Lister(),
	}
	c.loop = controllers.NewLoop(env, Name, workers, c.reconcile)
	c.loop.Watch(requests.Informer(), controllers.Changes(func(_, current metav1.Object) {
		if current != nil {
			c.loop.Add(cache.MetaObjectToName(current))
		}
	}))
	c.loop.Watch(slices.Informer(), controllers.EachObject(c.published))
	c.loop.Needs(claims.Informer(), rules.Informer())
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func waitsFor(obj any) ([]string, error) {
	if r, ok := obj.(*resourcev1alpha3.ResourcePoolStatusRequest); ok && r.Status == nil {
		return []string{r.Spec.Driver}, nil
	}
	return nil, nil
}

func driverOf(obj any) ([]string, error) {
	if s, ok := obj.(*resourcev1.ResourceSlice); ok {
		return []string{s.Spec.Driver}, nil
	}
	return nil, nil
}

// published queues the requests that may have waited for a slice.
func (c *Controller) published(obj metav1.Object) {
	slice, ok := obj.(*resourcev1.ResourceSlice)
	if !ok {
		return
	}
	// It fails only without the index.
	all, _ := controllers.Indexed[*resourcev1alpha3.ResourcePoolStatusRequest](c.pending, waiting, slice.Spec.Driver)
	for _, r := range all {
		c.loop.Add(cache.MetaObjectToName(r))
	}
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	r, err := c.requests.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	controllers.About(ctx, "ResourcePoolStatusRequest", r)
	left := time.Until(expiry(r))
	if left <= 0 {
		return c.remove(ctx, r)
	}
	c.loop.AddAfter(key, left)
	if r.Status != nil {
		return nil
	}
	return c.answer(ctx, key, r)
}

// answer writes the status of a request, unless it has to wait.
func (c *Controller) answer(ctx context.Context, key controllers.Key, r *resourcev1alpha3.ResourcePoolStatusRequest) error {
	began := time.Now()
	offers, err := controllers.Indexed[*resourcev1.ResourceSlice](c.offers, byDriver, r.Spec.Driver)
	if err != nil {
		return err
	}
	claims, err := c.claims.List(labels.Everything())
	if err != nil {
		return err
	}
	rules, err := c.rules.List(labels.Everything())
	if err != nil {
		return err
	}
	is := look(&r.Spec, offers, claims, rules)
	if wait := time.Until(r.CreationTimestamp.Add(patience)); is.incomplete && wait > 0 {
		c.loop.AddAfter(key, wait) // a slice brings it back sooner
		return nil
	}
	err = c.write(ctx, r, complete(is, metav1.Now()))
	if apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) {
		// It would be refused each time. The one who asked learns of it, and can ask for less.
		err = c.write(ctx, r, failed(fmt.Sprintf("The answer cannot be stored; name a pool, or a lower limit: %v", err), metav1.Now()))
	}
	observe(r.Spec.Driver, len(offers) > 0, time.Since(began), err)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("answer a request for the status of pools: %w", err)
	}
	controllers.Did(ctx, "answered", "ResourcePoolStatusRequest", nil)
	return nil
}

// write names the version that was read: a status that is there already stays.
func (c *Controller) write(ctx context.Context, r *resourcev1alpha3.ResourcePoolStatusRequest,
	status *resourcev1alpha3.ResourcePoolStatusRequestStatus,
) error {
	out := r.DeepCopy()
	out.Status = status
	_, err := c.client.ResourceV1alpha3().ResourcePoolStatusRequests().UpdateStatus(ctx, out, metav1.UpdateOptions{})
	return err
}

// remove a request that nobody needs any more.
func (c *Controller) remove(ctx context.Context, r *resourcev1alpha3.ResourcePoolStatusRequest) error {
	err := c.client.ResourceV1alpha3().ResourcePoolStatusRequests().Delete(ctx, r.Name, controllers.DeleteExactly(r))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // another request has the name now
	}
	if err != nil {
		return fmt.Errorf("delete an old request for the status of pools: %w", err)
	}
	controllers.Did(ctx, "deleted, because its time is over", "ResourcePoolStatusRequest", nil)
	return nil
}

// expiry is when a request is to be deleted.
func expiry(r *resourcev1alpha3.ResourcePoolStatusRequest) time.Time {
	if r.Status == nil {
		return r.CreationTimestamp.Add(unanswered)
	}
	for i := range r.Status.Conditions {
		switch condition := &r.Status.Conditions[i]; condition.Type {
		case resourcev1alpha3.ResourcePoolStatusRequestConditionComplete, resourcev1alpha3.ResourcePoolStatusRequestConditionFailed:
			return condition.LastTransitionTime.Add(answered)
		}
	}
	return r.CreationTimestamp.Add(answered)
}

// complete is the status of an answer.
func complete(a answer, now metav1.Time) *resourcev1alpha3.ResourcePoolStatusRequestStatus {
	flawed := 0
	for i := range a.pools {
		if a.pools[i].ValidationError != nil {
			flawed++
		}
	}
	message := fmt.Sprintf("Calculated status for %d pools", len(a.pools))
	if flawed > 0 {
		message += fmt.Sprintf(" (%d incomplete)", flawed)
	}
	return status(a, metav1.Condition{
		Type: resourcev1alpha3.ResourcePoolStatusRequestConditionComplete, Status: metav1.ConditionTrue,
		LastTransitionTime: now, Reason: "CalculationComplete", Message: message,
	})
}

// failed is the status of a request that has no answer.
func failed(message string, now metav1.Time) *resourcev1alpha3.ResourcePoolStatusRequestStatus {
	return status(answer{}, metav1.Condition{
		Type: resourcev1alpha3.ResourcePoolStatusRequestConditionFailed, Status: metav1.ConditionTrue,
		LastTransitionTime: now, Reason: "CalculationFailed", Message: short(message, maxReason),
	})
}

func status(a answer, condition metav1.Condition) *resourcev1alpha3.ResourcePoolStatusRequestStatus {
	return &resourcev1alpha3.ResourcePoolStatusRequestStatus{PoolCount: &a.count, Pools: a.pools, Conditions: []metav1.Condition{condition}}
}
