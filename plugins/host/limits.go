// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"runtime"
	"time"
)

// Limits bound what one plugin may use. The zero value of a field means its default.
type Limits struct {
	Fuel      int64         // units for one call; default 50 million, some 30 to 50 ms of a fast machine
	Deadline  time.Duration // of one call, host calls and waiting for an instance included; default 250 ms
	Memory    int64         // bytes of linear memory, rounded down to 64 KiB pages; default 32 MiB
	Stack     int64         // estimated bytes of frames of recursive calls; default 1 MiB
	Output    int64         // bytes of one answer; default 1 MiB
	HostCalls int64         // host functions in one call; default 64
	HostReply int64         // bytes of one host function's answer; default 1 MiB
	Log       int64         // bytes that one call may write to the log; default 8 KiB
	Instances int           // instances that may run at once; default GOMAXPROCS, at least 2

	// StartFuel is units for instantiation, initialisation and settings, and for a
	// foreign module's first call besides Fuel; default 500 million.
	StartFuel     int64
	StartDeadline time.Duration // the same in time; default 5 s
	Input         int64         // bytes of one input; default 8 MiB
}

// WithDefaults fills in what is zero.
func (l Limits) WithDefaults() Limits {
	set := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	set(&l.Fuel, 50_000_000)
	set(&l.Memory, 32<<20)
	set(&l.Stack, 1<<20)
	set(&l.Output, 1<<20)
	set(&l.HostCalls, 64)
	set(&l.HostReply, 1<<20)
	set(&l.Log, 8<<10)
	set(&l.StartFuel, 500_000_000)
	set(&l.Input, 8<<20)
	if l.Deadline == 0 {
		l.Deadline = 250 * time.Millisecond
	}
	if l.StartDeadline == 0 {
		l.StartDeadline = 5 * time.Second
	}
	if l.Instances == 0 {
		l.Instances = max(2, runtime.GOMAXPROCS(0))
	}
	return l
}

// Validate refuses what cannot be meant.
func (l Limits) Validate() error {
	var errs []error
	positive := func(name string, v int64) {
		if v < 0 {
			errs = append(errs, fmt.Errorf("limits.%s: %d is negative", name, v))
		}
	}
	positive("fuel", l.Fuel)
	positive("deadline", int64(l.Deadline))
	positive("memory", l.Memory)
	positive("stack", l.Stack)
	positive("output", l.Output)
	positive("hostCalls", l.HostCalls)
	positive("hostReply", l.HostReply)
	positive("input", l.Input)
	positive("log", l.Log)
	positive("startFuel", l.StartFuel)
	positive("startDeadline", int64(l.StartDeadline))
	positive("instances", int64(l.Instances))
	if l.Memory > 0 && l.Memory < 64<<10 {
		errs = append(errs, fmt.Errorf("limits.memory: %d bytes are less than one page of 64Ki", l.Memory))
	}
	if l.Memory > 4<<30 {
		errs = append(errs, errors.New("limits.memory: a module cannot use more than 4Gi"))
	}
	return errors.Join(errs...)
}
