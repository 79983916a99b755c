// SPDX-License-Identifier: Apache-2.0

// Package deployment rolls out Deployments: one ReplicaSet for each pod template,
// and pods moved from the old ones to the new one within maxSurge and
// maxUnavailable, or all at once by Recreate.
//
// What to do is decided in pure code (decide) from a snapshot; the controller only
// carries the plan out. It doesn't decide while its cache lacks one of its own
// writes, so a stale read never takes more pods away than the limits allow. Names,
// annotations, conditions and events are upstream's: kubectl rollout goes by them.
package deployment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/controllers"
)

var deploymentKind = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}

// Controller reconciles Deployments.
type Controller struct {
	client      kubernetes.Interface
	recorder    record.EventRecorder
	deployments appslisters.DeploymentLister
	sets        cache.Indexer
	setLister   appslisters.ReplicaSetLister
	pods        cache.Indexer
	written     *controllers.Written
	vanished    *controllers.Vanished
	loop        *controllers.Loop[controllers.Key]
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	apps := env.Informers.Apps().V1()
	sets, pods := apps.ReplicaSets().Informer(), env.Informers.Core().V1().Pods().Informer()
	if err := errors.Join(controllers.IndexByController(sets), controllers.IndexByController(pods)); err != nil {
		return nil, fmt.Errorf("deployment-controller: indexing by controller: %w", err)
	}
	c := &Controller{
		client:      env.Client,
		recorder:    env.Recorder("deployment-controller"),
		deployments: apps.Deployments().Lister(),
		sets:        sets.GetIndexer(),
		setLister:   apps.ReplicaSets().Lister(),
		pods:        pods.GetIndexer(),
		written:     controllers.NewWritten(),
		vanished:    controllers.NewVanished(),
	}
	c.loop = controllers.NewLoop(env, "deployment-controller", workers, c.reconcile)
	c.loop.Watch(apps.Deployments().Informer(), controllers.Changes(func(old, current metav1.Object) {
		if current == nil {
			c.written.Forget(old.GetUID())
			current = old
		}
		c.loop.Add(cache.MetaObjectToName(current))
	}))
	c.loop.Watch(sets, controllers.Changes(c.setChanged))
	c.loop.Watch(pods, controllers.Changes(c.podChanged))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) setChanged(old, current metav1.Object) {
	if current == nil {
		c.written.Forget(old.GetUID())
		if ref := metav1.GetControllerOfNoCopy(old); ref != nil {
			c.written.Appeared(ref.UID, old.GetUID())
			c.noteVanished(old, ref)
		}
		c.queueOwner(old)
		return
	}
	if old != nil {
		c.queueOwner(old) // it may have been released from it
	}
	if metav1.GetControllerOfNoCopy(current) != nil {
		c.queueOwner(current)
		return
	}
	// Adoption is only worth a look at all Deployments when the labels are news.
	if old == nil || metav1.GetControllerOfNoCopy(old) != nil || !labels.Equals(old.GetLabels(), current.GetLabels()) {
		c.queueAdopters(current)
	}
}

func (c *Controller) noteVanished(rs metav1.Object, owner *metav1.OwnerReference) {
	if d, err := c.deployments.Deployments(rs.GetNamespace()).Get(owner.Name); err == nil && d.UID == owner.UID {
		c.vanished.Note(cache.MetaObjectToName(d))
	}
}

func (c *Controller) queueOwner(rs metav1.Object) {
	if ref := metav1.GetControllerOfNoCopy(rs); ref != nil && ref.Kind == deploymentKind.Kind {
		c.loop.Add(controllers.Key{Namespace: rs.GetNamespace(), Name: ref.Name})
	}
}

func (c *Controller) queueAdopters(rs metav1.Object) {
	all, err := c.deployments.Deployments(rs.GetNamespace()).List(labels.Everything())
	if err != nil {
		return
	}
	controllers.Adopters(c.loop, all, func(d *appsv1.Deployment) *metav1.LabelSelector { return d.Spec.Selector }, rs)
}

// podChanged wakes Recreate when an old pod has ended: nothing else would.
func (c *Controller) podChanged(old, current metav1.Object) {
	before, ok := old.(*corev1.Pod)
	if !ok || controllers.PodFinished(before) {
		return
	}
	if now, ok := current.(*corev1.Pod); ok && !controllers.PodFinished(now) {
		return
	}
	ref := metav1.GetControllerOfNoCopy(before)
	if ref == nil || ref.Kind != "ReplicaSet" {
		return
	}
	rs, err := c.setLister.ReplicaSets(before.Namespace).Get(ref.Name)
	if err != nil || rs.UID != ref.UID {
		return
	}
	if owner := metav1.GetControllerOfNoCopy(rs); owner != nil {
		d, err := c.deployments.Deployments(rs.Namespace).Get(owner.Name)
		if err == nil && d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
			c.queueOwner(rs)
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	d, err := c.deployments.Deployments(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.vanished.Forget(key)
		return nil
	}
	if err != nil {
		return err
	}
	controllers.About(ctx, deploymentKind.Kind, d)
	owned, err := c.claim(ctx, d)
	if err != nil {
		return err
	}
	if err := c.upToDate(ctx, d, owned); err != nil {
		return err
	}
	p := decide(situation{
		deployment: d,
		owned:      owned,
		oldPods:    func(current *appsv1.ReplicaSet) bool { return c.oldPods(owned, current) },
		now:        time.Now(),
	})
	if err := c.carryOut(ctx, d, p); err != nil {
		return err
	}
	if p.checkIn > 0 {
		c.loop.AddAfter(key, p.checkIn)
	}
	return nil
}

func (c *Controller) claim(ctx context.Context, d *appsv1.Deployment) ([]*appsv1.ReplicaSet, error) {
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("invalid selector: %w", err)
	}
	if selector.Empty() {
		return nil, nil // it would adopt the whole namespace
	}
	all, err := controllers.Controlled[*appsv1.ReplicaSet](c.sets, d, true)
	if err != nil {
		return nil, err
	}
	return controllers.ClaimAll(ctx, &controllers.Claim{
		Owner: d, Kind: deploymentKind, Selector: selector, Fresh: c.fresh(d),
		Patch: func(ctx context.Context, obj metav1.Object, patch []byte) error {
			_, err := c.client.AppsV1().ReplicaSets(obj.GetNamespace()).Patch(ctx, obj.GetName(), types.StrategicMergePatchType, patch,
				metav1.PatchOptions{})
			return err
		},
	}, all)
}

func (c *Controller) fresh(d *appsv1.Deployment) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) {
		return c.client.AppsV1().Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
	}
}

func (c *Controller) freshSet(rs *appsv1.ReplicaSet) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) {
		return c.client.AppsV1().ReplicaSets(rs.Namespace).Get(ctx, rs.Name, metav1.GetOptions{})
	}
}

// unseenFor is after how long the server is asked about a set that we created and
// that the watch doesn't show: somebody may have deleted it at once.
const unseenFor = 5 * time.Second

// upToDate is nil where the cache shows all that we wrote, and controllers.ErrStale where
// it doesn't. A set that is missing from it would not be counted, and its pods would come
// on top of the surge.
func (c *Controller) upToDate(ctx context.Context, d *appsv1.Deployment, owned []*appsv1.ReplicaSet) error {
	err := c.written.Sure(ctx, d, c.fresh(d))
	for _, rs := range owned {
		err = cmp.Or(err, c.written.Sure(ctx, rs, c.freshSet(rs)))
		c.written.Appeared(d.UID, rs.UID)
	}
	for _, made := range c.written.Unseen(d.UID) {
		if time.Since(made.Since) < unseenFor {
			err = cmp.Or(err, controllers.ErrStale)
			continue
		}
		rs, getErr := c.client.AppsV1().ReplicaSets(d.Namespace).Get(ctx, made.Name, metav1.GetOptions{})
		switch {
		case getErr != nil && !apierrors.IsNotFound(getErr):
			return fmt.Errorf("looking for replica set %s: %w", made.Name, getErr)
		case getErr != nil || !metav1.IsControlledBy(rs, d) || (made.UID != "" && rs.UID != made.UID):
			c.written.Appeared(d.UID, made.UID)
		case made.UID == "":
			c.written.Appeared(d.UID, "")
			c.written.RecordCreated(d.UID, rs)
			err = cmp.Or(err, controllers.ErrStale)
		default:
			err = cmp.Or(err, controllers.ErrStale)
		}
	}
	return err
}

func (c *Controller) oldPods(owned []*appsv1.ReplicaSet, current *appsv1.ReplicaSet) bool {
	for _, rs := range owned {
		if current != nil && rs.UID == current.UID {
			continue
		}
		pods, err := controllers.Controlled[*corev1.Pod](c.pods, rs, false)
		if err != nil {
			return true // better late than two generations at once
		}
		for _, pod := range pods {
			if !controllers.PodFinished(pod) {
				return true
			}
		}
	}
	return false
}

// carryOut writes the plan. It stops at the first error: the next plan is made
// from what was written until then.
func (c *Controller) carryOut(ctx context.Context, d *appsv1.Deployment, p plan) error {
	if p.create != nil {
		if err := c.createSet(ctx, d, p); err != nil {
			return err
		}
	}
	for _, rs := range p.update {
		updated, err := c.client.AppsV1().ReplicaSets(rs.Namespace).Update(ctx, rs, metav1.UpdateOptions{})
		if err != nil {
			c.written.Failed(rs, err)
			return fmt.Errorf("updating replica set %s: %w", rs.Name, err)
		}
		c.written.Record(updated)
		controllers.Did(ctx, "updated", "ReplicaSet", updated)
		c.report(d, p, rs.Name)
	}
	c.report(d, p, "")
	for _, rs := range p.remove {
		err := c.client.AppsV1().ReplicaSets(rs.Namespace).Delete(ctx, rs.Name, controllers.DeleteExactly(rs))
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("cleaning up replica set %s: %w", rs.Name, err)
		}
		controllers.Did(ctx, "cleaned up", "ReplicaSet", rs)
	}
	if p.rewrite != nil {
		updated, err := c.client.AppsV1().Deployments(d.Namespace).Update(ctx, p.rewrite, metav1.UpdateOptions{})
		if err != nil {
			c.written.Failed(d, err)
			return fmt.Errorf("rolling back: %w", err)
		}
		c.written.Record(updated)
		controllers.Did(ctx, "rolled back", deploymentKind.Kind, nil)
		return nil // the status belongs to the template of before
	}
	return c.writeStatus(ctx, p.status)
}

// report records the plan's events about a set, or (set empty) about the Deployment.
func (c *Controller) report(d *appsv1.Deployment, p plan, set string) {
	for _, e := range p.events {
		if e.set == set {
			c.recorder.Event(d, e.kind, e.reason, e.message)
		}
	}
}

func (c *Controller) writeStatus(ctx context.Context, d *appsv1.Deployment) error {
	if d == nil {
		return nil
	}
	updated, err := c.client.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil // it was deleted meanwhile
	}
	if err != nil {
		c.written.Failed(d, err)
		return fmt.Errorf("updating status: %w", err)
	}
	c.written.Record(updated)
	controllers.Did(ctx, "status updated", deploymentKind.Kind, nil)
	return nil
}

// createSet creates the new set. One that exists already is either ours, and the
// cache doesn't show it yet, or a hash collision: then the count that goes into the
// hash is raised, and the next plan has another name.
func (c *Controller) createSet(ctx context.Context, d *appsv1.Deployment, p plan) error {
	if err := c.vanished.Sure(ctx, d, c.fresh(d)); err != nil {
		return err
	}
	sets := c.client.AppsV1().ReplicaSets(d.Namespace)
	created, err := sets.Create(ctx, p.create, metav1.CreateOptions{})
	switch {
	case err == nil:
		c.written.RecordCreated(d.UID, created)
		controllers.Did(ctx, "created", "ReplicaSet", created)
		c.report(d, p, created.Name)
		return nil
	case apierrors.IsAlreadyExists(err):
		there, getErr := sets.Get(ctx, p.create.Name, metav1.GetOptions{})
		if getErr != nil {
			return fmt.Errorf("reading replica set %s that is in the way: %w", p.create.Name, getErr)
		}
		if metav1.IsControlledBy(there, d) && sameTemplate(&there.Spec.Template, &d.Spec.Template) {
			return controllers.ErrStale
		}
		return errors.Join(err, c.countCollision(ctx, d))
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return err
	}
	c.written.FailedCreate(d.UID, p.create, err)
	message := fmt.Sprintf("Failed to create new replica set %q: %v", p.create.Name, err)
	c.recorder.Event(d, corev1.EventTypeWarning, reasonCreateFailed, message)
	if !hasDeadline(d) {
		return err
	}
	failed := d.DeepCopy()
	setCondition(&failed.Status, appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonCreateFailed, message, time.Now())
	if condition(&d.Status, appsv1.DeploymentProgressing) != nil && condition(&d.Status,
		appsv1.DeploymentProgressing).Reason == reasonCreateFailed {
		return err
	}
	return errors.Join(err, c.writeStatus(ctx, failed))
}

func (c *Controller) countCollision(ctx context.Context, d *appsv1.Deployment) error {
	next := d.DeepCopy()
	if next.Status.CollisionCount == nil {
		next.Status.CollisionCount = new(int32)
	}
	*next.Status.CollisionCount++
	return c.writeStatus(ctx, next)
}
