// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"bytes"
	"context"
	"time"
)

// look is how often OnChange asks: what it is for changes once in years.
const look = 2 * time.Second

// OnChange is a job for Loop.Beside that calls f whenever value has become another one.
func OnChange(value func() []byte, f func()) func(context.Context) {
	return func(ctx context.Context) {
		tick := time.NewTicker(look)
		defer tick.Stop()
		for last := value(); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if now := value(); !bytes.Equal(now, last) {
				last = now
				f()
			}
		}
	}
}
