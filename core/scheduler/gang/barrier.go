// SPDX-License-Identifier: Apache-2.0

package gang

import "sync"

// Barrier holds the placed members of a gang until as many as it needs may be bound, or too
// few ever will. It is safe for concurrent use.
type Barrier struct {
	need   int
	opened func()
	done   chan struct{}

	mu            sync.Mutex
	yes, no       int
	members       int
	decided, open bool
}

// NewBarrier is for so many placed members, of which need have to be bound. opened is called
// once, when that is sure.
func NewBarrier(members, need int, opened func()) *Barrier {
	return &Barrier{need: need, members: members, opened: opened, done: make(chan struct{})}
}

// Vote says of one member whether it may be bound.
func (b *Barrier) Vote(may bool) {
	b.mu.Lock()
	if may {
		b.yes++
	} else {
		b.no++
	}
	decides := !b.decided && (b.yes >= b.need || b.members-b.no < b.need)
	if decides {
		b.decided, b.open = true, b.yes >= b.need
	}
	open := b.open
	b.mu.Unlock()
	if !decides {
		return
	}
	if open && b.opened != nil {
		b.opened()
	}
	close(b.done)
}

// Withdraw the vote of a member that must not be bound any more.
func (b *Barrier) Withdraw() {
	b.mu.Lock()
	b.yes--
	b.mu.Unlock()
	b.Vote(false)
}

// Done is closed once it is known whether the gang is bound.
func (b *Barrier) Done() <-chan struct{} { return b.done }

// Decided says whether that is known.
func (b *Barrier) Decided() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// Open says whether members are bound.
func (b *Barrier) Open() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}
