// SPDX-License-Identifier: Apache-2.0

package run

import "context"

// Queue hands out items, each to one worker at a time; client-go's workqueue is one.
type Queue[T comparable] interface {
	// Get waits for an item. shutdown: there are no more.
	Get() (item T, shutdown bool)
	// Done says that the work on an item of Get has ended.
	Done(item T)
	ShutDown()
}

// Work has so many workers do what a queue hands out, and returns when all of them have
// returned. It shuts the queue down when ctx ends; items that are left then are not worked on.
func Work[T comparable](ctx context.Context, name string, workers int, queue Queue[T], do func(context.Context, T)) {
	defer context.AfterFunc(ctx, queue.ShutDown)()
	var all Tasks
	for range workers {
		all.Go(name, func() {
			for workOn(ctx, queue, do) {
			}
		})
	}
	all.Wait()
}

func workOn[T comparable](ctx context.Context, queue Queue[T], do func(context.Context, T)) bool {
	item, shutdown := queue.Get()
	if shutdown {
		return false
	}
	defer queue.Done(item)
	if ctx.Err() != nil {
		return false
	}
	do(ctx, item)
	return true
}
