// SPDX-License-Identifier: Apache-2.0

package host

import "context"

type dryRunKey struct{}

// WithDryRun marks a call as part of a dry run.
func WithDryRun(ctx context.Context) context.Context {
	return context.WithValue(ctx, dryRunKey{}, true)
}

// DryRun says whether a host function is called in a dry run. What changes anything
// (an event, state, a request to another host) answers then that it is done, and does nothing.
func DryRun(ctx context.Context) bool {
	dry, _ := ctx.Value(dryRunKey{}).(bool)
	return dry
}

type asideKey struct{}

// WithAside marks calls for which nobody waits: their failures say nothing of how requests
// fare, and do not open a plugin's breaker.
func WithAside(ctx context.Context) context.Context {
	return context.WithValue(ctx, asideKey{}, true)
}

// Aside says whether nobody waits for a call.
func Aside(ctx context.Context) bool {
	aside, _ := ctx.Value(asideKey{}).(bool)
	return aside
}
