// SPDX-License-Identifier: Apache-2.0

package host

// LargestSlice is the most fuel that is handed out at once.
const LargestSlice = sliceLargest

// Spent is what the last call used, what it overdrew included.
func (in *Instance) Spent() int64 { return in.meter.granted - int64(in.counter.Get()) }
