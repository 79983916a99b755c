// SPDX-License-Identifier: Apache-2.0

package imagegate

import (
	"context"
	"sync"
)

// Bounds of lookups at registries at the same time; others wait.
const (
	namedLookups     = 32 // at those that the cluster's policies name
	namedOfNamespace = 8  // of these, for the pods of one namespace
	namespaceLookups = 4  // for one namespace, whose pods or policies name the registry
)

// lanes bound how many lookups go on at the same time, each for itself: a registry that somebody
// names in one namespace, and that answers slowly, makes nobody wait in another.
type lanes struct {
	mu sync.Mutex
	by map[string]*lane
}

type lane struct {
	slots chan struct{}
	users int // that wait or look up; the last one takes the lane away
}

// both waits for a slot of one lane, and then of another.
func (l *lanes) both(ctx context.Context, key string, slots int, then string, of int) (done func(), err error) {
	outer, err := l.take(ctx, key, slots)
	if err != nil {
		return nil, err
	}
	inner, err := l.take(ctx, then, of)
	if err != nil {
		outer()
		return nil, err
	}
	return func() { inner(); outer() }, nil
}

// take waits for a slot of a lane with so many.
func (l *lanes) take(ctx context.Context, key string, slots int) (done func(), err error) {
	l.mu.Lock()
	if l.by == nil {
		l.by = map[string]*lane{}
	}
	one := l.by[key]
	if one == nil {
		one = &lane{slots: make(chan struct{}, slots)}
		l.by[key] = one
	}
	one.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.by, key)
		}
	}
	select {
	case one.slots <- struct{}{}:
		return func() { <-one.slots; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
