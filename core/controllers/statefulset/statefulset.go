// SPDX-License-Identifier: Apache-2.0

// Package statefulset runs the pods of StatefulSets: each with a name, a place in an
// order, and claims of its own that outlive it.
//
// What to do is decided in pure code (decide); names that follow from ordinals make
// it safe to do again.
package statefulset

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/revision"
)

var setKind = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "StatefulSet"}

const (
	hashKey = "controller.kubernetes.io/hash"
	// maxNamePrefix leaves room for the hash in a revision's name.
	maxNamePrefix = 223
)

// Controller reconciles StatefulSets.
type Controller struct {
	client      kubernetes.Interface
	recorder    record.EventRecorder
	sets        appslisters.StatefulSetLister
	claimLister corelisters.PersistentVolumeClaimLister
	pods        cache.Indexer
	revisions   *revision.Store
	written     *controllers.Written
	expected    *controllers.Expectations // deletions only: creations have names
	vanished    *controllers.Vanished
	loop        *controllers.Loop[controllers.Key]
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	apps, core := env.Informers.Apps().V1(), env.Informers.Core().V1()
	pods := core.Pods().Informer()
	if err := controllers.IndexByController(pods); err != nil {
		return nil, fmt.Errorf("statefulset-controller: indexing by controller: %w", err)
	}
	revisions, err := revision.NewStore(env.Client, env.Informers)
	if err != nil {
		return nil, fmt.Errorf("statefulset-controller: %w", err)
	}
	c := &Controller{
		client: env.Client, recorder: env.Recorder("statefulset-controller"),
		sets: apps.StatefulSets().Lister(), claimLister: core.PersistentVolumeClaims().Lister(),
		pods: pods.GetIndexer(), revisions: revisions, written: controllers.NewWritten(), expected: controllers.NewExpectations(),
		vanished: controllers.NewVanished(),
	}
	c.loop = controllers.NewLoop(env, "statefulset-controller", workers, c.reconcile)
	c.loop.Watch(apps.StatefulSets().Informer(), controllers.Changes(func(old, current metav1.Object) {
		if current == nil {
			c.written.Forget(old.GetUID())
			c.expected.Forget(cache.MetaObjectToName(old))
			current = old
		}
		c.loop.Add(cache.MetaObjectToName(current))
	}))
	c.loop.Watch(pods, controllers.Changes(c.podChanged))
	c.loop.Needs(revisions.Informer, core.PersistentVolumeClaims().Informer())
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) podChanged(old, current metav1.Object) {
	for _, pod := range []metav1.Object{old, current} {
		if pod == nil {
			continue
		}
		if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
			if ref.Kind == setKind.Kind {
				key := controllers.Key{Namespace: pod.GetNamespace(), Name: ref.Name}
				if current == nil || current.GetDeletionTimestamp() != nil {
					c.expected.Deleted(key, pod.GetUID())
					c.noteVanished(key, ref.UID)
				}
				c.loop.Add(key)
			}
			continue
		}
		if p, ok := pod.(*corev1.Pod); ok && (old == nil || current == nil || !labels.Equals(old.GetLabels(), current.GetLabels()) ||
			len(old.GetOwnerReferences()) > 0) {
			c.queueAdopters(p)
		}
	}
}

func (c *Controller) noteVanished(key controllers.Key, owner types.UID) {
	if set, err := c.sets.StatefulSets(key.Namespace).Get(key.Name); err == nil && set.UID == owner {
		c.vanished.Note(key)
	}
}

func (c *Controller) queueAdopters(pod *corev1.Pod) {
	sets, err := c.sets.StatefulSets(pod.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	// Only a pod by whose name it could be one of the set's is worth a look.
	sets = slices.DeleteFunc(sets, func(s *appsv1.StatefulSet) bool { return ordinal(s, pod) < 0 })
	controllers.Adopters(c.loop, sets, func(s *appsv1.StatefulSet) *metav1.LabelSelector { return s.Spec.Selector }, pod)
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	set, err := c.sets.StatefulSets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.vanished.Forget(key)
		return nil
	}
	if err != nil {
		return err
	}
	fresh := c.fresh(set)
	if err := c.written.Sure(ctx, set, fresh); err != nil {
		return err
	}
	if !c.expected.Satisfied(key) {
		return controllers.ErrStale
	}
	controllers.About(ctx, setKind.Kind, set)
	selector, ok := controllers.Selector(set.Spec.Selector)
	if !ok {
		return nil
	}
	history, err := c.revisions.Owned(ctx, set, setKind, selector, fresh)
	if err != nil {
		return err
	}
	current, update, err := c.pick(ctx, set, history)
	if err != nil {
		return err
	}
	pods, err := c.claim(ctx, set, selector, fresh)
	if err != nil {
		return err
	}
	p := decide(situation{set: set, pods: pods, current: current.Name, update: update.Name, now: time.Now()})
	// Claims first: one that is to go with its pod must be the pod's before that goes.
	failure := c.keepClaims(ctx, set, pods)
	if failure == nil {
		failure = c.carryOut(ctx, set, p, map[string]*appsv1.ControllerRevision{current.Name: current, update.Name: update})
	}
	if p.wait > 0 {
		c.loop.AddAfter(key, p.wait)
	}
	if err := c.writeStatus(ctx, set, p.status); err != nil {
		return errors.Join(failure, err)
	}
	return errors.Join(failure, c.prune(ctx, set, pods, history, current, update))
}

func (c *Controller) fresh(set *appsv1.StatefulSet) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) {
		return c.client.AppsV1().StatefulSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	}
}

// pick finds the revision of the template, made if it is new, and the one that the
// pods had before.
func (c *Controller) pick(ctx context.Context, set *appsv1.StatefulSet,
	history []*appsv1.ControllerRevision,
) (current, update *appsv1.ControllerRevision, err error) {
	data, err := revision.Data(&set.Spec.Template)
	if err != nil {
		return nil, nil, err
	}
	next := int64(1)
	for _, r := range history {
		if revision.Same(r.Data.Raw, data) {
			update = r
		}
		if r.Name == set.Status.CurrentRevision {
			current = r
		}
		next = max(next, r.Revision+1)
	}
	switch {
	case update == nil:
		if err := c.vanished.Sure(ctx, set, c.fresh(set)); err != nil {
			return nil, nil, err
		}
		update, err = c.revisions.Create(ctx, newRevision(set, data, next))
		if errors.Is(err, revision.ErrCollision) {
			return nil, nil, errors.Join(err, c.countCollision(ctx, set))
		}
	case update.Revision != next-1:
		update, err = c.revisions.Renumber(ctx, update, next) // rolled back to
	}
	if err != nil {
		return nil, nil, err
	}
	if current == nil {
		current = update
	}
	return current, update, nil
}

func newRevision(set *appsv1.StatefulSet, data []byte, number int64) *appsv1.ControllerRevision {
	h := fnv.New32()
	// Writes to a hash never fail.
	_, _ = h.Write(data)
	_, _ = h.Write([]byte(strconv.FormatInt(int64(ptr.Deref(set.Status.CollisionCount, 0)), 10)))
	hash := rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
	l := map[string]string{}
	for k, v := range set.Spec.Template.Labels {
		l[k] = v
	}
	l[hashKey] = hash
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: set.Name[:min(len(set.Name), maxNamePrefix)] + "-" + hash, Namespace: set.Namespace,
			Labels: l, Annotations: set.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, setKind)},
		},
		Data: runtime.RawExtension{Raw: data}, Revision: number,
	}
}

func (c *Controller) countCollision(ctx context.Context, set *appsv1.StatefulSet) error {
	status := *set.Status.DeepCopy()
	status.CollisionCount = ptr.To(ptr.Deref(status.CollisionCount, 0) + 1)
	return c.writeStatus(ctx, set, status)
}

// claim adopts only pods whose name has a place in the set.
func (c *Controller) claim(ctx context.Context, set *appsv1.StatefulSet, selector labels.Selector,
	fresh func(context.Context) (metav1.Object, error),
) ([]*corev1.Pod, error) {
	all, err := controllers.Controlled[*corev1.Pod](c.pods, set, true)
	if err != nil {
		return nil, err
	}
	all = controllers.Filter(all, func(p *corev1.Pod) bool { return metav1.IsControlledBy(p, set) || ordinal(set, p) >= 0 })
	writer := controllers.PodWriter{Client: c.client, Recorder: c.recorder}
	return controllers.ClaimAll(ctx, &controllers.Claim{Owner: set, Kind: setKind, Selector: selector, Fresh: fresh, Patch: writer.Patch}, all)
}

func (c *Controller) carryOut(ctx context.Context, set *appsv1.StatefulSet, p plan, revisions map[string]*appsv1.ControllerRevision) error {
	if len(p.create) > 0 {
		if err := c.vanished.Sure(ctx, set, c.fresh(set)); err != nil {
			return err
		}
	}
	_, err := controllers.SlowStart(len(p.create), func(i int) error {
		return c.create(ctx, set, p.create[i], revisions[p.create[i].revision])
	})
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, pod := range p.repair {
		if err := c.repair(ctx, set, pod); err != nil {
			return err
		}
	}
	if len(p.remove) == 0 {
		return nil
	}
	key := cache.MetaObjectToName(set)
	uids := make([]types.UID, len(p.remove))
	for i, pod := range p.remove {
		uids[i] = pod.UID
	}
	c.expected.Expect(key, 0, uids...)
	errs := make([]error, len(p.remove))
	var wg sync.WaitGroup
	for i, pod := range p.remove {
		wg.Go(func() {
			gone, err := c.remove(ctx, set, pod)
			if errs[i] = err; gone || err != nil {
				c.expected.Deleted(key, pod.UID)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (c *Controller) create(ctx context.Context, set *appsv1.StatefulSet, made creation, r *appsv1.ControllerRevision) error {
	if err := c.ensureClaims(ctx, set, made.ordinal); err != nil {
		return err
	}
	template, err := revision.Template(r.Data.Raw)
	if err != nil {
		return err
	}
	pod := newPod(set, template, r.Name, made.ordinal)
	created, err := c.client.CoreV1().Pods(set.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return c.inTheWay(ctx, set, pod.Name)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return err
	case err != nil:
		c.recorder.Eventf(set, corev1.EventTypeWarning, "FailedCreate", "create Pod %s in StatefulSet %s failed error: %s", pod.Name, set.Name,
			err)
		return fmt.Errorf("creating pod %s: %w", pod.Name, err)
	}
	c.recorder.Eventf(set, corev1.EventTypeNormal, "SuccessfulCreate", "create Pod %s in StatefulSet %s successful", pod.Name, set.Name)
	controllers.Did(ctx, "created", "Pod", created)
	return nil
}

// inTheWay tells a pod that the cache doesn't show yet from one of somebody else.
func (c *Controller) inTheWay(ctx context.Context, set *appsv1.StatefulSet, name string) error {
	there, err := c.client.CoreV1().Pods(set.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return controllers.ErrStale
	}
	if err != nil {
		return err
	}
	if metav1.IsControlledBy(there, set) {
		return controllers.ErrStale
	}
	c.recorder.Eventf(set, corev1.EventTypeWarning, "FailedCreate", "create Pod %s in StatefulSet %s failed error: a pod of this name exists that is not the set's", name, set.Name)
	return fmt.Errorf("pod %s exists and is not of this set; delete it or give it a label that the selector doesn't match", name)
}

func newPod(set *appsv1.StatefulSet, template *corev1.PodTemplateSpec, revision string, ordinal int) *corev1.Pod {
	pod := controllers.NewPod(template, set, metav1.NewControllerRef(set, setKind))
	pod.GenerateName, pod.Name, pod.Namespace = "", podName(set, ordinal), set.Namespace
	identify(pod, ordinal)
	pod.Labels[appsv1.StatefulSetRevisionLabel] = revision
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, set.Spec.ServiceName
	mount(set, pod, ordinal)
	return pod
}

func identify(pod *corev1.Pod, ordinal int) {
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.StatefulSetPodNameLabel] = pod.Name
	pod.Labels[appsv1.PodIndexLabel] = strconv.Itoa(ordinal)
}

func (c *Controller) repair(ctx context.Context, set *appsv1.StatefulSet, pod *corev1.Pod) error {
	fixed := pod.DeepCopy()
	identify(fixed, ordinal(set, pod))
	updated, err := c.client.CoreV1().Pods(pod.Namespace).Update(ctx, fixed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("restoring the identity of pod %s: %w", pod.Name, err)
	}
	controllers.Did(ctx, "identity restored", "Pod", updated)
	return nil
}

// remove deletes a pod; gone says that it was not there any more.
func (c *Controller) remove(ctx context.Context, set *appsv1.StatefulSet, pod *corev1.Pod) (gone bool, err error) {
	err = c.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, controllers.DeleteExactly(pod))
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return true, nil
	case err != nil:
		c.recorder.Eventf(set, corev1.EventTypeWarning, "FailedDelete", "delete Pod %s in StatefulSet %s failed error: %s", pod.Name, set.Name,
			err)
		return false, fmt.Errorf("deleting pod %s: %w", pod.Name, err)
	}
	c.recorder.Eventf(set, corev1.EventTypeNormal, "SuccessfulDelete", "delete Pod %s in StatefulSet %s successful", pod.Name, set.Name)
	controllers.Did(ctx, "deleted", "Pod", pod)
	return false, nil
}

// keepClaims makes missing claims of pods that wait for them, and applies the
// retention policy.
func (c *Controller) keepClaims(ctx context.Context, set *appsv1.StatefulSet, pods []*corev1.Pod) error {
	if len(set.Spec.VolumeClaimTemplates) == 0 || set.DeletionTimestamp != nil {
		return nil
	}
	for _, pod := range pods {
		n := ordinal(set, pod)
		if n < 0 {
			continue
		}
		if pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp == nil && inRange(set, n) {
			if err := c.ensureClaims(ctx, set, n); err != nil {
				return err
			}
		}
		if err := c.retain(ctx, set, pod); err != nil {
			return err
		}
	}
	return nil
}

func (c *Controller) writeStatus(ctx context.Context, set *appsv1.StatefulSet, status appsv1.StatefulSetStatus) error {
	if equality.Semantic.DeepEqual(set.Status, status) {
		return nil
	}
	next := set.DeepCopy()
	next.Status = status
	updated, err := c.client.AppsV1().StatefulSets(set.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		c.written.Failed(set, err)
		return fmt.Errorf("updating status: %w", err)
	}
	c.written.Record(updated)
	controllers.Did(ctx, "status updated", setKind.Kind, nil)
	return nil
}

func (c *Controller) prune(ctx context.Context, set *appsv1.StatefulSet, pods []*corev1.Pod, history []*appsv1.ControllerRevision,
	current, update *appsv1.ControllerRevision,
) error {
	if set.Spec.RevisionHistoryLimit == nil {
		return nil
	}
	live := map[string]bool{current.Name: true, update.Name: true}
	for _, pod := range pods {
		live[revisionOf(pod)] = true
	}
	dead := controllers.Filter(history, func(r *appsv1.ControllerRevision) bool { return !live[r.Name] })
	return c.revisions.Prune(ctx, dead, int(*set.Spec.RevisionHistoryLimit), func(*appsv1.ControllerRevision) bool { return false })
}
