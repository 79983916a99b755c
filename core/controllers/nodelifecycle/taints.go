// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// Evictor deletes pods from nodes with NoExecute taints that they don't tolerate,
// or not for longer.
type Evictor struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	nodes    corelisters.NodeLister
	lister   corelisters.PodLister
	pods     cache.Indexer
	loop     *controllers.Loop[controllers.Key]

	mu        sync.Mutex
	firstSeen map[string]map[taintName]time.Time // by node
	scheduled map[controllers.Key]bool
}

// taintName is what tells the taints of a node apart. One that somebody put on by hand has no time, and counts from when it was first seen.
type taintName struct{ key, value string }

// NewEvictor makes the controller of evictions by taint.
func NewEvictor(env controllers.Env, workers int) (*Evictor, error) {
	core := env.Informers.Core().V1()
	pods := core.Pods().Informer()
	if err := controllers.IndexByNode(pods); err != nil {
		return nil, fmt.Errorf("taint-eviction-controller: indexing pods by node: %w", err)
	}
	e := &Evictor{
		client: env.Client, recorder: env.Recorder("taint-eviction-controller"),
		nodes: core.Nodes().Lister(), lister: core.Pods().Lister(), pods: pods.GetIndexer(),
		firstSeen: map[string]map[taintName]time.Time{}, scheduled: map[controllers.Key]bool{},
	}
	e.loop = controllers.NewLoop(env, "taint-eviction-controller", workers, e.reconcile)
	e.loop.Watch(core.Nodes().Informer(), controllers.Changes(e.nodeChanged))
	e.loop.Watch(pods, controllers.Changes(func(old, current metav1.Object) {
		pod, ok := current.(*corev1.Pod)
		before, was := old.(*corev1.Pod)
		switch {
		case !ok:
			e.forget(cache.MetaObjectToName(old))
		case pod.Spec.NodeName != "" && (!was || before.Spec.NodeName == "" || len(before.Spec.Tolerations) != len(pod.Spec.Tolerations)):
			e.loop.Add(cache.MetaObjectToName(pod))
		}
	}))
	return e, nil
}

// Run works until ctx ends.
func (e *Evictor) Run(ctx context.Context) error { return e.loop.Run(ctx) }

func (e *Evictor) nodeChanged(old, current metav1.Object) {
	before, _ := old.(*corev1.Node)
	node, ok := current.(*corev1.Node)
	if !ok {
		e.forgetNode(before.Name)
		return
	}
	was, is := noExecute(before), noExecute(node)
	if len(was) == 0 && len(is) == 0 {
		return
	}
	if before != nil && sameTaints(was, is) {
		return
	}
	e.record(node.Name, is)
	pods, err := controllers.PodsOn(e.pods, node.Name)
	if err != nil {
		return
	}
	for _, pod := range pods {
		e.loop.Add(cache.MetaObjectToName(pod))
	}
}

func noExecute(node *corev1.Node) []corev1.Taint {
	if node == nil {
		return nil
	}
	return controllers.Filter(node.Spec.Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute })
}

// record remembers when taints of a node were first seen, and forgets those that are gone.
func (e *Evictor) record(node string, taints []corev1.Taint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.firstSeen[node]
	delete(e.firstSeen, node)
	for _, t := range taints {
		at, known := before[taintName{t.Key, t.Value}]
		if !known {
			at = time.Now()
		}
		e.setFirstSeen(node, t, at)
	}
}

// setFirstSeen records when a taint of a node was first seen. Lock held.
func (e *Evictor) setFirstSeen(node string, t corev1.Taint, at time.Time) {
	if e.firstSeen[node] == nil {
		e.firstSeen[node] = map[taintName]time.Time{}
	}
	e.firstSeen[node][taintName{t.Key, t.Value}] = at
}

func (e *Evictor) forgetNode(node string) { e.record(node, nil) }

func (e *Evictor) forget(pod controllers.Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.scheduled, pod)
}

func (e *Evictor) since(node string, t corev1.Taint) time.Time {
	if t.TimeAdded != nil {
		return t.TimeAdded.Time
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	at, known := e.firstSeen[node][taintName{t.Key, t.Value}]
	if !known {
		at = time.Now()
		e.setFirstSeen(node, t, at) // the event that records it is on the way
	}
	return at
}

// evictAt is when a pod has to leave because of these taints; ok is false if it may stay.
func evictAt(taints []corev1.Taint, tolerations []corev1.Toleration, since func(corev1.Taint) time.Time) (at time.Time, ok bool) {
	for _, t := range taints {
		leave, stays := toleratedUntil(t, tolerations, since(t))
		if !stays && (!ok || leave.Before(at)) {
			at, ok = leave, true
		}
	}
	return at, ok
}

// toleratedUntil takes the first toleration that matches, as the kubelet and
// upstream do.
func toleratedUntil(taint corev1.Taint, tolerations []corev1.Toleration, since time.Time) (until time.Time, forever bool) {
	for i := range tolerations {
		if !tolerations[i].ToleratesTaint(klog.Background(), &taint, false) {
			continue
		}
		if seconds := tolerations[i].TolerationSeconds; seconds != nil {
			return since.Add(time.Duration(max(*seconds, 0)) * time.Second), false
		}
		return time.Time{}, true
	}
	return since, false
}

func (e *Evictor) reconcile(ctx context.Context, key controllers.Key) error {
	pod, err := e.lister.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" || controllers.PodFinished(pod) {
		return nil
	}
	node, err := e.nodes.Get(pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	at, leaves := evictAt(noExecute(node), pod.Spec.Tolerations, func(t corev1.Taint) time.Time { return e.since(node.Name, t) })
	if !leaves {
		e.cancel(pod)
		return nil
	}
	if wait := time.Until(at); wait > 0 {
		e.mu.Lock()
		e.scheduled[key] = true
		e.mu.Unlock()
		e.loop.AddAfter(key, wait)
		return nil
	}
	return e.evict(ctx, pod)
}

func (e *Evictor) cancel(pod *corev1.Pod) {
	key := cache.MetaObjectToName(pod)
	e.mu.Lock()
	was := e.scheduled[key]
	delete(e.scheduled, key)
	e.mu.Unlock()
	if was {
		e.recorder.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Cancelling deletion of Pod %s", key)
	}
}

func (e *Evictor) evict(ctx context.Context, pod *corev1.Pod) error {
	controllers.About(ctx, "Pod", pod)
	e.recorder.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s/%s", pod.Namespace, pod.Name)
	err := controllers.PatchPodStatus(ctx, e.client, pod, "", corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(), ObservedGeneration: pod.Generation,
		Reason: "DeletionByTaintManager", Message: "Taint manager: deleting due to NoExecute taint",
	})
	if err != nil {
		return err
	}
	err = e.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, controllers.DeleteExactly(pod))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("evicting: %w", err)
	}
	controllers.Did(ctx, "evicted by a taint of node "+pod.Spec.NodeName, "Pod", nil)
	return nil
}
