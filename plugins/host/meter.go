// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/plugins/fuel"
)

// How long a guest runs between two safe points. The slice of fuel follows the
// clock, because a unit of fuel is an instruction, and instructions differ: one that
// misses the cache takes a hundred times as long as an addition.
//
// sliceLargest is what bounds a stretch for certain, whatever the clock said before: some
// 60 us of ordinary code. A safe point costs less than 1 % of that.
const (
	sliceFirst    = 1 << 13
	sliceSmallest = 1 << 12
	sliceLargest  = 1 << 16
	sliceLong     = 400 * time.Microsecond
	sliceShort    = 150 * time.Microsecond
)

// allowance is what an account may spend.
type allowance struct {
	fuel  int64
	time  time.Duration
	start bool // of start-up, or of a first call, which is part of it
}

// named is the limit that would have to be raised.
func (a allowance) named(limit string) string {
	if a.start {
		limit = "start" + strings.ToUpper(limit[:1]) + limit[1:]
	}
	return "limits." + limit
}

// forCall and forStart are what limits allow a call and a start-up.
func (l *Limits) forCall() allowance { return allowance{fuel: l.Fuel, time: l.Deadline} }

func (l *Limits) forStart() allowance {
	return allowance{fuel: l.StartFuel, time: l.StartDeadline, start: true}
}

// meter is the account of one call.
type meter struct {
	budget    int64 // fuel
	granted   int64 // put into the guest's counter so far
	slice     int64
	deadline  time.Time
	lastPoint time.Time
	hostCalls int64
	held      int64 // bytes of Go's memory that values of a component take
}

// begin opens the account: the counter gets its first slice.
func (in *Instance) begin(budget int64, start, deadline time.Time) {
	slice := in.meter.slice
	if slice == 0 {
		slice = sliceFirst
	}
	in.meter = meter{budget: budget, slice: slice, deadline: deadline, lastPoint: start}
	in.meter.granted = min(slice, budget)
	in.turn.Begin()
	in.counter.Set(uint64(in.meter.granted))
	in.out.Begin()
}

// used is the fuel that the call has used so far.
func (in *Instance) used() int64 {
	return min(in.meter.granted-int64(in.counter.Get()), in.meter.budget)
}

// safePoint is where a guest comes when its slice is used up.
func (in *Instance) safePoint(why uint32) {
	if why == fuel.Overflow {
		panic(&stop{kind: StackDepth, detail: fmt.Sprintf("calls are nested deeper than limits.stack (%d bytes) allows",
			in.module.opts.Limits.Stack)})
	}
	now := time.Now()
	in.checkTime(now)
	m := &in.meter
	left := int64(in.counter.Get())
	switch took := now.Sub(m.lastPoint); {
	case in.linear.Grown(): // what comes next may touch fresh pages
		m.slice = sliceSmallest
	case took > sliceLong:
		m.slice = max(m.slice/2, sliceSmallest)
	case took < sliceShort:
		m.slice = min(m.slice*2, sliceLargest)
	}
	more := min(m.slice+max(-left, 0), m.budget-m.granted)
	if left+more < 0 || more <= 0 {
		panic(&stop{kind: Fuel, detail: fmt.Sprintf("it used up its fuel of %d units (%s)", m.budget, in.allowed.named("fuel"))})
	}
	m.granted += more
	in.counter.Set(uint64(left + more))
	// Others have their turn here, the garbage collector first of all.
	runtime.Gosched()
	in.takeTurn()
	m.lastPoint = time.Now()
}

// takeTurn lets a guest that has run for long go on when it is its turn.
func (in *Instance) takeTurn() {
	if !in.module.host.turns.Take(&in.turn, in.used(), in.meter.deadline, in.ctx.request.Done()) {
		in.checkTime(time.Now())
		panic(&stop{kind: Deadline, detail: fmt.Sprintf("it waited for its turn beside other plugins until %s were over (%s)", in.allowed.time,
			in.allowed.named("deadline"))})
	}
}

// giveTurn ends it, before the guest waits for anything else.
func (in *Instance) giveTurn() { in.module.host.turns.Give(&in.turn) }

// checkTime ends the call where its deadline has passed or its request is over.
func (in *Instance) checkTime(now time.Time) {
	if now.After(in.meter.deadline) {
		panic(&stop{kind: Deadline, detail: fmt.Sprintf("it ran longer than %s (%s)", in.allowed.time, in.allowed.named("deadline"))})
	}
	if err := in.ctx.request.Err(); err != nil {
		panic(&stop{kind: Canceled, detail: "the request ended", err: err})
	}
}

// enterHost accounts for a call of a host function.
func (in *Instance) enterHost(cost int64) {
	in.checkTime(time.Now())
	in.charge(cost)
}

// charge takes fuel for work that the host does for the guest. The next safe
// point, at the latest, sees a counter below zero.
func (in *Instance) charge(units int64) {
	left := int64(in.counter.Get()) - units
	in.counter.Set(uint64(left))
	if left < 0 {
		in.safePoint(fuel.Yield)
	}
}

// errBadResult says that a guest pointed outside of its memory.
var errBadResult = errors.New("result outside of memory")
