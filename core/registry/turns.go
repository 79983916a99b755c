package registry

import (
	"context"
	"hash/maphash"
	"time"
)

// turns let writes that collided on one key try again one after the other:
// against each other most tries would be in vain, and what n writers of one
// object cost would grow with n squared. It is a courtesy and not a lock: who has
// waited for courtesyWait tries anyway, since the one whose turn it is may be
// asking a webhook that itself waits for this write.
type turns struct {
	seed  maphash.Seed
	slots [256]chan struct{}
}

const courtesyWait = 100 * time.Millisecond

func newTurns() *turns {
	t := &turns{seed: maphash.MakeSeed()}
	for i := range t.slots {
		t.slots[i] = make(chan struct{}, 1)
	}
	return t
}

// take waits for the key's turn; release is to be called once the write is over.
// waited says that time has passed, in which the state has probably changed.
func (t *turns) take(ctx context.Context, key string) (release func(), waited bool) {
	slot := t.slots[maphash.String(t.seed, key)%uint64(len(t.slots))]
	done := func() { <-slot }
	select {
	case slot <- struct{}{}:
		return done, false
	default:
	}
	timer := time.NewTimer(courtesyWait)
	defer timer.Stop()
	select {
	case slot <- struct{}{}:
		return done, true
	case <-timer.C:
	case <-ctx.Done():
	}
	return func() {}, true
}
