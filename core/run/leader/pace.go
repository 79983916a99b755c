// SPDX-License-Identifier: Apache-2.0

package leader

import "time"

const (
	usual = 15 * time.Second
	// marksEvery is how often those that wait say so, awaited how long the leader believes it.
	marksEvery, awaited = 30 * time.Second, 90 * time.Second
	// marksAgain is how long those that go on waiting may take to mark a lease that has a new holder, and the holder to see it.
	marksAgain = 5 * time.Second
	// calm is how long leases stay long after a renewal that came almost too late, or did.
	calm = time.Minute
)

// trusted is how much of a lease its holder counts on, from before it asked for it.
func trusted(lease time.Duration) time.Duration { return lease * 4 / 5 }

// interval is how long after a renewal a holder asks for the next: it may then be three fifths of a lease late.
func interval(lease time.Duration) time.Duration { return lease / 6 }

// look is how often one that waits looks at a lease: it sees a renewal that much later.
func look(lease time.Duration) time.Duration { return lease / 12 }

// pace is how long this process's leases are. They are quick while somebody waits, unless
// renewals were late of late: quick leases would then be lost for nothing, again and again.
type pace struct {
	long, quick       time.Duration
	slowUntil, wanted time.Time
}

func newPace(e Election) *pace {
	p := &pace{long: e.LeaseDuration, quick: e.Quick}
	if p.long <= 0 {
		p.long = usual
	}
	if p.quick <= 0 || p.quick > p.long {
		p.quick = p.long
	}
	return p
}

// lease is how long the one is that is asked for now.
func (p *pace) lease(now time.Time) time.Duration {
	if now.Before(p.wanted) && !now.Before(p.slowUntil) {
		return p.quick
	}
	return p.long
}

// marked: somebody waits.
func (p *pace) marked(now time.Time) { p.wanted = now.Add(awaited) }

// taken: this process takes a lease that was marked. Who waited for its predecessor waits for it now: were its first lease long,
// nobody could follow it for as long, should it fail at once.
func (p *pace) taken(now time.Time) { p.wanted = now.Add(marksAgain) }

// renewed: a renewal was answered that much after it was due. Half of a quick lease is little
// less than what loses one, and more than an election of the store's members takes, as a rule.
func (p *pace) renewed(now time.Time, late time.Duration) {
	if late > p.quick/2 {
		p.lost(now)
	}
}

// answered: who waits had the answer to a question after that long. What would make renewals late makes long leases of those
// that are taken in the next time, too.
func (p *pace) answered(now time.Time, after time.Duration) {
	if after > p.quick/2 {
		p.lost(now)
	}
}

// lost: the leadership was, or almost.
func (p *pace) lost(now time.Time) { p.slowUntil = now.Add(calm) }
