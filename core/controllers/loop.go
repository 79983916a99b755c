// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Loop is one control loop: sources put keys into a queue, workers take them out
// and reconcile. A key is reconciled by one worker at a time; keys that fail come
// back with a growing delay, and those that come again and again although they succeed are
// worked on 10 times a second, after a burst of 200. Namespaces take turns.
type Loop[K comparable] struct {
	attempts[K]
	workers int
	queue   workqueue.TypedRateLimitingInterface[K]

	sources []source
	private []cache.SharedInformer
	synced  []cache.InformerSynced
	jobs    []func(context.Context)
}

type source struct {
	informer cache.SharedInformer
	handler  cache.ResourceEventHandler
}

// NewLoop makes a loop that runs nothing yet. workers below 1 counts as 1.
func NewLoop[K comparable](env Env, name string, workers int, reconcile func(context.Context, K) error) *Loop[K] {
	l := &Loop[K]{
		workers: max(workers, 1),
		// The name is what its workqueue_* metrics have.
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(backoff[K](), workqueue.TypedRateLimitingQueueConfig[K]{
			Name: name, DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{
				Name: name, Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[K]{Name: name, Queue: newFairQueue[K]()}),
			}),
		}),
	}
	l.attempts = newAttempts(env, name, reconcile, l.queue)
	return l
}

// Add queues a key.
func (l *Loop[K]) Add(key K) { l.queue.Add(key) }

// AddAfter queues a key after a delay.
func (l *Loop[K]) AddAfter(key K, d time.Duration) { l.queue.AddAfter(key, d) }

// Watch lets events of an informer feed the queue while the loop runs. Workers
// start only after every watched informer has delivered what exists.
func (l *Loop[K]) Watch(informer cache.SharedInformer, handler cache.ResourceEventHandler) {
	l.sources = append(l.sources, source{informer, handler})
}

// Needs makes workers wait for a cache that is read but whose events queue nothing.
func (l *Loop[K]) Needs(informers ...cache.SharedInformer) {
	for _, i := range informers {
		l.synced = append(l.synced, i.HasSynced)
	}
}

// Own makes the loop run an informer that it shares with nobody, from the
// beginning of Run to its end.
func (l *Loop[K]) Own(informer cache.SharedInformer) { l.private = append(l.private, informer) }

// Beside runs a job with the loop: started when the caches are there, ended by
// its context, waited for.
func (l *Loop[K]) Beside(job func(context.Context)) { l.jobs = append(l.jobs, job) }

// Run works until ctx ends, then stops listening and waits for the workers. It is
// called once.
func (l *Loop[K]) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	defer l.queue.ShutDown()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for _, informer := range l.private {
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	for _, s := range l.sources {
		registration, err := s.informer.AddEventHandler(s.handler)
		if ctx.Err() != nil {
			return nil // informers may have ended with ctx already
		}
		if err != nil {
			return fmt.Errorf("%s: watching: %w", l.name, err)
		}
		defer func() { _ = s.informer.RemoveEventHandler(registration) }() // fails only when the informer has ended
		l.synced = append(l.synced, registration.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), l.synced...) {
		return nil
	}
	l.log.DebugContext(ctx, "the controller works")
	for range l.workers {
		running.Go(func() { l.work(ctx) })
	}
	for _, job := range l.jobs {
		running.Go(func() { job(ctx) })
	}
	<-ctx.Done()
	return nil
}

func (l *Loop[K]) work(ctx context.Context) {
	for {
		key, shutdown := l.queue.Get()
		if shutdown {
			return
		}
		l.once(ctx, key)
		l.queue.Done(key)
	}
}

// KeyHandler queues the key of every object that changes.
func KeyHandler(loop *Loop[Key]) cache.ResourceEventHandler {
	return EachObject(func(obj metav1.Object) { loop.Add(cache.MetaObjectToName(obj)) })
}

// EachObject calls f for each object that appears, changes or goes, with its
// last known state. Resyncs that changed nothing are left out.
func EachObject(f func(metav1.Object)) cache.ResourceEventHandler {
	return Changes(func(old, current metav1.Object) {
		if current != nil {
			f(current)
		} else {
			f(old)
		}
	})
}

// Changes calls f with an object's former and present state: old is nil when it
// appeared, current is nil when it is gone. An object that was deleted and made
// anew between two events arrives as two calls. Resyncs are left out.
func Changes(f func(old, current metav1.Object)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if o, ok := obj.(metav1.Object); ok {
				f(nil, o)
			}
		},
		UpdateFunc: func(oldObj, newObj any) {
			o, ok1 := oldObj.(metav1.Object)
			n, ok2 := newObj.(metav1.Object)
			switch {
			case !ok1 || !ok2:
			case o.GetUID() != n.GetUID():
				f(o, nil)
				f(nil, n)
			case o.GetResourceVersion() != n.GetResourceVersion() || n.GetResourceVersion() == "":
				f(o, n)
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if o, ok := obj.(metav1.Object); ok {
				f(o, nil)
			}
		},
	}
}
