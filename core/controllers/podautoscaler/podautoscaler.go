// SPDX-License-Identifier: Apache-2.0

// Package podautoscaler keeps the size of what HorizontalPodAutoscalers refer to
// near what their metrics ask for.
//
// What is to be done is decided purely, from the autoscaler, the scale of its
// target, its pods, the readings of its metrics and the recommendations of late
// (plan.go, judge.go for one metric, behavior.go for the pace); Controller reads
// these and carries it out, through the scale subresource of whatever the target is.
//
// The rules are upstream's: where something is not known, replicas are rather kept
// than taken, and assumptions never turn the direction round. It writes nothing but
// scales and the status of autoscalers.
package podautoscaler

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	autoscalinglisters "k8s.io/client-go/listers/autoscaling/v2"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/controllers"
)

const (
	// period is how often an autoscaler is looked at.
	period = 15 * time.Second
	// patience with all that is asked for one autoscaler.
	patience = 30 * time.Second
	// rivalsMost is how many autoscalers a complaint about a selector names.
	rivalsMost = 2
)

// Controller scales.
type Controller struct {
	client   kubernetes.Interface
	dynamic  dynamic.Interface
	sources  *sources
	recorder record.EventRecorder
	hpas     autoscalinglisters.HorizontalPodAutoscalerLister
	pods     corelisters.PodLister
	loop     *controllers.Loop[controllers.Key]

	mu        sync.Mutex
	histories map[controllers.Key]past
	selectors map[controllers.Key]labels.Selector // of the targets' pods, as they were seen last
}

// past is an autoscaler's history: another one of its name has none.
type past struct {
	of      types.UID
	history history
}

// New makes the controller. The dynamic client reads and writes the scale of targets
// of any kind.
func New(env controllers.Env, workers int, dyn dynamic.Interface) (*Controller, error) {
	register()
	hpas, pods := env.Informers.Autoscaling().V2().HorizontalPodAutoscalers(), env.Informers.Core().V1().Pods()
	c := &Controller{
		client: env.Client, dynamic: dyn, sources: &sources{discovery: env.Client.Discovery()},
		recorder: env.Recorder("horizontal-pod-autoscaler"), hpas: hpas.Lister(), pods: pods.Lister(),
		histories: map[controllers.Key]past{}, selectors: map[controllers.Key]labels.Selector{},
	}
	c.loop = controllers.NewLoop(env, "horizontal-pod-autoscaler-controller", workers, c.reconcile)
	c.loop.Watch(hpas.Informer(), controllers.Changes(func(old, current metav1.Object) {
		// Of what we wrote ourselves nothing follows.
		if old == nil || current == nil || old.GetGeneration() != current.GetGeneration() {
			for _, o := range []metav1.Object{old, current} {
				if hpa, ok := o.(*autoscalingv2.HorizontalPodAutoscaler); ok {
					c.loop.Add(cache.MetaObjectToName(hpa))
				}
			}
		}
	}))
	c.loop.Needs(pods.Informer())
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	hpa, err := c.hpas.HorizontalPodAutoscalers(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.forget(key)
		return nil
	}
	if err != nil {
		return err
	}
	controllers.About(ctx, "HorizontalPodAutoscaler", hpa)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	p := c.pass(ctx, key, hpa)
	reconciled(p, time.Since(began))
	for _, e := range p.events {
		c.recorder.Event(hpa, e.kind, e.reason, bounded(e.message))
	}
	c.loop.AddAfter(key, period)
	if equality.Semantic.DeepEqual(hpa.Status, p.hpa.Status) {
		return nil
	}
	_, err = c.client.AutoscalingV2().HorizontalPodAutoscalers(key.Namespace).UpdateStatus(ctx, p.hpa, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil && !apierrors.IsConflict(err) {
		c.recorder.Event(hpa, corev1.EventTypeWarning, "FailedUpdateStatus", err.Error())
	}
	if err != nil {
		return fmt.Errorf("updating status: %w", err)
	}
	return nil
}

// pass makes a plan and carries it out.
func (c *Controller) pass(ctx context.Context, key controllers.Key, hpa *autoscalingv2.HorizontalPodAutoscaler) *plan {
	found, err := c.find(ctx, key.Namespace, hpa.Spec.ScaleTargetRef)
	if err != nil {
		return unreachable(hpa, err, time.Now())
	}
	p := begin(hpa, found.target, c.history(key, hpa.UID), time.Now())
	if p.bounds() {
		if selector := p.selector(); selector != nil {
			e := c.evidence(ctx, key, hpa, selector)
			p.decide(e)
			computed(p, e)
		}
	}
	if p.rescale {
		if err := found.write(ctx, p.replicas); err != nil {
			p.refused(err)
		} else {
			controllers.Did(ctx, fmt.Sprintf("scaled %s %s to %d", hpa.Spec.ScaleTargetRef.Kind, hpa.Spec.ScaleTargetRef.Name, p.replicas),
				"HorizontalPodAutoscaler", nil)
		}
	}
	p.done()
	c.remember(key, hpa, p.history)
	return p
}

// evidence for a plan.
func (c *Controller) evidence(ctx context.Context, key controllers.Key, hpa *autoscalingv2.HorizontalPodAutoscaler,
	selector labels.Selector,
) evidence {
	e := evidence{readings: make([]reading, len(hpa.Spec.Metrics))}
	e.pods, _ = c.pods.Pods(key.Namespace).List(selector) // an index of the cache: it does not fail
	if e.rivals = c.rivals(key, selector, e.pods); len(e.rivals) > 0 {
		return e
	}
	for i := range hpa.Spec.Metrics {
		began := time.Now()
		e.readings[i] = c.sources.read(ctx, key.Namespace, &hpa.Spec.Metrics[i], selector)
		e.readings[i].took = time.Since(began)
	}
	return e
}

// rivals are the autoscalers that have some of the same pods, this one among them;
// none where it has them alone.
func (c *Controller) rivals(key controllers.Key, selector labels.Selector, pods []*corev1.Pod) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.selectors[key] = selector
	var names []string
	for other, s := range c.selectors {
		if other.Namespace == key.Namespace && other != key && slices.ContainsFunc(pods,
			func(p *corev1.Pod) bool { return s.Matches(labels.Set(p.Labels)) }) {
			names = append(names, other.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return append([]string{key.Name}, names[:min(len(names), rivalsMost-1)]...)
}

func (c *Controller) history(key controllers.Key, of types.UID) history {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.histories[key]; p.of == of {
		return p.history
	}
	return history{}
}

// remember what was recommended, unless the autoscaler is gone: nobody would forget it.
func (c *Controller) remember(key controllers.Key, hpa *autoscalingv2.HorizontalPodAutoscaler, h history) {
	if now, err := c.hpas.HorizontalPodAutoscalers(key.Namespace).Get(key.Name); err != nil || now.UID != hpa.UID {
		c.forget(key)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.histories[key] = past{hpa.UID, h}
}

func (c *Controller) forget(key controllers.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.histories, key)
	delete(c.selectors, key)
}
