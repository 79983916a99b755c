// SPDX-License-Identifier: Apache-2.0

package run

import (
	"slices"
	"time"
)

// State is where a unit is in its life.
type State string

// The states of a unit, in the order in which it has them.
const (
	Waiting  State = "waiting"  // for the unit before it to be ready
	Starting State = "starting" // it runs, and is not ready
	Ready    State = "ready"
	Stopping State = "stopping" // it was asked to end
	Stopped  State = "stopped"
	Failed   State = "failed" // it ended by itself, which stops the group
)

// Status is what is known of one unit of a group.
type Status struct {
	Name  string
	State State
	// After is the unit that has to be ready before this one starts, and that stops
	// after it; "" for the first one.
	After string
	// Since is when the unit came into its state; zero for one that waits.
	Since time.Time
	// Took is how long a ready unit needed to become so.
	Took time.Duration
	// Error is why a unit failed, or what it returned when it was stopped.
	Error string
}

// Status of every unit, in the order of start. It may be called at any time.
func (g *Group) Status() []Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.statuses)
}

// enter records that the unit at this place came into a state.
func (g *Group) enter(at int, s State, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	status, now := &g.statuses[at], time.Now()
	if status.State == Stopped || status.State == Failed {
		return // nothing follows
	}
	if s == Ready {
		status.Took = now.Sub(status.Since)
	}
	status.State, status.Since = s, now
	if err != nil {
		status.Error = err.Error()
	}
}
