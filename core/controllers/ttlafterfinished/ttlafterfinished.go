// SPDX-License-Identifier: Apache-2.0

// Package ttlafterfinished deletes Jobs when they have been finished for as long as
// their ttlSecondsAfterFinished says.
package ttlafterfinished

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// Controller deletes Jobs.
type Controller struct {
	client kubernetes.Interface
	jobs   batchlisters.JobLister
	loop   *controllers.Loop[controllers.Key]
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	jobs := env.Informers.Batch().V1().Jobs()
	c := &Controller{client: env.Client, jobs: jobs.Lister()}
	c.loop = controllers.NewLoop(env, "ttl-after-finished-controller", workers, c.reconcile)
	c.loop.Watch(jobs.Informer(), controllers.Changes(func(_, current metav1.Object) {
		if job, ok := current.(*batchv1.Job); ok {
			if _, waits := expiry(job); waits {
				c.loop.Add(cache.MetaObjectToName(job))
			}
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// expiry is when a Job is to be deleted; ok is false if it isn't.
func expiry(job *batchv1.Job) (at time.Time, ok bool) {
	if job.Spec.TTLSecondsAfterFinished == nil || job.DeletionTimestamp != nil {
		return time.Time{}, false
	}
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Add(time.Duration(*job.Spec.TTLSecondsAfterFinished) * time.Second), true
		}
	}
	return time.Time{}, false
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	job, err := c.jobs.Jobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if again, err := c.wait(key, job); again || err != nil {
		return err
	}
	// The TTL may have been raised a moment ago: what the server has counts.
	fresh, err := c.client.BatchV1().Jobs(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if again, err := c.wait(key, fresh); again || err != nil {
		return err
	}
	controllers.About(ctx, "Job", fresh)
	opts := controllers.DeleteExactly(fresh)
	foreground := metav1.DeletePropagationForeground
	opts.PropagationPolicy = &foreground
	opts.Preconditions.ResourceVersion = &fresh.ResourceVersion
	err = c.client.BatchV1().Jobs(key.Namespace).Delete(ctx, key.Name, opts)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting a job that has finished long ago: %w", err)
	}
	controllers.Did(ctx, "deleted, because its time after finishing is over", "Job", nil)
	return nil
}

func (c *Controller) wait(key controllers.Key, job *batchv1.Job) (again bool, err error) {
	at, ok := expiry(job)
	if !ok {
		return true, nil
	}
	if left := time.Until(at); left > 0 {
		c.loop.AddAfter(key, left)
		return true, nil
	}
	return false, nil
}
