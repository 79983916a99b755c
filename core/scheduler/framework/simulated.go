// SPDX-License-Identifier: Apache-2.0

package framework

import "sync/atomic"

var simulated atomic.Int64

// Simulated is the generation of a node, or of a snapshot, that is not there: no real one has it, and
// neither has any other simulated one. Whoever keeps a table of the nodes goes by generations, also from
// one cycle to the next.
func Simulated() int64 { return -1 - simulated.Add(1) } // -1 is of nothing
