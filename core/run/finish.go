// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"time"
)

type termKey struct{}

// Within says until when work that is told to stop may finish what it has begun: until term has ended. A leader that is to stop
// keeps its lease until its work has returned, so it may write to the end; one that has lost its lease may not write at all.
func Within(ctx, term context.Context) context.Context {
	return context.WithValue(ctx, termKey{}, term)
}

// ToFinish is for what is to be finished although ctx may have ended: it has ctx's values, lasts for d at the most, and ends with
// the term that Within gave. Without one nothing else ends it.
func ToFinish(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithTimeout(context.WithoutCancel(ctx), d)
	term, ok := ctx.Value(termKey{}).(context.Context)
	if !ok {
		return out, cancel
	}
	stop := context.AfterFunc(term, cancel)
	return out, func() {
		stop()
		cancel()
	}
}
