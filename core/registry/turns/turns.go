// SPDX-License-Identifier: Apache-2.0

// Package turns lets writes that collided on one key try again one after the other.
package turns

import (
	"context"
	"hash/maphash"
	"time"
)

// Turns let writes that collided on one key try again one after the other:
// against each other most tries would be in vain, and what n writers of one
// object cost would grow with n squared. It is a courtesy and not a lock: a write that has
// waited for courtesyWait tries anyway, since the one whose turn it is may be
// asking a webhook that itself waits for this write.
type Turns struct {
	seed  maphash.Seed
	slots [256]chan struct{}
}

const courtesyWait = 100 * time.Millisecond

// New makes turns that nobody has taken.
func New() *Turns {
	t := &Turns{seed: maphash.MakeSeed()}
	for i := range t.slots {
		t.slots[i] = make(chan struct{}, 1)
	}
	return t
}

// Turn is one write's turn on a key. It is for one goroutine.
type Turn struct {
	slot  chan struct{}
	tried bool
	taken bool
}

// Of is a write's turn on a key, which Take takes and End gives back.
func (t *Turns) Of(key string) *Turn {
	return &Turn{slot: t.slots[maphash.String(t.seed, key)%uint64(len(t.slots))]}
}

// Take waits for the turn, the first time that it is called. waited says that time
// has passed, in which the state has probably changed.
func (t *Turn) Take(ctx context.Context) (waited bool) {
	if t.tried {
		return false
	}
	t.tried = true
	select {
	case t.slot <- struct{}{}:
		t.taken = true
		return false
	default:
	}
	timer := time.NewTimer(courtesyWait)
	defer timer.Stop()
	select {
	case t.slot <- struct{}{}:
		t.taken = true
	case <-timer.C:
	case <-ctx.Done():
	}
	return true
}

// End gives the turn to the next write.
func (t *Turn) End() {
	if t.taken {
		<-t.slot
		t.taken = false
	}
}
