// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
)

// errNoFuelLeft ends the work of a host function whose plugin cannot pay for it.
var errNoFuelLeft = errors.New("the plugin has no fuel left for the work that it asked for (limits.fuel)")

// work is what a host function has done for a plugin and not yet charged.
type work struct {
	units int64 // done
	left  int64 // what the plugin can pay for
}

type workKey struct{}

// Charge accounts for work that a host function does for the plugin that called
// it: objects looked at, bytes hashed, one unit for about an instruction of the guest.
// An error says that the plugin cannot pay for it; the function ends then. Outside
// of a plugin's call it does nothing.
func Charge(ctx context.Context, units int64) error {
	w, ok := ctx.Value(workKey{}).(*work)
	if !ok {
		return nil
	}
	if w.units += units; w.units > w.left {
		return errNoFuelLeft
	}
	return nil
}
