// SPDX-License-Identifier: Apache-2.0

// Package job runs Jobs to completion: pods side by side up to the parallelism,
// replaced with backoff when they fail, until enough have succeeded or too many
// have failed.
//
// Every pod carries a finalizer until the Job's status accounts for it, so no end of
// a pod is missed or counted twice, whatever happens in between. The decisions are
// pure code (decide); conditions, reasons and messages are upstream's.
package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/run"
)

var jobKind = schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"}

const (
	indexEnv = "JOB_COMPLETION_INDEX"
	// maxGeneratedPrefix is what a generated name leaves of its prefix.
	maxGeneratedPrefix = 58
)

// Controller reconciles Jobs.
type Controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	writer   controllers.PodWriter
	jobs     batchlisters.JobLister
	podList  corelisters.PodLister
	pods     cache.Indexer
	expected *controllers.Expectations
	written  *controllers.Written
	vanished *controllers.Vanished
	loop     *controllers.Loop[controllers.Key]
	orphans  *controllers.Loop[controllers.Key]

	mu       sync.Mutex
	backoffs map[types.UID]backoff
	released map[types.UID]map[types.UID]bool // by job: finalizers removed, not yet seen
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	jobs, pods := env.Informers.Batch().V1().Jobs(), env.Informers.Core().V1().Pods()
	if err := controllers.IndexByController(pods.Informer()); err != nil {
		return nil, fmt.Errorf("job-controller: indexing by controller: %w", err)
	}
	register()
	recorder := env.Recorder("job-controller")
	c := &Controller{
		client: env.Client, recorder: recorder, writer: controllers.PodWriter{Client: env.Client, Recorder: recorder},
		jobs: jobs.Lister(), podList: pods.Lister(), pods: pods.Informer().GetIndexer(),
		expected: controllers.NewExpectations(), written: controllers.NewWritten(), vanished: controllers.NewVanished(),
		backoffs: map[types.UID]backoff{}, released: map[types.UID]map[types.UID]bool{},
	}
	c.loop = controllers.NewLoop(env, "job-controller", workers, c.reconcile)
	c.orphans = controllers.NewLoop(env, "job-controller-orphans", 1, c.orphan)
	c.loop.Watch(jobs.Informer(), controllers.Changes(c.jobChanged))
	c.loop.Watch(pods.Informer(), controllers.Changes(c.podChanged))
	c.orphans.Needs(jobs.Informer(), pods.Informer())
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	return run.Together(ctx, c.loop.Run, c.orphans.Run)
}

func (c *Controller) jobChanged(old, current metav1.Object) {
	if current != nil {
		c.loop.Add(cache.MetaObjectToName(current))
		return
	}
	c.expected.Forget(cache.MetaObjectToName(old))
	c.written.Forget(old.GetUID())
	c.mu.Lock()
	delete(c.backoffs, old.GetUID())
	delete(c.released, old.GetUID())
	c.mu.Unlock()
	// Its pods are the garbage collector's now, but only we take the finalizer off.
	pods, err := controllers.Controlled[*corev1.Pod](c.pods, old, false)
	if err != nil {
		return
	}
	for _, pod := range pods {
		c.orphans.Add(cache.MetaObjectToName(pod))
	}
}

func (c *Controller) podChanged(old, current metav1.Object) {
	tracked(old, current)
	before, _ := old.(*corev1.Pod)
	pod, _ := current.(*corev1.Pod)
	if before != nil {
		if key, job, ok := c.ownerOf(before); ok {
			if pod == nil || !hasFinalizer(pod) {
				c.forgetReleased(job.UID, before.UID)
			}
			if pod == nil || pod.DeletionTimestamp != nil {
				c.expected.Deleted(key, before.UID)
				c.vanished.Note(key)
			}
			c.loop.Add(key)
		}
	}
	if pod == nil {
		return
	}
	key, _, ok := c.ownerOf(pod)
	switch ref := metav1.GetControllerOfNoCopy(pod); {
	case ok && before == nil:
		c.expected.Created(key, 1)
		if pod.DeletionTimestamp != nil {
			c.expected.Deleted(key, pod.UID)
			c.vanished.Note(key)
		}
		c.loop.Add(key)
	case ok:
		c.loop.Add(key)
	case hasFinalizer(pod) && (ref == nil || ref.Kind == jobKind.Kind):
		c.orphans.Add(cache.MetaObjectToName(pod))
		fallthrough
	case ref == nil && (before == nil || !labels.Equals(before.Labels, pod.Labels) || metav1.GetControllerOfNoCopy(before) != nil):
		c.queueAdopters(pod)
	}
}

func (c *Controller) ownerOf(pod *corev1.Pod) (controllers.Key, *batchv1.Job, bool) {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil || ref.Kind != jobKind.Kind {
		return controllers.Key{}, nil, false
	}
	job, err := c.jobs.Jobs(pod.Namespace).Get(ref.Name)
	if err != nil || job.UID != ref.UID {
		return controllers.Key{}, nil, false
	}
	return cache.MetaObjectToName(job), job, true
}

func (c *Controller) queueAdopters(pod *corev1.Pod) {
	jobs, err := c.jobs.Jobs(pod.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	controllers.Adopters(c.loop, jobs, func(j *batchv1.Job) *metav1.LabelSelector { return j.Spec.Selector }, pod)
}

func (c *Controller) forgetReleased(job, pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.released[job], pod)
}

func (c *Controller) markReleased(job, pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.released[job] == nil {
		c.released[job] = map[types.UID]bool{}
	}
	c.released[job][pod] = true
}

func managedElsewhere(job *batchv1.Job) bool {
	return job.Spec.ManagedBy != nil && *job.Spec.ManagedBy != batchv1.JobControllerName
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	job, err := c.jobs.Jobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.expected.Forget(key)
		c.vanished.Forget(key)
		return nil
	}
	if err != nil || managedElsewhere(job) {
		return err
	}
	controllers.About(ctx, jobKind.Kind, job)
	if err := c.written.Sure(ctx, job, c.fresh(job)); err != nil {
		return err
	}
	if mode := job.Spec.CompletionMode; mode != nil && *mode != batchv1.NonIndexedCompletion && *mode != batchv1.IndexedCompletion {
		c.recorder.Event(job, corev1.EventTypeWarning, "UnknownCompletionMode", "Skipped Job sync because completion mode is unknown")
		return nil
	}
	// Both are read before the pods: what the pods' events take away from them, the
	// pods show. The other way round a pod would be read with its finalizer, and be
	// counted again after an event has said that the finalizer is gone.
	left := c.expected.Left(key)
	released, backoff := c.memory(job)
	pods, err := c.claim(ctx, job)
	if err != nil {
		return err
	}
	if finished(job) {
		return c.release(ctx, job, controllers.Filter(pods, hasFinalizer))
	}
	if left > 0 {
		c.loop.AddAfter(key, left)
	}
	in := situation{
		job: job, pods: pods, settled: left == 0, manage: true, released: released, removed: map[types.UID]bool{}, backoff: backoff,
		now: time.Now(),
	}
	action, err := c.advance(ctx, key, in)
	synced(job, action, in.now, err)
	return err
}

// advance plans and acts; and once finalizers were removed, accounts for that at
// once instead of waiting for the watch to tell. It says what it did, as metrics have it.
func (c *Controller) advance(ctx context.Context, key controllers.Key, in situation) (action string, failure error) {
	job := in.job
	action = reconciling
	for {
		p := decide(in)
		if in.manage {
			if in.settled {
				action = actionOf(p)
			}
			made, err := c.actOnPods(ctx, key, job, p)
			if err != nil && len(p.remove) > 0 {
				return action, err // what the plan says of the status is not true yet
			}
			if err != nil && p.status != nil {
				p.status.Status.Active -= int32(len(p.create) - made)
			}
			failure = err
		}
		updated, err := c.writeStatus(ctx, in.job, p)
		if err != nil {
			return action, errors.Join(failure, err)
		}
		if p.wait > 0 {
			c.loop.AddAfter(key, p.wait)
		}
		for _, pod := range p.remove {
			in.removed[pod.UID] = true
			in.released[pod.UID] = in.released[pod.UID] || p.forget
		}
		if len(p.release) == 0 {
			return action, failure
		}
		if err := c.release(ctx, job, p.release); err != nil {
			return action, errors.Join(failure, err)
		}
		for _, pod := range p.release {
			in.released[pod.UID] = true
		}
		in.job, in.manage, in.backoff = updated, false, p.backoff
	}
}

// memory is what the caches may not show yet: the released pods, as a copy, and the
// backoff.
func (c *Controller) memory(job *batchv1.Job) (map[types.UID]bool, backoff) {
	c.mu.Lock()
	defer c.mu.Unlock()
	released := map[types.UID]bool{}
	maps.Copy(released, c.released[job.UID])
	return released, c.backoffs[job.UID]
}

func (c *Controller) claim(ctx context.Context, job *batchv1.Job) ([]*corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(job.Spec.Selector)
	if err != nil || selector.Empty() {
		return nil, err
	}
	all, err := controllers.Controlled[*corev1.Pod](c.pods, job, true)
	if err != nil {
		return nil, err
	}
	pods, err := controllers.ClaimAll(ctx, &controllers.Claim{
		Owner: job, Kind: jobKind, Selector: selector, Patch: c.writer.Patch, Finalizers: []string{batchv1.JobTrackingFinalizer},
		Fresh: c.fresh(job),
	}, all)
	for i, pod := range pods {
		if !metav1.IsControlledBy(pod, job) && !hasFinalizer(pod) {
			pods[i] = pod.DeepCopy() // adopted just now: it has the finalizer
			pods[i].Finalizers = append(pods[i].Finalizers, batchv1.JobTrackingFinalizer)
		}
	}
	return pods, err
}

func (c *Controller) fresh(job *batchv1.Job) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) {
		return c.client.BatchV1().Jobs(job.Namespace).Get(ctx, job.Name, metav1.GetOptions{})
	}
}

func (c *Controller) writeStatus(ctx context.Context, job *batchv1.Job, p plan) (*batchv1.Job, error) {
	c.mu.Lock()
	c.backoffs[job.UID] = p.backoff
	c.mu.Unlock()
	if p.status == nil {
		return job, nil
	}
	updated, err := c.client.BatchV1().Jobs(job.Namespace).UpdateStatus(ctx, p.status, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return job, nil
	}
	if err != nil {
		c.written.Failed(job, err)
		return nil, fmt.Errorf("updating status: %w", err)
	}
	c.written.Record(updated)
	accounted(job, updated, p)
	controllers.Did(ctx, "status updated", jobKind.Kind, nil)
	for _, e := range p.events {
		c.recorder.Event(job, e.kind, e.reason, e.message)
	}
	if finished(updated) {
		c.mu.Lock()
		delete(c.backoffs, job.UID)
		c.mu.Unlock()
	}
	return updated, nil
}

// actOnPods creates and deletes; made is how many were created.
func (c *Controller) actOnPods(ctx context.Context, key controllers.Key, job *batchv1.Job, p plan) (made int, err error) {
	if len(p.remove) > 0 {
		return 0, c.removePods(ctx, key, job, p)
	}
	if len(p.create) == 0 {
		return 0, nil
	}
	if err := c.vanished.Sure(ctx, job, c.fresh(job)); err != nil {
		return 0, err
	}
	c.expected.Expect(key, len(p.create))
	made, err = controllers.SlowStart(len(p.create), func(i int) error {
		_, err := c.writer.Create(ctx, job, newPod(job, p.create[i]))
		return err
	})
	c.expected.Created(key, len(p.create)-made)
	created(job, p, made)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return made, nil
	}
	return made, err
}

func (c *Controller) removePods(ctx context.Context, key controllers.Key, job *batchv1.Job, p plan) error {
	uids := make([]types.UID, len(p.remove))
	for i, pod := range p.remove {
		uids[i] = pod.UID
	}
	c.expected.Expect(key, 0, uids...)
	errs := make([]error, len(p.remove))
	var wg sync.WaitGroup
	for i, pod := range p.remove {
		wg.Go(func() {
			if p.forget {
				if errs[i] = c.stripFinalizer(ctx, pod); errs[i] != nil {
					c.expected.Deleted(key, pod.UID)
					return
				}
				c.markReleased(job.UID, pod.UID)
			}
			if err := c.writer.Delete(ctx, job, pod); err != nil {
				c.expected.Deleted(key, pod.UID)
				if !apierrors.IsNotFound(err) {
					errs[i] = err
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// release takes the finalizer off pods that are accounted for.
func (c *Controller) release(ctx context.Context, job *batchv1.Job, pods []*corev1.Pod) error {
	errs := make([]error, len(pods))
	var wg sync.WaitGroup
	for i, pod := range pods {
		wg.Go(func() {
			if errs[i] = c.stripFinalizer(ctx, pod); errs[i] == nil {
				c.markReleased(job.UID, pod.UID)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (c *Controller) stripFinalizer(ctx context.Context, pod *corev1.Pod) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":                                 pod.UID,
		"$deleteFromPrimitiveList/finalizers": []string{batchv1.JobTrackingFinalizer},
	}})
	if err != nil {
		return err
	}
	err = c.writer.Patch(ctx, pod, body)
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("releasing pod %s/%s: %w", pod.Namespace, pod.Name, err)
}

// orphan frees a pod whose Job is gone, or which is nobody's, of our finalizer.
func (c *Controller) orphan(ctx context.Context, key controllers.Key) error {
	pod, err := c.podList.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !hasFinalizer(pod) {
		return err
	}
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
		if ref.Kind != jobKind.Kind {
			return nil
		}
		// The cache may only not have it yet; ask.
		job, err := c.client.BatchV1().Jobs(pod.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err == nil && job.UID == ref.UID {
			return nil // its own reconcile takes care
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	controllers.About(ctx, "Pod", pod)
	if err := c.stripFinalizer(ctx, pod); err != nil {
		return err
	}
	controllers.Did(ctx, "released, because its job is gone", "Pod", nil)
	return nil
}

// newPod is a pod of the Job.
func newPod(job *batchv1.Job, made creation) *corev1.Pod {
	pod := controllers.NewPod(&job.Spec.Template, job, metav1.NewControllerRef(job, jobKind))
	if !slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer) {
		pod.Finalizers = append(pod.Finalizers, batchv1.JobTrackingFinalizer)
	}
	if made.index < 0 {
		return pod
	}
	index := strconv.Itoa(made.index)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = index
	pod.Labels[batchv1.JobCompletionIndexAnnotation] = index
	pod.Spec.Hostname = job.Name + "-" + index
	suffix := "-" + index + "-"
	pod.GenerateName = job.Name[:min(len(job.Name), maxGeneratedPrefix-len(suffix))] + suffix
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			addIndexEnv(&containers[i])
		}
	}
	if job.Spec.BackoffLimitPerIndex != nil {
		counted, ignored := inherit(job, made.replaces)
		pod.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(counted)
		if ignored > 0 {
			pod.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(ignored)
		}
	}
	return pod
}

func addIndexEnv(c *corev1.Container) {
	if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == indexEnv }) {
		return
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: indexEnv, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: fmt.Sprintf("metadata.labels['%s']", batchv1.JobCompletionIndexAnnotation)},
	}})
}

// inherit is how often an index has failed, with the pod that is replaced.
func inherit(job *batchv1.Job, replaced *corev1.Pod) (counted, ignored int) {
	if replaced == nil {
		return 0, 0
	}
	counted, ignored = failuresOf(replaced)
	if rule(job.Spec.PodFailurePolicy, replaced).counts {
		return counted + 1, ignored
	}
	return counted, ignored + 1
}
