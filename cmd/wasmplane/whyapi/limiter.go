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
	// reserved are further questions, for operators alone.
	reserved = 1
	// briefly is how long a question may take without a rest after it.
	briefly = time.Second
)

// limiter bounds the questions that are worked on: nobody has two at once, and after a long one he rests for as
// long as it took. So whoever asks all the time leaves room for others, and half of a processor.
type limiter struct {
	now func() time.Time

	mu    sync.Mutex
	busy  map[string]bool
	rests map[string]time.Time // until when
}

func newLimiter() *limiter {
	return &limiter{now: time.Now, busy: map[string]bool{}, rests: map[string]time.Time{}}
}

// party is who counts as one. A namespace can make itself service accounts, as many as it likes.
func party(u user.Info) string {
	if namespace, _, err := serviceaccount.SplitUsername(u.GetName()); err == nil {
		return "accounts of " + namespace
	}
	return "user " + u.GetName()
}

// begin lets a question in, which ends with a call of end; nil = not now, but after some time, with the reason.
func (l *limiter) begin(u user.Info) (end func(), wait time.Duration, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	asker, most, now := party(u), atOnce, l.now()
	operator := slices.ContainsFunc(u.GetGroups(), func(g string) bool { return g == user.SystemPrivilegedGroup || g == pki.AdminsGroup })
	if operator {
		most += reserved
	}
	for other, until := range l.rests {
		if !now.Before(until) {
			delete(l.rests, other)
		}
	}
	switch until, resting := l.rests[asker]; {
	case l.busy[asker]:
		return nil, time.Second, "your last question is still being answered; ask again in a second"
	case resting && !operator:
		return nil, until.Sub(now), "your last question took long; ask again in " + until.Sub(now).Round(time.Second).String()
	case len(l.busy) >= most:
		return nil, time.Second, "others are asking why; ask again in a second"
	}
	l.busy[asker] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.busy, asker)
		if took := l.now().Sub(now); took > briefly {
			l.rests[asker] = l.now().Add(took)
		}
	}, 0, ""
}
