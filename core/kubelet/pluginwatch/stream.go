// SPDX-License-Identifier: Apache-2.0

package pluginwatch

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of what a plugin says by a stream. What it says beyond them waits at the plugin.
const (
	every = 100 * time.Millisecond
	burst = 20
)

// Each has every message of a stream taken, until one of both fails. Each message is work for the node and perhaps a
// write to the API: a plugin that sends without end is heard 10 times a second.
func Each[T any](ctx context.Context, receive func() (T, error), take func(T) error) error {
	pace := rate.NewLimiter(rate.Every(every), burst)
	for {
		message, err := receive()
		if err != nil {
			return err
		}
		if err := pace.Wait(ctx); err != nil {
			return err
		}
		if err := take(message); err != nil {
			return err
		}
	}
}
