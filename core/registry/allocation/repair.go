// SPDX-License-Identifier: Apache-2.0

package allocation

import (
	"context"
	"time"

	"github.com/wasmplane/wasmplane/core/api/services"
)

// Repair compares the claims of addresses and node ports with the Services
// of c, at once and then as often as every says, puts right what differs and logs
// it. It ends with ctx.
func (a *Allocator) Repair(ctx context.Context, c services.Cluster, every time.Duration) {
	repair := services.NewRepair(a.allocator)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		done, err := repair.Pass(ctx, c)
		if err != nil && ctx.Err() == nil {
			a.logger.WarnContext(ctx, "the claims of Services could not be compared; the next pass tries again", "error", err)
		}
		if !done.Empty() {
			a.logger.WarnContext(ctx, "the claims of Services and the Services did not agree",
				"freedPorts", done.FreedPorts, "freedAddresses", done.FreedAddresses, "claimedPorts", done.ClaimedPorts,
				"claimedAddresses", done.ClaimedAddresses, "ofOtherServices", done.Shared)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
