// SPDX-License-Identifier: Apache-2.0

// Package releaseplan decides what to do next with the release of a HelmChart: a pure function of the revisions that
// are stored and of what the object asks for, and the order of the steps of one operation. It reads and changes nothing.
package releaseplan

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/chart/release"
)

// Revision is what the decision needs to know of one revision of the release.
type Revision struct {
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

// Seen is what a decision is made on.
type Seen struct {
	Me      types.UID
	Desired string // a digest of what the spec asks for
	// Acted and Revision are what the status remembers: what was asked for when it was last acted on, and the
	// revision that came of it.
	Acted    string
	Revision int
	Failing  bool       // what was acted on has failed, and Revision is what was gone back to
	History  []Revision // ascending
	Deleted  bool
	Retries  int
	RollBack bool
	Now      time.Time
}

// Verb is what to do.
type Verb string

// What a decision may be.
const (
	UpToDate  Verb = "up to date"
	Start     Verb = "start"     // install or upgrade
	CarryOn   Verb = "carry on"  // with the pending revision
	GoBack    Verb = "go back"   // to the revision To
	Remove    Verb = "remove"    // what a failed install made
	Pause     Verb = "pause"     // until After is over
	Exhausted Verb = "exhausted" // no attempt is left
	Busy      Verb = "busy"      // another client is at work
	Foreign   Verb = "foreign"   // another client had the last word
	Uninstall Verb = "uninstall" // the release, and then let the object go
	LetGo     Verb = "let it go" // there is no release
)

// Decision is what to do next.
type Decision struct {
	Do Verb
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

// Decide says what to do next.
func Decide(s Seen) Decision {
	last := Revision{}
	if len(s.History) > 0 {
		last = s.History[len(s.History)-1]
	}
	if s.Deleted {
		return s.leave(last)
	}
	switch {
	case last.Status.Pending() && last.Owner == s.Me:
		return Decision{Do: CarryOn, Version: last.Version, Install: !s.DeployedBefore(last.Version)}
	case last.Status.Pending(), last.Status == release.Uninstalling:
		return Decision{Do: Busy, Version: last.Version}
	case last.Status == release.Failed && last.Owner == s.Me && !last.Remedied && !last.Back && s.RollBack:
		return s.remedy(last)
	}
	d := Decision{Version: last.Version + 1, Failures: s.failures(), Install: !s.DeployedBefore(last.Version + 1)}
	switch {
	case last.Status == release.Deployed && last.Owner == s.Me && last.Desired == s.Desired:
		d.Do, d.Version = UpToDate, last.Version
	case last.Status == release.Deployed && last.Owner == "" && last.Version == s.Revision && s.Acted == s.Desired && !s.Failing:
		d.Do, d.Version = UpToDate, last.Version // helm has written something into it, as helm test does, and dropped our marks
	case last.Version > s.Revision && s.Revision > 0 && last.Owner != s.Me && s.Acted == s.Desired:
		d.Do, d.Version = Foreign, last.Version
	case d.Failures > s.Retries:
		d.Do = Exhausted
	case d.Failures > 0 && s.Now.Before(s.LastFailure().Add(Between(d.Failures))):
		d.Do, d.After = Pause, s.LastFailure().Add(Between(d.Failures)).Sub(s.Now)
	default:
		d.Do = Start
	}
	return d
}

// leave is what to do for an object that is being deleted.
func (s Seen) leave(last Revision) Decision {
	switch {
	case last.Version == 0 || !s.acted():
		return Decision{Do: LetGo}
	case last.Owner != s.Me && last.Status.Pending():
		return Decision{Do: Busy, Version: last.Version}
	}
	return Decision{Do: Uninstall, Version: last.Version}
}

// acted says whether the release is this object's in any way: one that was there before, and that it
// has not come to, is none of its business.
func (s Seen) acted() bool {
	return s.Revision > 0 || slices.ContainsFunc(s.History, func(r Revision) bool { return r.Owner == s.Me })
}

// remedy is what to do about a failure.
func (s Seen) remedy(last Revision) Decision {
	for i := len(s.History) - 2; i >= 0; i-- {
		if s.History[i].Status == release.Deployed {
			return Decision{Do: GoBack, Version: last.Version + 1, To: s.History[i].Version}
		}
	}
	return Decision{Do: Remove, Version: last.Version}
}

// DeployedBefore says whether a revision before this one was ever deployed.
func (s Seen) DeployedBefore(version int) bool {
	for _, r := range s.History {
		if r.Version < version && (r.Status == release.Deployed || r.Status == release.Superseded) {
			return true
		}
	}
	return false
}

// failures of what is asked for now.
func (s Seen) failures() (n int) {
	for _, r := range s.History {
		if s.Failed(r) {
			n++
		}
	}
	return n
}

// Failed says whether a revision is a failure of what is asked for now.
func (s Seen) Failed(r Revision) bool {
	return r.Status == release.Failed && r.Owner == s.Me && r.Desired == s.Desired
}

// LastFailure is when the last one of these failed; zero = none did.
func (s Seen) LastFailure() time.Time {
	for i := len(s.History) - 1; i >= 0; i-- {
		if s.Failed(s.History[i]) {
			return s.History[i].When
		}
	}
	return time.Time{}
}

// Between is the pause after so many failures.
func Between(failures int) time.Duration {
	p := firstPause
	for range failures - 1 {
		if p *= 2; p >= longestPause {
			return longestPause
		}
	}
	return p
}

// Stage is how far an operation has come. It is kept with the release.
type Stage string

// The stages, in their order.
const (
	StageBefore Stage = ""      // hooks that run before
	StageApply  Stage = "apply" // the objects are applied
	StageAwait  Stage = "await" // they are waited for
	StageAfter  Stage = "after" // hooks that run after
	StageDone   Stage = "done"
)

// Move is the next step of an operation.
type Move struct {
	Hook  *release.Hook // to run, or, where it is running, to look at
	Stage Stage         // else the stage that is begun or worked on
	Fail  string        // else why it has failed
}

// Hooks that run before and after an operation.
func (r Operation) Hooks() (before, after string) {
	switch r {
	case Installing:
		return "pre-install", "post-install"
	case Upgrading:
		return "pre-upgrade", "post-upgrade"
	case GoingBack:
		return "pre-rollback", "post-rollback"
	default: // uninstalling
		return "pre-delete", "post-delete"
	}
}

// Operation is what is done with a release.
type Operation string

// The operations.
const (
	Installing   Operation = "install"
	Upgrading    Operation = "upgrade"
	GoingBack    Operation = "rollback"
	Uninstalling Operation = "uninstall"
)

// Next is the next step of an operation on a revision.
func Next(r *release.Record, op Operation, at Stage) Move {
	before, after := op.Hooks()
	switch at {
	case StageBefore:
		return hooksOr(r.On(before), StageApply)
	case StageAfter:
		return hooksOr(r.On(after), StageDone)
	default:
		return Move{Stage: at}
	}
}

func hooksOr(hooks []*release.Hook, then Stage) Move {
	for _, h := range hooks {
		switch h.LastRun.Phase {
		case release.HookSucceeded:
		case release.HookFailed:
			return Move{Fail: "the hook " + h.Kind + " " + h.Name + " failed"}
		default:
			return Move{Hook: h}
		}
	}
	return Move{Stage: then}
}
