// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"time"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// effort is what a decision cost, for the metrics.
type effort struct {
	points    []spent
	asked     map[asked]int
	preempted bool // somebody was asked to make room
	now       func() time.Time
}

// spent is the time that an extension point took, and its outcome.
type spent struct {
	point  string
	status *framework.Status
	took   time.Duration
}

// asked is a plugin at an extension point.
type asked struct{ point, plugin string }

// begin begins an extension point; what it returns is called with the outcome.
func (e *effort) begin(point string) func(*framework.Status) {
	began := e.now()
	return func(st *framework.Status) {
		e.points = append(e.points, spent{point, st, e.now().Sub(began)})
	}
}

// count adds that a plugin was asked n times at a point.
func (e *effort) count(point, plugin string, n int) {
	if n <= 0 {
		return
	}
	if e.asked == nil {
		e.asked = map[asked]int{}
	}
	e.asked[asked{point, plugin}] += n
}

// askedFilters counts how often each filter was asked in a search: all of them about a
// node that fits, and up to the one that refused about another.
func (d *Decision) askedFilters(filters []placed[framework.Filter]) {
	refusals := map[string]int{}
	for _, st := range d.Statuses {
		refusals[st.Plugin]++
	}
	left := len(d.Feasible) + len(d.Statuses)
	for _, f := range filters {
		d.effort.count("Filter", f.plugin.Name(), left)
		left -= refusals[f.plugin.Name()]
	}
}
