// SPDX-License-Identifier: Apache-2.0

// Package cronjob starts a Job whenever a CronJob's schedule says, and keeps as many
// finished ones as its limits say.
//
// A Job's name follows from its scheduled time, so one is never started twice for
// the same time.
package cronjob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
)

var cronJobKind = schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "CronJob"}

// Controller reconciles CronJobs.
type Controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	crons    batchlisters.CronJobLister
	jobs     cache.Indexer
	written  *controllers.Written
	loop     *controllers.Loop[controllers.Key]
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	register()
	batch := env.Informers.Batch().V1()
	jobs := batch.Jobs().Informer()
	if err := controllers.IndexByController(jobs); err != nil {
		return nil, fmt.Errorf("cronjob-controller: indexing by controller: %w", err)
	}
	c := &Controller{
		client: env.Client, recorder: env.Recorder("cronjob-controller"),
		crons: batch.CronJobs().Lister(), jobs: jobs.GetIndexer(), written: controllers.NewWritten(),
	}
	c.loop = controllers.NewLoop(env, "cronjob-controller", workers, c.reconcile)
	c.loop.Watch(batch.CronJobs().Informer(), controllers.Changes(func(old, current metav1.Object) {
		if current == nil {
			c.written.Forget(old.GetUID())
			current = old
		}
		c.loop.Add(cache.MetaObjectToName(current))
	}))
	c.loop.Watch(jobs, controllers.EachObject(func(job metav1.Object) {
		if ref := metav1.GetControllerOfNoCopy(job); ref != nil && ref.Kind == cronJobKind.Kind {
			c.loop.Add(controllers.Key{Namespace: job.GetNamespace(), Name: ref.Name})
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func ended(job *batchv1.Job) batchv1.JobConditionType {
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	cached, err := c.crons.CronJobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !c.written.Seen(cached) {
		return controllers.ErrStale
	}
	controllers.About(ctx, cronJobKind.Kind, cached)
	job := cached.DeepCopy()
	children, err := controllers.Controlled[*batchv1.Job](c.jobs, job, false)
	if err != nil {
		return err
	}
	failure := c.follow(ctx, job, children)
	if failure == nil {
		failure = c.cleanUp(ctx, job, children)
	}
	if failure == nil && job.DeletionTimestamp == nil {
		failure = c.schedule(ctx, key, job)
	}
	if equality.Semantic.DeepEqual(job.Status, cached.Status) {
		return failure
	}
	updated, err := c.client.BatchV1().CronJobs(key.Namespace).UpdateStatus(ctx, job, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return errors.Join(failure, fmt.Errorf("updating status: %w", err))
	}
	c.written.Record(updated)
	controllers.Did(ctx, "status updated", cronJobKind.Kind, nil)
	return failure
}

func forget(job *batchv1.CronJob, uid types.UID) {
	job.Status.Active = slices.DeleteFunc(job.Status.Active, func(r corev1.ObjectReference) bool { return r.UID == uid })
}

// follow brings the list of active Jobs up to date.
func (c *Controller) follow(ctx context.Context, job *batchv1.CronJob, children []*batchv1.Job) error {
	there := map[types.UID]bool{}
	for _, child := range children {
		there[child.UID] = true
		active := slices.ContainsFunc(job.Status.Active, func(r corev1.ObjectReference) bool { return r.UID == child.UID })
		end := ended(child)
		switch {
		case end == "" && !active && child.DeletionTimestamp == nil:
			// Its creation succeeded and the status was not written: take it in.
			job.Status.Active = append(job.Status.Active, reference(child))
		case end != "" && active:
			forget(job, child.UID)
			c.recorder.Eventf(job, corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", child.Name, end)
		}
		done := child.Status.CompletionTime
		if end == batchv1.JobComplete && done != nil && (job.Status.LastSuccessfulTime == nil || done.After(job.Status.LastSuccessfulTime.Time)) {
			job.Status.LastSuccessfulTime = done
		}
	}
	for _, ref := range slices.Clone(job.Status.Active) {
		if there[ref.UID] {
			continue
		}
		// The cache may not have it yet.
		live, err := c.client.BatchV1().Jobs(job.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("looking for active job %s: %w", ref.Name, err)
		}
		if err != nil || live.UID != ref.UID {
			c.recorder.Eventf(job, corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", ref.Name)
			forget(job, ref.UID)
		}
	}
	return nil
}

func reference(job *batchv1.Job) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: "batch/v1", Kind: "Job", Namespace: job.Namespace, Name: job.Name, UID: job.UID, ResourceVersion: job.ResourceVersion,
	}
}

// cleanUp deletes finished Jobs beyond the limits, oldest first.
func (c *Controller) cleanUp(ctx context.Context, job *batchv1.CronJob, children []*batchv1.Job) error {
	for kind, limit := range map[batchv1.JobConditionType]*int32{
		batchv1.JobComplete: job.Spec.SuccessfulJobsHistoryLimit, batchv1.JobFailed: job.Spec.FailedJobsHistoryLimit,
	} {
		if limit == nil {
			continue
		}
		past := controllers.Filter(children, func(j *batchv1.Job) bool { return ended(j) == kind && j.DeletionTimestamp == nil })
		slices.SortFunc(past, byStart)
		for _, old := range past[:max(len(past)-int(*limit), 0)] {
			if err := c.remove(ctx, job, old.Name, old.UID); err != nil {
				return err
			}
		}
	}
	return nil
}

func byStart(a, b *batchv1.Job) int {
	at := func(j *batchv1.Job) time.Time {
		if j.Status.StartTime == nil {
			return j.CreationTimestamp.Time
		}
		return j.Status.StartTime.Time
	}
	return cmp.Or(at(a).Compare(at(b)), cmp.Compare(a.Name, b.Name))
}

func (c *Controller) remove(ctx context.Context, job *batchv1.CronJob, name string, uid types.UID) error {
	background := metav1.DeletePropagationBackground
	err := c.client.BatchV1().Jobs(job.Namespace).Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &uid},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		c.recorder.Eventf(job, corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
		return fmt.Errorf("deleting job %s: %w", name, err)
	}
	forget(job, uid)
	c.recorder.Eventf(job, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", name)
	controllers.Did(ctx, "deleted job "+name, cronJobKind.Kind, nil)
	return nil
}

// schedule starts what is due, and sees to it that the next time is not missed.
func (c *Controller) schedule(ctx context.Context, key controllers.Key, job *batchv1.CronJob) error {
	if job.Spec.TimeZone != nil {
		if _, err := time.LoadLocation(*job.Spec.TimeZone); err != nil {
			c.recorder.Eventf(job, corev1.EventTypeWarning, "UnknownTimeZone", "invalid timeZone: %q: %s", *job.Spec.TimeZone, err)
			return nil
		}
	}
	if ptr.Deref(job.Spec.Suspend, false) {
		return nil
	}
	if strings.Contains(job.Spec.Schedule, "TZ") {
		c.recorder.Eventf(job, corev1.EventTypeWarning, "UnsupportedSchedule", "CRON_TZ or TZ used in schedule %q is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", job.Spec.Schedule)
	}
	s, err := parse(&job.Spec)
	if err != nil {
		c.recorder.Eventf(job, corev1.EventTypeWarning, "UnparseableSchedule", "unparseable schedule: %q : %s", job.Spec.Schedule, err)
		return nil
	}
	now := time.Now()
	next, err := due(job, s, now)
	if err != nil {
		c.recorder.Eventf(job, corev1.EventTypeWarning, "InvalidSchedule", "invalid schedule: %s : %s", job.Spec.Schedule, err)
		return nil
	}
	if wait := untilNext(s, now); wait > 0 {
		c.loop.AddAfter(key, wait)
	}
	if next.at.IsZero() {
		return nil
	}
	if next.many {
		c.recorder.Event(job, corev1.EventTypeWarning, "TooManyMissedTimes", "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	return c.start(ctx, job, next.at, now)
}

func (c *Controller) start(ctx context.Context, job *batchv1.CronJob, at, now time.Time) error {
	name := fmt.Sprintf("%s-%d", job.Name, at.Unix()/60)
	deadline := job.Spec.StartingDeadlineSeconds
	switch {
	case deadline != nil && at.Add(time.Duration(*deadline)*time.Second).Before(now):
		c.recorder.Eventf(job, corev1.EventTypeWarning, "MissSchedule", "Missed scheduled time to start a job: %s",
			at.UTC().Format(time.RFC1123Z))
		return nil
	case slices.ContainsFunc(job.Status.Active, func(r corev1.ObjectReference) bool { return r.Name == name }):
		// It was started and the status not written.
		job.Status.LastScheduleTime = &metav1.Time{Time: at}
		return nil
	case job.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(job.Status.Active) > 0:
		c.recorder.Event(job, corev1.EventTypeNormal, "JobAlreadyActive", "Not starting job because prior execution is running and concurrency policy is Forbid")
		return nil
	case job.Spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		for _, ref := range slices.Clone(job.Status.Active) {
			if err := c.remove(ctx, job, ref.Name, ref.UID); err != nil {
				return err
			}
		}
	}
	return c.create(ctx, job, name, at)
}

func (c *Controller) create(ctx context.Context, job *batchv1.CronJob, name string, at time.Time) error {
	zone, err := time.LoadLocation(ptr.Deref(job.Spec.TimeZone, ""))
	if err != nil {
		return err
	}
	template := job.Spec.JobTemplate.DeepCopy()
	if template.Annotations == nil {
		template.Annotations = map[string]string{}
	}
	template.Annotations[batchv1.CronJobScheduledTimestampAnnotation] = at.In(zone).Format(time.RFC3339)
	created, err := c.client.BatchV1().Jobs(job.Namespace).Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: job.Namespace, Labels: template.Labels, Annotations: template.Annotations,
			CreationTimestamp: metav1.NewTime(at),
			OwnerReferences:   []metav1.OwnerReference{*metav1.NewControllerRef(job, cronJobKind)},
		},
		Spec: template.Spec,
	}, metav1.CreateOptions{})
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsAlreadyExists(err):
		there, err := c.client.BatchV1().Jobs(job.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !metav1.IsControlledBy(there, job) {
			return nil // somebody else's; this time is lost
		}
		created = there
	case err != nil:
		c.recorder.Eventf(job, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return fmt.Errorf("creating job %s: %w", name, err)
	default:
		skew.Observe(created.CreationTimestamp.Sub(at).Seconds())
		c.recorder.Eventf(job, corev1.EventTypeNormal, "SuccessfulCreate", "Created job %v", created.Name)
		controllers.Did(ctx, "created", "Job", created)
	}
	if ended(created) == "" {
		forget(job, created.UID)
		job.Status.Active = append(job.Status.Active, reference(created))
	}
	job.Status.LastScheduleTime = &metav1.Time{Time: at}
	return nil
}
