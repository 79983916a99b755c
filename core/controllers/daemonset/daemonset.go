// SPDX-License-Identifier: Apache-2.0

// Package daemonset runs one pod of each DaemonSet on every node that its template
// fits, and updates them within maxUnavailable or maxSurge.
//
// Pods are pinned to their node by affinity and bound by the scheduler, as upstream
// does it. What to do is decided in pure code (decide).
package daemonset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/revision"
)

var daemonSetKind = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "DaemonSet"}

const (
	// burst is how many pods one reconcile creates or deletes at most.
	burst = 250
	// A pod that failed on a node is replaced after a second, later ones later.
	firstBackoff = time.Second
	lastBackoff  = 15 * time.Minute
)

// Controller reconciles DaemonSets.
type Controller struct {
	client    kubernetes.Interface
	recorder  record.EventRecorder
	writer    controllers.PodWriter
	sets      appslisters.DaemonSetLister
	nodes     corelisters.NodeLister
	pods      cache.Indexer
	revisions *revision.Store
	expected  *controllers.Expectations
	vanished  *controllers.Vanished
	failed    *flowcontrol.Backoff
	loop      *controllers.Loop[controllers.Key]
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	apps, core := env.Informers.Apps().V1(), env.Informers.Core().V1()
	pods := core.Pods().Informer()
	if err := controllers.IndexByController(pods); err != nil {
		return nil, fmt.Errorf("daemonset-controller: indexing by controller: %w", err)
	}
	revisions, err := revision.NewStore(env.Client, env.Informers)
	if err != nil {
		return nil, fmt.Errorf("daemonset-controller: %w", err)
	}
	recorder := env.Recorder("daemonset-controller")
	c := &Controller{
		client: env.Client, recorder: recorder, writer: controllers.PodWriter{Client: env.Client, Recorder: recorder},
		sets: apps.DaemonSets().Lister(), nodes: core.Nodes().Lister(), pods: pods.GetIndexer(), revisions: revisions,
		expected: controllers.NewExpectations(), vanished: controllers.NewVanished(), failed: flowcontrol.NewBackOff(firstBackoff, lastBackoff),
	}
	c.loop = controllers.NewLoop(env, "daemonset-controller", workers, c.reconcile)
	c.loop.Watch(apps.DaemonSets().Informer(), controllers.Changes(func(old, current metav1.Object) {
		if current == nil {
			c.expected.Forget(cache.MetaObjectToName(old))
			current = old
		}
		c.loop.Add(cache.MetaObjectToName(current))
	}))
	c.loop.Watch(pods, controllers.Changes(c.podChanged))
	c.loop.Watch(core.Nodes().Informer(), controllers.Changes(c.nodeChanged))
	c.loop.Watch(revisions.Informer, controllers.Changes(c.revisionChanged))
	c.loop.Beside(c.forgetBackoffs)
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// forgetBackoffs drops the records of pods that have not failed for long.
func (c *Controller) forgetBackoffs(ctx context.Context) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.failed.GC()
		}
	}
}

func (c *Controller) revisionChanged(old, current metav1.Object) {
	r := current
	if r == nil {
		r = old
	}
	key, ok := c.ownerOf(r)
	if !ok {
		return
	}
	if current == nil {
		c.vanished.Note(key)
	}
	c.loop.Add(key)
}

func (c *Controller) podChanged(old, current metav1.Object) {
	before, _ := old.(*corev1.Pod)
	pod, _ := current.(*corev1.Pod)
	if before != nil {
		if key, ok := c.ownerOf(before); ok {
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
	if key, ok := c.ownerOf(pod); ok {
		if before == nil {
			c.expected.Created(key, 1)
			if pod.DeletionTimestamp != nil {
				c.expected.Deleted(key, pod.UID)
				c.vanished.Note(key)
			}
		}
		c.loop.Add(key)
		return
	}
	if metav1.GetControllerOfNoCopy(pod) == nil &&
		(before == nil || !labels.Equals(before.Labels, pod.Labels) || metav1.GetControllerOfNoCopy(before) != nil) {
		c.queueAdopters(pod)
	}
}

// ownerOf is the cached set that controls a pod or a revision.
func (c *Controller) ownerOf(child metav1.Object) (controllers.Key, bool) {
	ref := metav1.GetControllerOfNoCopy(child)
	if ref == nil || ref.Kind != daemonSetKind.Kind {
		return controllers.Key{}, false
	}
	set, err := c.sets.DaemonSets(child.GetNamespace()).Get(ref.Name)
	return controllers.Key{Namespace: child.GetNamespace(), Name: ref.Name}, err == nil && set.UID == ref.UID
}

func (c *Controller) queueAdopters(pod *corev1.Pod) {
	sets, err := c.sets.DaemonSets(pod.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	controllers.Adopters(c.loop, sets, func(s *appsv1.DaemonSet) *metav1.LabelSelector { return s.Spec.Selector }, pod)
}

// nodeChanged looks only at what decides where daemons run; nodes report their
// status all the time.
func (c *Controller) nodeChanged(old, current metav1.Object) {
	before, _ := old.(*corev1.Node)
	node, _ := current.(*corev1.Node)
	if before != nil && node != nil && labels.Equals(before.Labels, node.Labels) && equality.Semantic.DeepEqual(before.Spec.Taints,
		node.Spec.Taints) {
		return
	}
	sets, err := c.sets.List(labels.Everything())
	if err != nil {
		return
	}
	for _, set := range sets {
		c.loop.Add(cache.MetaObjectToName(set))
	}
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	set, err := c.sets.DaemonSets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.expected.Forget(key)
		c.vanished.Forget(key)
		return nil
	}
	if err != nil {
		return err
	}
	if set.DeletionTimestamp != nil {
		return nil
	}
	controllers.About(ctx, daemonSetKind.Kind, set)
	selector, ok := controllers.Selector(set.Spec.Selector)
	if !ok {
		c.recorder.Event(set, corev1.EventTypeWarning, "SelectingAll", "This daemon set is selecting all pods. A non-empty selector is required.")
		return nil
	}
	current, old, err := c.history(ctx, set, selector)
	if err != nil {
		return err
	}
	left := c.expected.Left(key) // before the pods are read
	in, err := c.situation(ctx, set, selector, current.Labels[appsv1.DefaultDaemonSetUniqueLabelKey])
	if err != nil {
		return err
	}
	var failure error
	if left > 0 {
		c.loop.AddAfter(key, left)
	} else {
		p := decide(in)
		failure = c.carryOut(ctx, key, in, p)
		if p.wait > 0 {
			c.loop.AddAfter(key, p.wait)
		}
		if failure == nil {
			failure = c.prune(ctx, set, in.pods, old)
		}
	}
	return errors.Join(failure, c.writeStatus(ctx, key, in, left == 0))
}

func (c *Controller) fresh(set *appsv1.DaemonSet) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) {
		return c.client.AppsV1().DaemonSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	}
}

func (c *Controller) situation(ctx context.Context, set *appsv1.DaemonSet, selector labels.Selector, hash string) (situation, error) {
	all, err := controllers.Controlled[*corev1.Pod](c.pods, set, true)
	if err != nil {
		return situation{}, err
	}
	pods, err := controllers.ClaimAll(ctx, &controllers.Claim{
		Owner: set, Kind: daemonSetKind, Selector: selector, Fresh: c.fresh(set), Patch: c.writer.Patch,
	}, all)
	if err != nil {
		return situation{}, err
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return situation{}, err
	}
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	now := time.Now()
	return situation{
		set: set, nodes: nodes, pods: pods, hash: hash, now: now,
		backoff: func(node string) time.Duration { return c.backoff(set, node, now) },
	}, nil
}

// backoff is how long a failed pod stays on its node. Asking counts as a failure
// once the time is over.
func (c *Controller) backoff(set *appsv1.DaemonSet, node string, now time.Time) time.Duration {
	id := fmt.Sprintf("%s/%d/%s", set.UID, set.Status.ObservedGeneration, node)
	if c.failed.IsInBackOffSinceUpdate(id, now) {
		return c.failed.Get(id)
	}
	c.failed.Next(id, now)
	return 0
}

// history is the revision of the current template, which is made if it is new, and
// those of others.
func (c *Controller) history(ctx context.Context, set *appsv1.DaemonSet,
	selector labels.Selector,
) (current *appsv1.ControllerRevision, old []*appsv1.ControllerRevision, err error) {
	all, err := c.revisions.Owned(ctx, set, daemonSetKind, selector, c.fresh(set))
	if err != nil {
		return nil, nil, err
	}
	data, err := revision.Data(&set.Spec.Template)
	if err != nil {
		return nil, nil, err
	}
	next := int64(1)
	for _, r := range all {
		if revision.Same(r.Data.Raw, data) {
			if current != nil {
				old = append(old, current) // the newest of several counts
			}
			current = r
			continue
		}
		old = append(old, r)
		next = max(next, r.Revision+1)
	}
	revision.Sort(old)
	if current != nil {
		current, err = c.revisions.Renumber(ctx, current, next)
		return current, old, err
	}
	if err := c.vanished.Sure(ctx, set, c.fresh(set)); err != nil {
		return nil, nil, err
	}
	current, err = c.revisions.Create(ctx, newRevision(set, data, next))
	if errors.Is(err, revision.ErrCollision) {
		return nil, nil, errors.Join(err, c.countCollision(ctx, set))
	}
	return current, old, err
}

func newRevision(set *appsv1.DaemonSet, data []byte, number int64) *appsv1.ControllerRevision {
	hash := controllers.TemplateHash(&set.Spec.Template, set.Status.CollisionCount)
	l := map[string]string{}
	for k, v := range set.Spec.Template.Labels {
		l[k] = v
	}
	l[appsv1.DefaultDaemonSetUniqueLabelKey] = hash
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: set.Name + "-" + hash, Namespace: set.Namespace, Labels: l, Annotations: set.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, daemonSetKind)},
		},
		Data: runtime.RawExtension{Raw: data}, Revision: number,
	}
}

func (c *Controller) countCollision(ctx context.Context, set *appsv1.DaemonSet) error {
	next := set.DeepCopy()
	if next.Status.CollisionCount == nil {
		next.Status.CollisionCount = new(int32)
	}
	*next.Status.CollisionCount++
	_, err := c.client.AppsV1().DaemonSets(set.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return err
}

func (c *Controller) prune(ctx context.Context, set *appsv1.DaemonSet, pods []*corev1.Pod, old []*appsv1.ControllerRevision) error {
	if set.Spec.RevisionHistoryLimit == nil {
		return nil
	}
	live := map[string]bool{}
	for _, pod := range pods {
		live[pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
	}
	return c.revisions.Prune(ctx, old, int(*set.Spec.RevisionHistoryLimit), func(r *appsv1.ControllerRevision) bool {
		return live[r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]]
	})
}

func (c *Controller) carryOut(ctx context.Context, key controllers.Key, in situation, p plan) error {
	for _, e := range p.events {
		c.recorder.Event(in.set, e.kind, e.reason, e.message)
	}
	create, remove := p.create[:min(len(p.create), burst)], p.remove[:min(len(p.remove), burst)]
	if len(create)+len(remove) == 0 {
		return nil
	}
	if len(create) > 0 {
		if err := c.vanished.Sure(ctx, in.set, c.fresh(in.set)); err != nil {
			return err
		}
	}
	uids := make([]types.UID, len(remove))
	for i, pod := range remove {
		uids[i] = pod.UID
	}
	c.expected.Expect(key, len(create), uids...)
	made, err := controllers.SlowStart(len(create), func(i int) error {
		_, err := c.writer.Create(ctx, in.set, newPod(in.set, in.hash, create[i]))
		return err
	})
	c.expected.Created(key, len(create)-made)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		err = nil
	}
	errs := make([]error, len(remove), len(remove)+1)
	var wg sync.WaitGroup
	for i, pod := range remove {
		wg.Go(func() {
			if err := c.writer.Delete(ctx, in.set, pod); err != nil {
				c.expected.Deleted(key, pod.UID)
				if !apierrors.IsNotFound(err) {
					errs[i] = err
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(append(errs, err)...)
}

// newPod is the pod for one node.
func newPod(set *appsv1.DaemonSet, hash, node string) *corev1.Pod {
	pod := controllers.NewPod(&set.Spec.Template, set, metav1.NewControllerRef(set, daemonSetKind))
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	if generation, err := strconv.ParseInt(set.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64); err == nil {
		pod.Labels[generationKey] = strconv.FormatInt(generation, 10)
	}
	if hash != "" {
		pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = hash
	}
	pod.Spec.Tolerations = tolerations(&pod.Spec)
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	// The template's own requirement is met by this node already.
	pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
		}}},
	}
	return pod
}

// writeStatus counts the pods as they were read: what was created or deleted since
// comes with its events.
func (c *Controller) writeStatus(ctx context.Context, key controllers.Key, in situation, observed bool) error {
	next, wait := status(in, observed)
	if wait > 0 {
		c.loop.AddAfter(key, wait)
	}
	if equality.Semantic.DeepEqual(next, in.set.Status) {
		return nil
	}
	set := in.set.DeepCopy()
	set.Status = next
	_, err := c.client.AppsV1().DaemonSets(key.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("updating status: %w", err)
	}
	controllers.Did(ctx, "status updated", daemonSetKind.Kind, nil)
	return nil
}
