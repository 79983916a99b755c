// SPDX-License-Identifier: Apache-2.0

package body

import (
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/api/decodedsize"
	"github.com/wasmplane/wasmplane/core/apiserver/share"
)

const (
	// Total is how many bytes requests take together, but for administrators.
	Total = 512 << 20
	// PerUser is how many of them those of one user take, or of all accounts of a namespace. It is what the largest request takes: a
	// patch, the object that it changes, and what becomes of it.
	PerUser = Total / 4
	// Alone is what one request takes whose user has no other under way: a dense custom resource of the size that the store takes, applied
	// to one that is as large, has to go through sometime.
	Alone = Total * 3 / 8
	// Little is what a user has in any case, of a quarter of Total that is kept for this.
	Little  = 2 << 20
	reserve = Total / 4
)

// Budget counts what requests take in memory: their bodies, while they are on their way and until the requests are answered, and what
// these and the objects that they change are decoded to, with what is taken for a moment while they are decoded.
//
// A user has at most PerUser, or Alone with one request, and does not take more of what is left over than he leaves, so that a few users
// cannot take everything. Whoever has only Little finds room all the same, in the reserve. The zero value is ready to use.
type Budget struct {
	mu  sync.Mutex
	all int64
	of  map[string]int64 // by share.Of
}

// Account is what one request has of a budget.
type Account struct {
	budget        *Budget
	owner         string
	administrator bool // always may, and is counted

	// Under the budget's lock.
	has    [decodedsize.Parts]int64
	closed bool
}

// Open is the account of a request of a user's, which has nothing yet. It has to be closed.
func (b *Budget) Open(who user.Info) *Account {
	return &Account{budget: b, owner: share.Of(who), administrator: slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup)}
}

// Need implements decodedsize.Account. A write that is tried again needs nothing more for that.
func (a *Account) Need(p decodedsize.Part, n int64) error {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	more := n - a.has[p]
	switch {
	case a.closed: // by what goes on behind a request that is over
		return apierrors.NewTimeoutError("the request is over", 0)
	case more <= 0:
		return nil
	case !a.administrator && !b.room(b.of[a.owner], more, a.bound()):
		return apierrors.NewTooManyRequests("too many bytes of requests are on their way; try again later", 1)
	}
	if b.of == nil {
		b.of = map[string]int64{}
	}
	a.has[p] = n
	b.all += more
	b.of[a.owner] += more
	return nil
}

// bound is how much the user may have. The budget's lock is held.
func (a *Account) bound() int64 {
	if a.budget.of[a.owner] == a.total() {
		return Alone
	}
	return PerUser
}

// total is what the account has. The budget's lock is held.
func (a *Account) total() (all int64) {
	for _, n := range a.has {
		all += n
	}
	return all
}

// room says whether one who has so much, and may have most, may have more.
func (b *Budget) room(has, more, most int64) bool {
	left := Total - b.all - more
	return has+more <= min(most, left-reserve) || has+more <= Little && left >= 0
}

// Close gives back what the account has.
func (a *Account) Close() {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	all := a.total()
	a.closed, a.has = true, [decodedsize.Parts]int64{}
	if all == 0 {
		return // most requests are reads
	}
	b.all -= all
	if b.of[a.owner] -= all; b.of[a.owner] == 0 {
		delete(b.of, a.owner)
	}
}
