// SPDX-License-Identifier: Apache-2.0

package whyapi

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/pki"
)

// Bounds of the work for all questions together: a question may keep a processor busy for its whole time.
const (
	atOnce = 2
	// reserved are further turns, for operators alone.
	reserved = 1
	// briefly is how long a question may take without a rest after it.
	briefly = time.Second
)

// turns gives everybody a turn: nobody has two at once, and after a long one he rests for as
// long as it took. So whoever asks all the time leaves a turn to others, and half of a processor.
type turns struct {
	now func() time.Time

	mu    sync.Mutex
	busy  map[string]bool
	rests map[string]time.Time // until when
}

func newTurns() *turns {
	return &turns{now: time.Now, busy: map[string]bool{}, rests: map[string]time.Time{}}
}

// party is who counts as one. A namespace can make itself service accounts, as many as it likes.
func party(u user.Info) string {
	if namespace, _, err := serviceaccount.SplitUsername(u.GetName()); err == nil {
		return "accounts of " + namespace
	}
	return "user " + u.GetName()
}

// begin is a turn, which ends with a call of end; nil = not now, but after some time, with the reason.
func (t *turns) begin(u user.Info) (end func(), wait time.Duration, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	who, most, now := party(u), atOnce, t.now()
	operator := slices.ContainsFunc(u.GetGroups(), func(g string) bool { return g == user.SystemPrivilegedGroup || g == pki.AdminsGroup })
	if operator {
		most += reserved
	}
	for other, until := range t.rests {
		if !now.Before(until) {
			delete(t.rests, other)
		}
	}
	switch until, resting := t.rests[who]; {
	case t.busy[who]:
		return nil, time.Second, "your last question is still being answered; ask again in a second"
	case resting && !operator:
		return nil, until.Sub(now), "your last question took long; ask again in " + until.Sub(now).Round(time.Second).String()
	case len(t.busy) >= most:
		return nil, time.Second, "others are asking why; ask again in a second"
	}
	t.busy[who] = true
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.busy, who)
		if took := t.now().Sub(now); took > briefly {
			t.rests[who] = t.now().Add(took)
		}
	}, 0, ""
}
