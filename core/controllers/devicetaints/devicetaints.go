// SPDX-License-Identifier: Apache-2.0

// Package devicetaints evicts the pods that use a device with a taint NoExecute that their
// claim does not tolerate (KEP-5055): a driver has tainted the device in its ResourceSlice, or
// an administrator by a DeviceTaintRule. What a rule does, or would do, its status says.
package devicetaints

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/devicetaint"
)

// statusPeriod is how often a rule's status is written at the most, while pods are evicted.
const statusPeriod = 10 * time.Second

// key is a pod, or a rule.
type key struct {
	rule bool
	controllers.Key
}

// Controller evicts pods.
type Controller struct {
	client kubernetes.Interface
	pods   corelisters.PodLister
	claims resourcelisters.ResourceClaimLister
	rules  resourcelisters.DeviceTaintRuleLister
	using  cache.Indexer // claims, by the pools of their devices
	offers cache.Indexer // slices, by their pools
	events record.EventRecorder
	loop   *controllers.Loop[key]

	mu      sync.Mutex
	evicted map[types.UID]int // pods, by rule
}

const byPool = "pool"

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	r, pods := env.Informers.Resource().V1(), env.Informers.Core().V1().Pods()
	claims, offers, rules := r.ResourceClaims(), r.ResourceSlices(), r.DeviceTaintRules()
	c := &Controller{
		client: env.Client, pods: pods.Lister(), claims: claims.Lister(), rules: rules.Lister(), using: claims.Informer().GetIndexer(),
		offers: offers.Informer().GetIndexer(), events: env.Recorder("device-taint-eviction"), evicted: map[types.UID]int{},
	}
	if err := controllers.AddIndex(claims.Informer(), byPool, func(o any) ([]string, error) { return poolsOf(o), nil }); err != nil {
		return nil, fmt.Errorf("device-taint-eviction-controller: %w", err)
	}
	if err := controllers.AddIndex(offers.Informer(), byPool, func(o any) ([]string, error) { return poolsOf(o), nil }); err != nil {
		return nil, fmt.Errorf("device-taint-eviction-controller: %w", err)
	}
	c.loop = controllers.NewLoop(env, "device-taint-eviction-controller", workers, c.reconcile)
	c.loop.Watch(pods.Informer(), controllers.EachObject(func(o metav1.Object) {
		if p, ok := o.(*corev1.Pod); ok && (len(p.Spec.ResourceClaims) > 0 || p.Status.ExtendedResourceClaimStatus != nil) &&
			p.Spec.NodeName != "" {
			c.loop.Add(key{false, cache.MetaObjectToName(p)})
		}
	}))
	c.loop.Watch(claims.Informer(), controllers.EachObject(func(o metav1.Object) { c.addUsers(o.(*resourcev1.ResourceClaim)) }))
	c.loop.Watch(offers.Informer(), controllers.EachObject(func(o metav1.Object) {
		for _, pool := range poolsOf(o) {
			using, _ := controllers.Indexed[*resourcev1.ResourceClaim](c.using, byPool, pool) // fails only without the index
			for _, claim := range using {
				c.addUsers(claim)
			}
		}
	}))
	c.loop.Watch(rules.Informer(), controllers.Changes(func(old, current metav1.Object) { c.onRule(old, current) }))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// poolsOf are the pools of a claim's devices, or of a slice.
func poolsOf(o any) (out []string) {
	switch o := o.(type) {
	case *resourcev1.ResourceSlice:
		out = []string{o.Spec.Driver + "/" + o.Spec.Pool.Name}
	case *resourcev1.ResourceClaim:
		if o.Status.Allocation == nil {
			return nil
		}
		seen := map[string]bool{}
		for i := range o.Status.Allocation.Devices.Results {
			r := &o.Status.Allocation.Devices.Results[i]
			if name := r.Driver + "/" + r.Pool; !seen[name] {
				seen[name] = true
				out = append(out, name)
			}
		}
	}
	return out
}

// addUsers queues the pods that use a claim.
func (c *Controller) addUsers(claim *resourcev1.ResourceClaim) {
	for _, u := range claim.Status.ReservedFor {
		if u.APIGroup == "" && u.Resource == "pods" {
			c.loop.Add(key{false, controllers.Key{Namespace: claim.Namespace, Name: u.Name}})
		}
	}
}

// onRule queues a rule, and the pods that use devices which it selects or selected.
func (c *Controller) onRule(old, current metav1.Object) {
	was, _ := old.(*resourcev1.DeviceTaintRule)
	is, _ := current.(*resourcev1.DeviceTaintRule)
	if is != nil {
		c.loop.Add(key{true, cache.MetaObjectToName(is)})
	}
	if was != nil && is != nil && was.Generation == is.Generation {
		return // its status
	}
	for _, rule := range []*resourcev1.DeviceTaintRule{was, is} {
		if rule != nil {
			c.selected(rule, func(claim *resourcev1.ResourceClaim, _ *resourcev1.DeviceRequestAllocationResult) { c.addUsers(claim) })
		}
	}
	if is == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.evicted, was.UID)
	}
}

// selected calls f for each allocated device that a rule selects.
func (c *Controller) selected(rule *resourcev1.DeviceTaintRule,
	f func(*resourcev1.ResourceClaim, *resourcev1.DeviceRequestAllocationResult),
) {
	all, _ := c.claims.List(labels.Everything()) // an informer's lister has no errors
	for _, claim := range all {
		if claim.Status.Allocation == nil {
			continue
		}
		for i := range claim.Status.Allocation.Devices.Results {
			if r := &claim.Status.Allocation.Devices.Results[i]; devicetaint.Selects(rule.Spec.DeviceSelector, r.Driver, r.Pool, r.Device) {
				f(claim, r)
			}
		}
	}
}

// find a device in the newest generation of its pool.
func (c *Controller) find(p pool, device string) *resourcev1.Device {
	all, _ := controllers.Indexed[*resourcev1.ResourceSlice](c.offers, byPool, p.driver+"/"+p.name) // fails only without the index
	var newest int64
	for _, s := range all {
		newest = max(newest, s.Spec.Pool.Generation)
	}
	for _, s := range all {
		for i := range s.Spec.Devices {
			if s.Spec.Pool.Generation == newest && s.Spec.Devices[i].Name == device {
				return &s.Spec.Devices[i]
			}
		}
	}
	return nil
}

func (c *Controller) reconcile(ctx context.Context, k key) error {
	if k.rule {
		return c.rule(ctx, k)
	}
	p, err := c.pods.Pods(k.Namespace).Get(k.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	rules, err := c.rules.List(labels.Everything())
	if err != nil {
		return err
	}
	why := c.plan(p, rules)
	if why == nil {
		return nil
	}
	for _, rule := range rules {
		if why.because(rule.UID) {
			c.loop.AddAfter(key{true, cache.MetaObjectToName(rule)}, statusPeriod)
		}
	}
	if wait := time.Until(why.at); wait > 0 {
		c.loop.AddAfter(k, wait)
		return nil
	}
	return c.evict(ctx, p, why)
}

func (c *Controller) plan(p *corev1.Pod, rules []*resourcev1.DeviceTaintRule) *eviction {
	return planPod(p, func(name string) *resourcev1.ResourceClaim {
		claim, err := c.claims.ResourceClaims(p.Namespace).Get(name)
		if err != nil {
			return nil
		}
		return claim
	}, c.find, rules)
}

// evict a pod: its condition says why, then it is deleted.
func (c *Controller) evict(ctx context.Context, p *corev1.Pod, why *eviction) error {
	controllers.About(ctx, "Pod", p)
	c.events.Event(p, corev1.EventTypeNormal, "DeviceTaintManagerEviction", "Marking for deletion")
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: p.Generation, LastTransitionTime: metav1.Now(),
			Reason: "DeletionByDeviceTaintManager", Message: "Device Taint manager: deleting due to NoExecute taint",
		}}},
	})
	if err != nil {
		return fmt.Errorf("encode a pod's condition: %w", err)
	}
	pods := c.client.CoreV1().Pods(p.Namespace)
	_, err = pods.Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil {
		err = pods.Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // it has gone, and maybe another one has its name
		return nil
	}
	if err != nil {
		return fmt.Errorf("evict a pod that uses a tainted device: %w", err)
	}
	controllers.Did(ctx, "evicted a pod that uses a tainted device", "Pod", p)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rule := range why.rules {
		c.evicted[rule]++
	}
	return nil
}

// rule brings a rule's status up to date.
func (c *Controller) rule(ctx context.Context, k key) error {
	rule, err := c.rules.Get(k.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	was := metav1.Condition{}
	for i := range rule.Status.Conditions {
		if rule.Status.Conditions[i].Type == resourcev1.DeviceTaintConditionEvictionInProgress {
			was = rule.Status.Conditions[i]
		}
	}
	if was.ObservedGeneration == rule.Generation && was.Reason == "NoEffect" {
		return nil // said once
	}
	is := condition(rule, c.count(rule))
	if is.LastTransitionTime = was.LastTransitionTime; is == was {
		return nil
	}
	controllers.About(ctx, "DeviceTaintRule", rule)
	is.LastTransitionTime = metav1.Now()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": rule.UID},
		"status":   map[string]any{"conditions": []metav1.Condition{is}},
	})
	if err != nil {
		return fmt.Errorf("encode a rule's status: %w", err)
	}
	_, err = c.client.ResourceV1().DeviceTaintRules().Patch(ctx, rule.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{},
		"status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the status of a device taint rule: %w", err)
	}
	return nil
}

// count what a rule is about: a rule without effect as if it had one.
func (c *Controller) count(rule *resourcev1.DeviceTaintRule) count {
	c.mu.Lock()
	n := count{evicted: c.evicted[rule.UID]}
	c.mu.Unlock()
	as := rule.DeepCopy()
	as.Spec.Taint.Effect = resourcev1.DeviceTaintEffectNoExecute
	if as.Spec.Taint.TimeAdded == nil {
		as.Spec.Taint.TimeAdded = new(metav1.Now())
	}
	pods, spaces := map[types.UID]bool{}, map[string]bool{}
	c.selected(as, func(claim *resourcev1.ResourceClaim, _ *resourcev1.DeviceRequestAllocationResult) {
		n.allocated++
		for _, u := range claim.Status.ReservedFor {
			p, err := c.pods.Pods(claim.Namespace).Get(u.Name)
			if err == nil && p.UID == u.UID && c.plan(p, []*resourcev1.DeviceTaintRule{as}).because(as.UID) {
				pods[p.UID], spaces[p.Namespace] = true, true
			}
		}
	})
	n.pods, n.namespaces = len(pods), len(spaces)
	for _, o := range c.offers.List() {
		s, ok := o.(*resourcev1.ResourceSlice)
		if !ok {
			continue
		}
		for i := range s.Spec.Devices {
			if devicetaint.Selects(as.Spec.DeviceSelector, s.Spec.Driver, s.Spec.Pool.Name, s.Spec.Devices[i].Name) {
				n.devices++
			}
		}
	}
	return n
}

// because says whether a rule is among the reasons.
func (e *eviction) because(rule types.UID) bool { return e != nil && slices.Contains(e.rules, rule) }
