// SPDX-License-Identifier: Apache-2.0

// Package nodelifecycle watches over nodes: a node whose kubelet renews neither its
// lease nor its status becomes Unknown, bad conditions become taints, pods on dead
// nodes stop being ready, and NoExecute taints evict pods when their toleration
// ends.
//
// Time is counted from when this process saw a sign of life, not by the kubelet's
// clock. Before a node is declared silent its lease is read from the server, and a
// time in which the server could not be asked doesn't count: an outage of ours must
// not look like the death of all nodes.
package nodelifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// Upstream's defaults.
const (
	defaultMonitorGrace = 50 * time.Second
	defaultStartupGrace = 60 * time.Second

	evictionInterval          = 10 * time.Second
	secondaryEvictionInterval = 100 * time.Second
	// secondLook is how long a node must have been down before it begins to be
	// evicted: what takes down others too shows by then.
	secondLook         = 5 * time.Second
	surveyEvery        = time.Second
	unhealthyZoneShare = 0.55
	largeZone          = 50
)

// Config of the controller.
type Config struct {
	// MonitorGrace is how long a node may be silent before it becomes Unknown;
	// 0 = 50 s. The kubelet renews its lease every 10 s.
	MonitorGrace time.Duration
	// StartupGrace is the same for a node that never reported a status; 0 = 60 s.
	StartupGrace time.Duration
}

// Controller reconciles nodes.
type Controller struct {
	cfg      Config
	client   kubernetes.Interface
	recorder record.EventRecorder
	nodes    corelisters.NodeLister
	pods     cache.Indexer
	leases   cache.Indexer
	loop     *controllers.Loop[string]

	mu       sync.Mutex
	life     map[string]*life
	blind    time.Time            // the server last failed to answer
	nextFrom map[string]time.Time // by zone: the next node may begin to be evicted
	surveyed time.Time            // when zones was made
	zones    map[string]*disruption
}

// life is what was seen of one node.
type life struct {
	uid types.UID
	// sign of life last seen, at this process's time.
	sign      time.Time
	renewed   time.Time // the lease's renewTime at that moment
	heartbeat time.Time // the Ready condition's
	ready     corev1.ConditionStatus
}

// New makes the controller.
func New(env controllers.Env, workers int, cfg Config) (*Controller, error) {
	register()
	if cfg.MonitorGrace == 0 {
		cfg.MonitorGrace = defaultMonitorGrace
	}
	if cfg.StartupGrace == 0 {
		cfg.StartupGrace = defaultStartupGrace
	}
	pods := env.Informers.Core().V1().Pods().Informer()
	if err := controllers.IndexByNode(pods); err != nil {
		return nil, fmt.Errorf("node-lifecycle-controller: indexing pods by node: %w", err)
	}
	leases := env.Informers.Coordination().V1().Leases().Informer() // the garbage collector follows all leases anyway
	nodes := env.Informers.Core().V1().Nodes()
	c := &Controller{
		cfg: cfg, client: env.Client, recorder: env.Recorder("node-controller"),
		nodes: nodes.Lister(), pods: pods.GetIndexer(), leases: leases.GetIndexer(),
		life: map[string]*life{}, nextFrom: map[string]time.Time{},
	}
	c.loop = controllers.NewLoop(env, "node-lifecycle-controller", workers, c.reconcile)
	c.loop.Watch(leases, controllers.Changes(func(_, current metav1.Object) {
		if lease, ok := current.(*coordinationv1.Lease); ok && lease.Namespace == corev1.NamespaceNodeLease {
			c.renewal(lease)
		}
	}))
	c.loop.Watch(nodes.Informer(), controllers.Changes(c.nodeChanged))
	c.loop.Needs(pods)
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) nodeChanged(old, current metav1.Object) {
	if current == nil {
		if node, ok := old.(*corev1.Node); ok {
			c.say(node, "RemovingNode", "Node %s event: Removing Node %s from Controller", node.Name, node.Name)
		}
		c.mu.Lock()
		delete(c.life, old.GetName())
		c.mu.Unlock()
		return
	}
	if node, ok := current.(*corev1.Node); ok {
		c.reportSeen(node)
		c.loop.Add(node.Name)
	}
}

// renewal notes a sign of life. It queues nothing unless the node was given up:
// with thousands of nodes, leases are most of what happens.
func (c *Controller) renewal(lease *coordinationv1.Lease) {
	if lease.Spec.RenewTime == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.life[lease.Name]
	if l != nil && l.renewed.Before(lease.Spec.RenewTime.Time) {
		l.renewed, l.sign = lease.Spec.RenewTime.Time, time.Now()
	}
}

// reportSeen notes a node's own report of its status as a sign of life.
func (c *Controller) reportSeen(node *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.life[node.Name]
	if l == nil || l.uid != node.UID {
		l = &life{uid: node.UID, sign: time.Now()}
		c.life[node.Name] = l
		c.say(node, "RegisteredNode", "Node %s event: Registered Node %s in Controller", node.Name, node.Name)
		if obj, ok, err := c.leases.GetByKey(corev1.NamespaceNodeLease + "/" + node.Name); err == nil && ok {
			if lease, ok := obj.(*coordinationv1.Lease); ok && lease.Spec.RenewTime != nil {
				l.renewed = lease.Spec.RenewTime.Time
			}
		}
	}
	if r := condition(node, corev1.NodeReady); r != nil && r.LastHeartbeatTime.After(l.heartbeat) {
		l.heartbeat = r.LastHeartbeatTime.Time
		if r.Status != corev1.ConditionUnknown { // that would be our own word
			l.sign = time.Now()
		}
	}
}

func (c *Controller) say(node *corev1.Node, reason, format string, args ...any) {
	c.recorder.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}, corev1.EventTypeNormal, reason,
		format, args...)
}

func (c *Controller) reconcile(ctx context.Context, name string) error {
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	controllers.About(ctx, "Node", node)
	node, err = c.health(ctx, node.DeepCopy())
	if err != nil {
		return err
	}
	if err := c.mark(ctx, node); err != nil {
		return err
	}
	return c.unreadyPods(ctx, node)
}

// health returns the node, after declaring it silent if it is.
func (c *Controller) health(ctx context.Context, node *corev1.Node) (*corev1.Node, error) {
	left := c.silentIn(node)
	if left > 0 {
		c.loop.AddAfter(node.Name, left)
		return node, nil
	}
	// The cache may be what is silent.
	lease, err := c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		c.mu.Lock()
		c.blind = time.Now()
		c.mu.Unlock()
		return nil, fmt.Errorf("reading the lease of a silent node: %w", err)
	}
	if err == nil {
		c.renewal(lease)
	}
	if left := c.silentIn(node); left > 0 {
		c.loop.AddAfter(node.Name, left)
		return node, nil
	}
	wasReady := condition(node, corev1.NodeReady)
	ready := wasReady != nil && wasReady.Status == corev1.ConditionTrue
	if !silence(node, time.Now()) {
		return node, nil // said already; its next sign of life is an event
	}
	updated, err := c.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("marking a silent node: %w", err)
	}
	controllers.Did(ctx, "marked as unknown, because its kubelet is silent", "Node", nil)
	if ready {
		c.say(node, "NodeNotReady", "Node %s status is now: NodeNotReady", node.Name)
	}
	return updated, nil
}

// silentIn is how long it takes until the node counts as silent.
func (c *Controller) silentIn(node *corev1.Node) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.life[node.Name]
	if l == nil {
		return c.cfg.StartupGrace // its event is on the way
	}
	sign, grace := l.sign, c.cfg.MonitorGrace
	if condition(node, corev1.NodeReady) == nil {
		grace = c.cfg.StartupGrace
	}
	if c.blind.After(sign) {
		sign = c.blind
	}
	return time.Until(sign.Add(grace))
}

// mark brings taints and labels up to date, in one patch.
func (c *Controller) mark(ctx context.Context, node *corev1.Node) error {
	now := time.Now()
	want, wantsEviction := taints(node, false, now)
	begins := false
	if wantsEviction {
		wait, ok := c.mayEvict(node, now)
		begins = ok
		if ok {
			want, _ = taints(node, true, now)
		} else {
			c.loop.AddAfter(node.Name, wait)
		}
	}
	patch := map[string]any{}
	if !sameTaints(want, node.Spec.Taints) {
		if want == nil {
			want = []corev1.Taint{}
		}
		patch["spec"] = map[string]any{"taints": want}
	}
	meta := map[string]any{"resourceVersion": node.ResourceVersion, "uid": node.UID}
	if labels := betaLabels(node); len(labels) > 0 {
		meta["labels"] = labels
	} else if len(patch) == 0 {
		return nil
	}
	patch["metadata"] = meta
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, body, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("patching taints: %w", err)
	}
	if begins {
		evictions.WithLabelValues(zone(node)).Inc()
	}
	controllers.Did(ctx, "taints updated", "Node", nil)
	return nil
}

// mayEvict paces how many nodes begin to be evicted: what fails at once has likely
// one cause, which goes by faster than pods are moved.
func (c *Controller) mayEvict(node *corev1.Node, now time.Time) (wait time.Duration, ok bool) {
	if ready := condition(node, corev1.NodeReady); ready != nil {
		if wait := ready.LastTransitionTime.Add(secondLook).Sub(now); wait > 0 {
			return wait, false
		}
	}
	zones, err := c.survey(now)
	if err != nil {
		return evictionInterval, false
	}
	d := zones[zone(node)]
	if d == nil { // excluded from the survey
		d = &disruption{total: 1}
	}
	if everywhere(zones) {
		return evictionInterval, false
	}
	interval, never := d.interval()
	if never {
		return interval, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if next := c.nextFrom[zone(node)]; now.Before(next) {
		return next.Sub(now), false
	}
	c.nextFrom[zone(node)] = now.Add(interval)
	return 0, true
}

// survey is how many nodes of each zone are ready, as of a second ago at the most: when many nodes fail at once each of them
// asks, and to look at all nodes for each would take the square of their number. No node is judged by it before it has
// been down for longer than that.
func (c *Controller) survey(now time.Time) (map[string]*disruption, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.zones != nil && now.Sub(c.surveyed) < surveyEvery {
		return c.zones, nil
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	c.zones, c.surveyed = survey(nodes), now
	return c.zones, nil
}

// unreadyPods takes the pods of a node that isn't ready out of Services. On a
// silent node nobody else would; on one that reports, its kubelet has the last word,
// so there it is done once, when the node turns.
func (c *Controller) unreadyPods(ctx context.Context, node *corev1.Node) error {
	ready := condition(node, corev1.NodeReady)
	if ready == nil {
		return nil
	}
	c.mu.Lock()
	l := c.life[node.Name]
	turned := l != nil && l.ready == corev1.ConditionTrue && ready.Status == corev1.ConditionFalse
	c.mu.Unlock()
	if ready.Status == corev1.ConditionUnknown || turned {
		if err := c.setPodsUnready(ctx, node); err != nil {
			return err
		}
		if turned {
			c.say(node, "NodeNotReady", "Node %s status is now: NodeNotReady", node.Name)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if l != nil {
		l.ready = ready.Status
	}
	return nil
}

func (c *Controller) setPodsUnready(ctx context.Context, node *corev1.Node) error {
	pods, err := controllers.PodsOn(c.pods, node.Name)
	if err != nil {
		return err
	}
	var errs []error
	for _, pod := range pods {
		if !controllers.PodReady(pod) {
			continue
		}
		condition := *controllers.PodCondition(pod, corev1.PodReady)
		condition.Status, condition.LastTransitionTime = corev1.ConditionFalse, metav1.Now()
		if err := controllers.PatchPodStatus(ctx, c.client, pod, "", condition); err != nil {
			errs = append(errs, err)
			continue
		}
		controllers.Did(ctx, "marked not ready", "Pod", pod)
		c.recorder.Event(pod, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	}
	return errors.Join(errs...)
}
