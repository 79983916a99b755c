// SPDX-License-Identifier: Apache-2.0

package podlifecycle

import "time"

const (
	defaultCrashInitial       = 10 * time.Second
	defaultCrashMax           = 5 * time.Minute
	defaultImageInitial       = 10 * time.Second
	defaultImageMax           = 5 * time.Minute
	defaultRetryInitial       = time.Second
	defaultRetryMax           = 10 * time.Second
	minGrace            int64 = 2
)

// Options are the delays of a Machine. Zero values mean upstream's.
type Options struct {
	// CrashInitial and CrashMax bound the delay before a container that exited is started again.
	// The delay doubles with each restart and is forgotten when a container ran for twice CrashMax.
	CrashInitial, CrashMax time.Duration
	// ImageInitial and ImageMax bound the delay between attempts to pull an image.
	ImageInitial, ImageMax time.Duration
	// RetryInitial and RetryMax bound the delay between attempts at anything else.
	RetryInitial, RetryMax time.Duration
}

func (o Options) withDefaults() Options {
	set := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	set(&o.CrashInitial, defaultCrashInitial)
	set(&o.CrashMax, defaultCrashMax)
	set(&o.ImageInitial, defaultImageInitial)
	set(&o.ImageMax, defaultImageMax)
	set(&o.RetryInitial, defaultRetryInitial)
	set(&o.RetryMax, defaultRetryMax)
	return o
}
