// SPDX-License-Identifier: Apache-2.0

package localcsi

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wasmplane/wasmplane/core/run"
)

// jobs are what is being made. A job outlives the call that began it.
type jobs struct {
	queue chan *job

	mu      sync.Mutex
	running map[string]*job
}

type job struct {
	do     func() error
	copies bool
	ctx    context.Context //nolint:containedctx // its own: it outlives the calls that wait for it
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done
}

// atOnce bounds the copies that are made at a time. What is no copy is quickly made, and waits for none.
const atOnce = 4

// run works until ctx ends, which ends every job.
func (j *jobs) run(ctx context.Context) error {
	var tasks run.Tasks
	defer tasks.Wait()
	slots := make(chan struct{}, atOnce)
	for {
		select {
		case <-ctx.Done():
			return nil
		case one := <-j.queue:
			tasks.Go("localcsi: make", func() {
				defer one.cancel()
				defer context.AfterFunc(ctx, one.cancel)()
				defer close(one.done)
				if one.copies {
					select {
					case slots <- struct{}{}:
						defer func() { <-slots }()
					case <-one.ctx.Done():
					}
				}
				one.err = one.do()
			})
		}
	}
}

// make has something made, a copy or a new one, or waits for who is making it already. Who gives up leaves
// it at work.
func (j *jobs) make(ctx context.Context, key string, copies bool, do func(context.Context) error) error {
	j.mu.Lock()
	one := j.running[key]
	if one == nil {
		one = &job{copies: copies, done: make(chan struct{})}
		one.ctx, one.cancel = context.WithCancel(context.WithoutCancel(ctx))
		one.do = func() error {
			defer j.forget(key)
			if err := one.ctx.Err(); err != nil {
				return err
			}
			return do(one.ctx)
		}
		if j.running == nil {
			j.running = map[string]*job{}
		}
		j.running[key] = one
		j.mu.Unlock()
		select {
		case j.queue <- one:
		case <-ctx.Done():
			one.cancel()
			j.forget(key)
			one.err = status.FromContextError(ctx.Err()).Err()
			close(one.done)
		}
	} else {
		j.mu.Unlock()
	}
	select {
	case <-one.done:
		return one.err
	case <-ctx.Done():
		return status.Error(codes.DeadlineExceeded, "it is being made: ask again")
	}
}

func (j *jobs) forget(key string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.running, key)
}

// end ends a job and waits until it has.
func (j *jobs) end(ctx context.Context, key string) error {
	j.mu.Lock()
	one := j.running[key]
	j.mu.Unlock()
	if one == nil {
		return nil
	}
	one.cancel()
	select {
	case <-one.done:
		return nil
	case <-ctx.Done():
		return status.Error(codes.Aborted, "it is being made still")
	}
}
