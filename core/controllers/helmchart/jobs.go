// SPDX-License-Identifier: Apache-2.0

package helmchart

import (
	"context"
	"sync"

	"github.com/wasmplane/wasmplane/core/chart/render"
	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/run"
)

// Charts are fetched and rendered by so many jobs at a time, in all, for all tenants and for one namespace: a slow source holds
// up others of its namespace, and no worker of the loop; tenants together hold up no operator.
const (
	jobsInAll        = 8
	jobsOfTenants    = 6
	jobsInANamespace = 2
)

// prepared is what a job came to.
type prepared struct {
	rendered *render.Rendered
	digest   string // of the archive
	err      error
}

// job is one that runs, or whose result has not been fetched.
type job struct {
	want   string // what it was begun for
	cancel context.CancelFunc
	done   *prepared // nil while it runs
}

// jobs run beside the loop. Who waits for one is queued again when it is done.
type jobs struct {
	again   func(controllers.Key)
	running run.Tasks

	mu     sync.Mutex
	ctx    func() (context.Context, context.CancelFunc) // of a new job; nil while the controller is stopped
	active map[string]int                               // by namespace
	all    int
	theirs int // of tenants
	by     map[controllers.Key]*job
}

func newJobs(again func(controllers.Key)) *jobs {
	return &jobs{again: again, active: map[string]int{}, by: map[controllers.Key]*job{}}
}

func (j *jobs) begin(ctx context.Context) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ctx = func() (context.Context, context.CancelFunc) { return context.WithCancel(ctx) }
}

// end waits for the jobs, whose context has ended.
func (j *jobs) end() {
	j.mu.Lock()
	j.ctx = nil
	j.mu.Unlock()
	j.running.Wait()
}

// drop ends the job of a key, and forgets its result.
func (j *jobs) drop(key controllers.Key) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if old := j.by[key]; old != nil {
		old.cancel()
		delete(j.by, key)
	}
}

// ask gives the result of a job, which it begins where there is none for this. full says that there is no room for
// another one now.
func (j *jobs) ask(key controllers.Key, what string, do func(context.Context) *prepared) (done *prepared, full bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if old := j.by[key]; old != nil {
		if old.want == what {
			if old.done != nil {
				delete(j.by, key)
			}
			return old.done, false
		}
		old.cancel()
		delete(j.by, key)
	}
	tenants := 0
	if ofTenants(key.Namespace) {
		tenants = 1
	}
	if j.ctx == nil || j.all >= jobsInAll || j.theirs+tenants > jobsOfTenants || j.active[key.Namespace] >= jobsInANamespace {
		return nil, true
	}
	ctx, cancel := j.ctx()
	now := &job{want: what, cancel: cancel}
	j.by[key] = now
	j.all++
	j.theirs += tenants
	j.active[key.Namespace]++
	j.running.Go("helm chart: fetch and render", func() {
		defer cancel()
		result := do(ctx)
		j.mu.Lock()
		now.done = result
		j.all--
		j.theirs -= tenants
		if j.active[key.Namespace]--; j.active[key.Namespace] == 0 {
			delete(j.active, key.Namespace)
		}
		j.mu.Unlock()
		j.again(key)
	})
	return nil, false
}
