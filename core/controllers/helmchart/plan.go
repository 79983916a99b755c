// SPDX-License-Identifier: Apache-2.0

package helmchart

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/chart/release"
)

// revision is what the decision needs to know of one revision of the release.
type revision struct {
	Version int
	Status  release.Status
	// Owner is the object that made it, Desired what that asked for; both are "" where helm made it.
	Owner   types.UID
	Desired string
	// Remedied: what a failure left was dealt with.
	Remedied bool
	// Back: it is a rollback after a failure; Desired is that of the revision that it went back to.
	Back bool
	When time.Time // of its last change
}

// seen is what a decision is made on.
type seen struct {
	Me      types.UID
	Desired string // a digest of what the spec asks for
	// Acted and Revision are what the status remembers: what was asked for when it was last acted on, and the
	// revision that came of it.
	Acted    string
	Revision int
	Failing  bool       // what was acted on has failed, and Revision is what was gone back to
	History  []revision // ascending
	Deleted  bool
	Retries  int
	RollBack bool
	Now      time.Time
}

// verb is what to do.
type verb string

const (
	upToDate  verb = "up to date"
	start     verb = "start"     // install or upgrade
	carryOn   verb = "carry on"  // with the pending revision
	goBack    verb = "go back"   // to the revision To
	remove    verb = "remove"    // what a failed install made
	pause     verb = "pause"     // until After is over
	exhausted verb = "exhausted" // no attempt is left
	busy      verb = "busy"      // another client is at work
	foreign   verb = "foreign"   // another client had the last word
	uninstall verb = "uninstall" // the release, and then let the object go
	letGo     verb = "let it go" // there is no release
)

// decision is what to do next.
type decision struct {
	Do verb
	// Version is the revision that is made, carried on or removed; To the one that is gone back to.
	Version, To int
	Install     bool // start: nothing was ever deployed
	Failures    int
	After       time.Duration
}

// firstPause and longestPause are between attempts.
const (
	firstPause   = 15 * time.Second
	longestPause = 10 * time.Minute
)

// decide says what to do next.
func decide(s seen) decision {
	last := revision{}
	if len(s.History) > 0 {
		last = s.History[len(s.History)-1]
	}
	if s.Deleted {
		return s.leave(last)
	}
	switch {
	case last.Status.Pending() && last.Owner == s.Me:
		return decision{Do: carryOn, Version: last.Version, Install: !s.deployedBefore(last.Version)}
	case last.Status.Pending(), last.Status == release.Uninstalling:
		return decision{Do: busy, Version: last.Version}
	case last.Status == release.Failed && last.Owner == s.Me && !last.Remedied && !last.Back && s.RollBack:
		return s.remedy(last)
	}
	d := decision{Version: last.Version + 1, Failures: s.failures(), Install: !s.deployedBefore(last.Version + 1)}
	switch {
	case last.Status == release.Deployed && last.Owner == s.Me && last.Desired == s.Desired:
		d.Do, d.Version = upToDate, last.Version
	case last.Status == release.Deployed && last.Owner == "" && last.Version == s.Revision && s.Acted == s.Desired && !s.Failing:
		d.Do, d.Version = upToDate, last.Version // helm has written something into it, as helm test does, and dropped our marks
	case last.Version > s.Revision && s.Revision > 0 && last.Owner != s.Me && s.Acted == s.Desired:
		d.Do, d.Version = foreign, last.Version
	case d.Failures > s.Retries:
		d.Do = exhausted
	case d.Failures > 0 && s.Now.Before(s.lastFailure().Add(between(d.Failures))):
		d.Do, d.After = pause, s.lastFailure().Add(between(d.Failures)).Sub(s.Now)
	default:
		d.Do = start
	}
	return d
}

// leave is what to do for an object that is being deleted.
func (s seen) leave(last revision) decision {
	switch {
	case last.Version == 0 || !s.acted():
		return decision{Do: letGo}
	case last.Owner != s.Me && last.Status.Pending():
		return decision{Do: busy, Version: last.Version}
	}
	return decision{Do: uninstall, Version: last.Version}
}

// acted says whether the release is this object's in any way: one that was there before, and that it
// has not come to, is none of its business.
func (s seen) acted() bool {
	return s.Revision > 0 || slices.ContainsFunc(s.History, func(r revision) bool { return r.Owner == s.Me })
}

// remedy is what to do about a failure.
func (s seen) remedy(last revision) decision {
	for i := len(s.History) - 2; i >= 0; i-- {
		if s.History[i].Status == release.Deployed {
			return decision{Do: goBack, Version: last.Version + 1, To: s.History[i].Version}
		}
	}
	return decision{Do: remove, Version: last.Version}
}

// deployedBefore says whether a revision before this one was ever deployed.
func (s seen) deployedBefore(version int) bool {
	for _, r := range s.History {
		if r.Version < version && (r.Status == release.Deployed || r.Status == release.Superseded) {
			return true
		}
	}
	return false
}

// failures of what is asked for now.
func (s seen) failures() (n int) {
	for _, r := range s.History {
		if s.failed(r) {
			n++
		}
	}
	return n
}

func (s seen) failed(r revision) bool {
	return r.Status == release.Failed && r.Owner == s.Me && r.Desired == s.Desired
}

func (s seen) lastFailure() time.Time {
	for i := len(s.History) - 1; i >= 0; i-- {
		if s.failed(s.History[i]) {
			return s.History[i].When
		}
	}
	return time.Time{}
}

// between is the pause after so many failures.
func between(failures int) time.Duration {
	p := firstPause
	for range failures - 1 {
		if p *= 2; p >= longestPause {
			return longestPause
		}
	}
	return p
}

// stage is how far an operation has come. It is kept with the release.
type stage string

const (
	stageBefore stage = ""      // hooks that run before
	stageApply  stage = "apply" // the objects are applied
	stageAwait  stage = "await" // they are waited for
	stageAfter  stage = "after" // hooks that run after
	stageDone   stage = "done"
)

// move is the next step of an operation.
type move struct {
	Hook  *release.Hook // to run, or, where it is running, to look at
	Stage stage         // else the stage that is begun or worked on
	Fail  string        // else why it has failed
}

// hooks that run before and after an operation.
func (r operation) hooks() (before, after string) {
	switch r {
	case installing:
		return "pre-install", "post-install"
	case upgrading:
		return "pre-upgrade", "post-upgrade"
	case goingBack:
		return "pre-rollback", "post-rollback"
	default: // uninstalling
		return "pre-delete", "post-delete"
	}
}

// operation is what is done with a release.
type operation string

const (
	installing   operation = "install"
	upgrading    operation = "upgrade"
	goingBack    operation = "rollback"
	uninstalling operation = "uninstall"
)

// next is the next step of an operation on a revision.
func next(r *release.Record, op operation, at stage) move {
	before, after := op.hooks()
	switch at {
	case stageBefore:
		return hooksOr(r.On(before), stageApply)
	case stageAfter:
		return hooksOr(r.On(after), stageDone)
	default:
		return move{Stage: at}
	}
}

func hooksOr(hooks []*release.Hook, then stage) move {
	for _, h := range hooks {
		switch h.LastRun.Phase {
		case release.HookSucceeded:
		case release.HookFailed:
			return move{Fail: "the hook " + h.Kind + " " + h.Name + " failed"}
		default:
			return move{Hook: h}
		}
	}
	return move{Stage: then}
}
