// SPDX-License-Identifier: Apache-2.0

// Package replicaset keeps the number of pods of each ReplicaSet, and of each
// ReplicationController, at what its spec says.
//
// It never creates or deletes on a count that its own writes have outdated:
// creations and deletions in flight are expected, and the next decision waits
// until the cache shows them. Which pods go first, events and the status are
// upstream's.
package replicaset

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// Controller reconciles one of the two kinds.
type Controller struct {
	kind
	pods     cache.Indexer
	writer   controllers.PodWriter
	expected *controllers.Expectations
	vanished *controllers.Vanished
	loop     *controllers.Loop[controllers.Key]
}

// New makes the controller of ReplicaSets.
func New(env controllers.Env, workers int) (*Controller, error) {
	return build(env, workers, replicaSets(env.Client, env.Informers))
}

// NewReplication makes the controller of ReplicationControllers.
func NewReplication(env controllers.Env, workers int) (*Controller, error) {
	return build(env, workers, replicationControllers(env.Client, env.Informers))
}

func build(env controllers.Env, workers int, k kind) (*Controller, error) {
	pods := env.Informers.Core().V1().Pods().Informer()
	if err := errors.Join(controllers.IndexByController(pods), controllers.IndexByController(k.informer)); err != nil {
		return nil, fmt.Errorf("%s: indexing by controller: %w", k.name, err)
	}
	c := &Controller{
		kind:     k,
		pods:     pods.GetIndexer(),
		writer:   controllers.PodWriter{Client: env.Client, Recorder: env.Recorder(k.component)},
		expected: controllers.NewExpectations(),
		vanished: controllers.NewVanished(),
	}
	c.loop = controllers.NewLoop(env, k.name, workers, c.reconcile)
	c.loop.Watch(k.informer, controllers.Changes(func(old, current metav1.Object) {
		if current == nil {
			c.expected.Forget(cache.MetaObjectToName(old))
			current = old
		}
		c.loop.Add(cache.MetaObjectToName(current))
	}))
	c.loop.Watch(pods, controllers.Changes(c.podChanged))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// podChanged queues the sets that a pod concerns, and ticks off what was expected.
func (c *Controller) podChanged(old, current metav1.Object) {
	var before *corev1.Pod
	if old != nil {
		before, _ = old.(*corev1.Pod)
	}
	pod, _ := current.(*corev1.Pod)
	if pod == nil || pod.DeletionTimestamp != nil {
		// A deletion timestamp is what a deletion looks like first, and the set
		// wants its replacement now, not after the grace period.
		gone := pod
		if gone == nil {
			gone = before
		}
		if key, ok := c.ownerOf(gone); ok {
			if before == nil {
				c.expected.Created(key, 1)
			}
			c.expected.Deleted(key, gone.UID)
			c.vanished.Note(key)
			c.loop.Add(key)
		}
		return
	}
	if before != nil {
		if key, ok := c.ownerOf(before); ok {
			c.loop.Add(key) // it may have been released from it
		}
	}
	if key, ok := c.ownerOf(pod); ok {
		if before == nil {
			c.expected.Created(key, 1)
		}
		c.loop.Add(key)
		return
	}
	if metav1.GetControllerOfNoCopy(pod) == nil && (before == nil || orphanNews(before, pod)) {
		c.queueAdopters(pod)
	}
}

func orphanNews(before, now *corev1.Pod) bool {
	return metav1.GetControllerOfNoCopy(before) != nil || !equality.Semantic.DeepEqual(before.Labels, now.Labels)
}

// ownerOf is the key of the cached set that controls the pod.
func (c *Controller) ownerOf(pod *corev1.Pod) (controllers.Key, bool) {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil || ref.Kind != c.gvk.Kind {
		return controllers.Key{}, false
	}
	key := controllers.Key{Namespace: pod.Namespace, Name: ref.Name}
	rs, _, err := c.get(key)
	return key, err == nil && rs.UID == ref.UID
}

func (c *Controller) queueAdopters(pod *corev1.Pod) {
	sets, err := c.inNamespace(pod.Namespace)
	if err != nil {
		return
	}
	controllers.Adopters(c.loop, sets, func(s *appsv1.ReplicaSet) *metav1.LabelSelector { return s.Spec.Selector }, pod)
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	rs, owner, err := c.get(key)
	if apierrors.IsNotFound(err) {
		c.expected.Forget(key)
		c.vanished.Forget(key)
		return nil
	}
	if err != nil {
		return err
	}
	controllers.About(ctx, c.gvk.Kind, rs)
	// Asked before the pods are read: an event that satisfies it in between
	// belongs to pods that this reconcile then sees.
	left := c.expected.Left(key)
	selector, ok := controllers.Selector(rs.Spec.Selector)
	if !ok {
		return nil
	}
	pods, err := controllers.Controlled[*corev1.Pod](c.pods, rs, true)
	if err != nil {
		return err
	}
	active, err := c.claim(ctx, rs, selector, controllers.Filter(pods, controllers.PodActive))
	if err != nil {
		return err
	}
	terminating := controllers.Filter(pods, func(p *corev1.Pod) bool {
		return controllers.PodTerminating(p) && metav1.IsControlledBy(p, rs) && selector.Matches(labels.Set(p.Labels))
	})
	var failure error
	if left > 0 {
		c.loop.AddAfter(key, left)
	} else if rs.DeletionTimestamp == nil {
		failure = c.scale(ctx, key, rs, owner, active)
	}
	if errors.Is(failure, controllers.ErrStale) {
		return failure // the status would be another set's, too
	}
	next, wait := status(rs, active, terminating, failure, time.Now())
	if err := c.updateStatus(ctx, rs, next); err != nil {
		return errors.Join(failure, err)
	}
	if wait > 0 {
		c.loop.AddAfter(key, wait)
	}
	return failure
}

func (c *Controller) claim(ctx context.Context, rs *appsv1.ReplicaSet, selector labels.Selector,
	pods []*corev1.Pod,
) ([]*corev1.Pod, error) {
	claim := &controllers.Claim{Owner: rs, Kind: c.gvk, Selector: selector, Patch: c.writer.Patch, Fresh: c.fresh(rs)}
	return controllers.ClaimAll(ctx, claim, pods)
}

func (c *Controller) fresh(rs *appsv1.ReplicaSet) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) { return c.live(ctx, cache.MetaObjectToName(rs)) }
}

// scale carries out the decision about these pods.
func (c *Controller) scale(ctx context.Context, key controllers.Key, rs *appsv1.ReplicaSet, owner controllers.Owner,
	active []*corev1.Pod,
) error {
	var related []*corev1.Pod
	if int(*rs.Spec.Replicas) < len(active) {
		related = c.related(rs)
	}
	d := decide(*rs.Spec.Replicas, active, related, time.Now())
	switch {
	case d.create > 0:
		return c.create(ctx, key, rs, owner, d.create)
	case len(d.remove) > 0:
		return c.remove(ctx, key, owner, d.remove)
	}
	return nil
}

func (c *Controller) create(ctx context.Context, key controllers.Key, rs *appsv1.ReplicaSet, owner controllers.Owner, n int) error {
	if err := c.vanished.Sure(ctx, rs, c.fresh(rs)); err != nil {
		return err
	}
	c.expected.Expect(key, n)
	ref := metav1.NewControllerRef(rs, c.gvk)
	made, err := controllers.SlowStart(n, func(int) error {
		_, err := c.writer.Create(ctx, owner, controllers.NewPod(&rs.Spec.Template, rs, ref))
		return err
	})
	c.expected.Created(key, n-made) // those will never be observed
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // every further creation would fail as well, and all is going away
	}
	return err
}

func (c *Controller) remove(ctx context.Context, key controllers.Key, owner controllers.Owner, pods []*corev1.Pod) error {
	uids := make([]types.UID, len(pods))
	for i, pod := range pods {
		uids[i] = pod.UID
	}
	c.expected.Expect(key, 0, uids...)
	errs := make([]error, len(pods))
	var wg sync.WaitGroup
	for i, pod := range pods {
		wg.Go(func() {
			if err := c.writer.Delete(ctx, owner, pod); err != nil {
				c.expected.Deleted(key, pod.UID)
				if !apierrors.IsNotFound(err) {
					errs[i] = err
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err // they are likely all the same, and each had its event
		}
	}
	return nil
}

// related are the pods of every set that the same owner controls, this one included.
func (c *Controller) related(rs *appsv1.ReplicaSet) []*corev1.Pod {
	ref := metav1.GetControllerOfNoCopy(rs)
	if ref == nil {
		return nil
	}
	siblings, err := controllers.Controlled[*appsv1.ReplicaSet](c.informer.GetIndexer(), &metav1.ObjectMeta{UID: ref.UID}, false)
	if err != nil {
		return nil // it only decides which of several pods goes first
	}
	var pods []*corev1.Pod
	for _, sibling := range siblings {
		some, err := controllers.Controlled[*corev1.Pod](c.pods, sibling, false)
		if err == nil {
			pods = append(pods, some...)
		}
	}
	return pods
}

// updateStatus writes the status where it differs, with one more try on the
// server's own state if somebody wrote in between: the count is ours to say.
func (c *Controller) updateStatus(ctx context.Context, rs *appsv1.ReplicaSet, next appsv1.ReplicaSetStatus) error {
	if c.gvk.Kind == "ReplicationController" {
		next.TerminatingReplicas = nil // it has no such field
	}
	if equality.Semantic.DeepEqual(rs.Status, next) {
		return nil
	}
	changed := *rs // shallow: only the status is replaced
	changed.Status = next
	_, err := c.writeStatus(ctx, &changed)
	if apierrors.IsConflict(err) {
		fresh, getErr := c.live(ctx, cache.MetaObjectToName(rs))
		if getErr != nil {
			return ignoreGone(getErr)
		}
		if fresh.UID != rs.UID {
			return nil
		}
		again := *fresh
		again.Status = next // with the generation that we acted on
		_, err = c.writeStatus(ctx, &again)
	}
	if err != nil {
		return ignoreGone(err)
	}
	controllers.Did(ctx, "status updated", c.gvk.Kind, nil)
	return nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("updating status: %w", err)
}
