// SPDX-License-Identifier: Apache-2.0

package host

import (
	"time"

	"github.com/wasmplane/wasmplane/plugins/host/linear"
)

// LargestSlice is the most fuel that is handed out at once.
const LargestSlice = sliceLargest

// Spent is what the last call used, what it overdrew included.
func (in *Instance) Spent() int64 { return in.meter.granted - int64(in.counter.Get()) }

// GiveUpIdle gives up what nobody has asked for a minute, now.
func (h *Host) GiveUpIdle(now time.Time) { h.giveUpIdle(now) }

// Started says how long the last instance took to start.
func (m *Module) Started(took time.Duration) { m.pool.Started(took) }

// Codes says how many compiled modules are in use.
func (h *Host) Codes() int { return h.engine.Codes() }

// SharedBytes is how much of the instance's memory is mapped from what the module's instances have in common.
func (in *Instance) SharedBytes() uint64 { return in.linear.SharedSize() }

// Kept says whether an image of its first instance's data is kept for others.
func (m *Module) Kept() bool { return (&linear.Allocator{}).From(&m.shared) }
