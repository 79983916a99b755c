// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/run"
)

const (
	// shelf is a node without a kubelet: pods are bound to it, and cost nothing.
	shelf = "shelf"
	// probeEvery is how often a pod is made to be bound, and a Deployment changed.
	probeEvery = 500 * time.Millisecond
)

// delays measures how long it takes until something is done that was requested and acknowledged.
type delays struct {
	mu      sync.Mutex
	begun   time.Time // zero: nothing is open
	longest time.Duration
	done    int
}

func (d *delays) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begun = time.Now()
}

func (d *delays) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.longest = max(d.longest, time.Since(d.begun))
	d.begun = time.Time{}
	d.done++
}

// count is how often it was done.
func (d *delays) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

// take answers the longest delay since the last take, the open one included.
func (d *delays) take() seconds {
	d.mu.Lock()
	defer d.mu.Unlock()
	longest := d.longest
	if !d.begun.IsZero() {
		longest = max(longest, time.Since(d.begun))
	}
	d.longest = 0
	return seconds(longest)
}

// untilDone does each step until it succeeds at some server, or ctx ends.
func untilDone(ctx context.Context, s *servers, every time.Duration, step func(context.Context, *kubernetes.Clientset) error) {
	for ctx.Err() == nil {
		one, cancel := context.WithTimeout(ctx, tryFor)
		err := step(one, s.current())
		cancel()
		if err == nil {
			return
		}
		if !isPending(err) {
			s.at++
		}
		run.Sleep(ctx, every)
	}
}

type pending string

func (p pending) Error() string { return string(p) }

func isPending(err error) bool { _, ok := err.(pending); return ok } //nolint:errorlint // it is never wrapped

// schedule creates pods for the shelf and waits until each is bound.
func (d *delays) schedule(ctx context.Context, s servers, namespace string) {
	zero := int64(0)
	for n := 0; ctx.Err() == nil; n++ {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("probe-%d", n)}, Spec: corev1.PodSpec{
			NodeSelector: map[string]string{shelf: "yes"}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "none", Image: "none"}}, TerminationGracePeriodSeconds: &zero,
		}}
		untilDone(ctx, &s, 50*time.Millisecond, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
		d.begin()
		untilDone(ctx, &s, 50*time.Millisecond, func(ctx context.Context, c *kubernetes.Clientset) error {
			p, err := c.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil // who deletes a node deletes its pods
			}
			if err == nil && p.Spec.NodeName == "" {
				return pending("it is not bound")
			}
			return err
		})
		d.end()
		untilDone(ctx, &s, 50*time.Millisecond, func(ctx context.Context, c *kubernetes.Clientset) error {
			err := c.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
		run.Sleep(ctx, probeEvery)
	}
}

// change changes a Deployment without pods and waits until its controller has seen each change.
func (d *delays) change(ctx context.Context, s servers, namespace, name string) {
	for n := int32(1); ctx.Err() == nil; n++ {
		var generation int64
		patch := fmt.Appendf(nil, `{"spec":{"minReadySeconds":%d}}`, n)
		untilDone(ctx, &s, 50*time.Millisecond, func(ctx context.Context, c *kubernetes.Clientset) error {
			is, err := c.AppsV1().Deployments(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
			if err == nil {
				generation = is.Generation
			}
			return err
		})
		d.begin()
		untilDone(ctx, &s, 50*time.Millisecond, func(ctx context.Context, c *kubernetes.Clientset) error {
			is, err := c.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
			if err == nil && is.Status.ObservedGeneration < generation {
				return pending("it is not seen")
			}
			return err
		})
		d.end()
		run.Sleep(ctx, probeEvery)
	}
}

// makeShelf makes the node on which pods are only written down.
func makeShelf(ctx context.Context, c *kubernetes.Clientset) error {
	_, err := c.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: shelf, Labels: map[string]string{shelf: "yes"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: shelf, Effect: corev1.TaintEffectNoSchedule}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	const room = `{"pods":"110","cpu":"4","memory":"4Gi"}`
	// Controllers write it at the same time.
	_, err = c.CoreV1().Nodes().Patch(ctx, shelf, types.MergePatchType, []byte(`{"status":{"capacity":`+room+`,"allocatable":`+room+`}}`),
		metav1.PatchOptions{}, "status")
	return err
}
