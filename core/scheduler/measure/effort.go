// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"time"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Effort is what a decision cost, for the metrics.
type Effort struct {
	points    []spent
	asked     map[asked]int
	Preempted bool             // somebody was asked to make room
	Now       func() time.Time // is the clock
}

// spent is the time that an extension point took, and its outcome.
type spent struct {
	point  string
	status *framework.Status
	took   time.Duration
}

// asked is a plugin at an extension point.
type asked struct{ point, plugin string }

// Begin begins an extension point; what it returns is called with the outcome.
func (e *Effort) Begin(point string) func(*framework.Status) {
	began := e.Now()
	return func(st *framework.Status) {
		e.points = append(e.points, spent{point, st, e.Now().Sub(began)})
	}
}

// Count adds that a plugin was asked n times at a point.
func (e *Effort) Count(point, plugin string, n int) {
	if n <= 0 {
		return
	}
	if e.asked == nil {
		e.asked = map[asked]int{}
	}
	e.asked[asked{point, plugin}] += n
}

// Asked is how often a plugin was asked at a point.
func (e *Effort) Asked(point, plugin string) int { return e.asked[asked{point, plugin}] }
