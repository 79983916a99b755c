// SPDX-License-Identifier: Apache-2.0

package job

import (
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/ptr"
)

// Names, labels and buckets are upstream's, which dashboards ask for; the process serves them.
var (
	syncs = counter("job_syncs_total", metrics.STABLE, "Reconciles of Jobs, by what they did to pods.", "completion_mode", "result", "action")
	took  = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem: subsystem, Name: "job_sync_duration_seconds",
		StabilityLevel: metrics.STABLE, Buckets: metrics.ExponentialBuckets(0.004, 2, 15),
		Help: "How long reconciles of Jobs took.",
	}, []string{"completion_mode", "result", "action"})
	jobsFinished = counter("jobs_finished_total", metrics.STABLE,
		"Jobs that have finished, by the reason.", "completion_mode", "result", "reason")
	podsFinished = counter("job_pods_finished_total", metrics.STABLE,
		"Pods that have ended and are accounted for.", "completion_mode", "result")
	handled = counter("pod_failures_handled_by_failure_policy_total", metrics.BETA,
		"Failed pods, by what a rule of the failure policy did with them.", "action")
	unaccounted = counter("terminated_pods_tracking_finalizer_total", metrics.BETA,
		"Pods that ended and are still to be accounted for (add), and those that no longer are (delete).", "event")
	indexesFinished = counter("job_finished_indexes_total", metrics.ALPHA, "Indexes that have finished.", "status", "backoffLimit")
	podsCreated     = counter("job_pods_creation_total", metrics.ALPHA, "Pods that were made for Jobs, or could not be.", "reason", "status")
)

const subsystem = "job_controller"

// Values of labels.
const (
	reconciling = "reconciling" // earlier changes of pods are not seen yet
	tracking    = "tracking"    // nothing was done to pods
	podsMade    = "pods_created"
	podsRemoved = "pods_deleted"

	succeeded = "succeeded"
	failed    = "failed"
)

func counter(name string, stability metrics.StabilityLevel, help string, labels ...string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: subsystem, Name: name, StabilityLevel: stability, Help: help}, labels)
}

var register = sync.OnceFunc(func() {
	legacyregistry.MustRegister(syncs, took, jobsFinished, podsFinished, handled, unaccounted, indexesFinished, podsCreated)
})

// synced counts a reconcile, with the most that its first plan did to pods.
func synced(job *batchv1.Job, action string, began time.Time, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	syncs.WithLabelValues(mode(job), result, action).Inc()
	took.WithLabelValues(mode(job), result, action).Observe(time.Since(began).Seconds())
}

func mode(job *batchv1.Job) string {
	if indexed(&job.Spec) {
		return string(batchv1.IndexedCompletion)
	}
	return string(batchv1.NonIndexedCompletion)
}

// actionOf names a plan.
func actionOf(p plan) string {
	switch {
	case len(p.remove) > 0:
		return podsRemoved
	case len(p.create) > 0:
		return podsMade
	}
	return tracking
}

// created counts the pods that were made, and those that could not be.
func created(job *batchv1.Job, p plan, made int) {
	why := "new"
	switch again := job.Status.Failed > 0; {
	case again && ptr.Deref(job.Spec.PodReplacementPolicy, batchv1.TerminatingOrFailed) == batchv1.Failed:
		why = "recreate_failed"
	case again || ptr.Deref(job.Status.Terminating, 0) > 0:
		why = "recreate_terminating_or_failed"
	}
	podsCreated.WithLabelValues(why, succeeded).Add(float64(made))
	podsCreated.WithLabelValues(why, failed).Add(float64(len(p.create) - made))
}

// accounted counts what a status that was written says more than the one before.
func accounted(before, after *batchv1.Job, p plan) {
	pods := func(result string, n int32) {
		if n > 0 {
			podsFinished.WithLabelValues(mode(after), result).Add(float64(n))
		}
	}
	pods(succeeded, after.Status.Succeeded-before.Status.Succeeded)
	pods(failed, after.Status.Failed-before.Status.Failed)
	if indexed(&after.Spec) {
		limit := "global"
		if after.Spec.BackoffLimitPerIndex != nil {
			limit = "perIndex"
		}
		if n := after.Status.Succeeded - before.Status.Succeeded; n > 0 {
			indexesFinished.WithLabelValues(succeeded, limit).Add(float64(n))
		}
		if n := lostIndexes(after) - lostIndexes(before); n > 0 {
			indexesFinished.WithLabelValues(failed, limit).Add(float64(n))
		}
	}
	for action, n := range p.handled {
		handled.WithLabelValues(string(action)).Add(float64(n))
	}
	if finished(before) {
		return
	}
	for result, kind := range map[string]batchv1.JobConditionType{succeeded: batchv1.JobComplete, failed: batchv1.JobFailed} {
		if isTrue(after.Status.Conditions, kind) {
			jobsFinished.WithLabelValues(mode(after), result, find(after.Status.Conditions, kind).Reason).Inc()
		}
	}
}

func lostIndexes(job *batchv1.Job) int {
	if job.Status.FailedIndexes == nil {
		return 0
	}
	return parseIndexes(*job.Status.FailedIndexes, int(*job.Spec.Completions)).count()
}

// tracked counts pods that have ended and that this controller has yet to account for.
func tracked(old, current metav1.Object) {
	was, is := endedAndHeld(old), endedAndHeld(current)
	switch {
	case !was && is:
		unaccounted.WithLabelValues("add").Inc()
	case was && !is:
		unaccounted.WithLabelValues("delete").Inc()
	}
}

func endedAndHeld(o metav1.Object) bool {
	pod, ok := o.(*corev1.Pod)
	return ok && pod != nil && hasFinalizer(pod) && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded)
}
