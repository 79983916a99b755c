// SPDX-License-Identifier: Apache-2.0

package releaseplan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/chart/release"
)

const me types.UID = "me"

func TestDecide(t *testing.T) {
	now := time.Unix(10000, 0)
	mine := func(v int, s release.Status, desired string) Revision {
		return Revision{Version: v, Status: s, Owner: me, Desired: desired, When: now.Add(-time.Second)}
	}
	helms := func(v int, s release.Status) Revision { return Revision{Version: v, Status: s, When: now} }
	remedied := func(r Revision) Revision {
		r.Remedied = true
		return r
	}
	back := func(r Revision) Revision {
		r.Back = true
		return r
	}
	long := func(r Revision) Revision {
		r.When = now.Add(-time.Hour)
		return r
	}
	for name, c := range map[string]struct {
		s    Seen
		want Decision
	}{
		"nothing is there": {Seen{}, Decision{Do: Start, Version: 1, Install: true}},
		"all is as wanted": {Seen{History: []Revision{mine(1, release.Deployed, "a")}}, Decision{Do: UpToDate, Version: 1}},
		"another spec":     {Seen{History: []Revision{mine(1, release.Deployed, "b")}}, Decision{Do: Start, Version: 2}},
		"ours is under way": {
			Seen{History: []Revision{mine(1, release.Deployed, "b"), mine(2, release.PendingUpgrade, "a")}}, Decision{Do: CarryOn, Version: 2},
		},
		"helm's is under way":  {Seen{History: []Revision{helms(1, release.PendingInstall)}}, Decision{Do: Busy, Version: 1}},
		"helm is uninstalling": {Seen{History: []Revision{helms(1, release.Uninstalling)}}, Decision{Do: Busy, Version: 1}},
		"a failed install":     {Seen{History: []Revision{mine(1, release.Failed, "a")}}, Decision{Do: Remove, Version: 1}},
		"that is kept":         {Seen{History: []Revision{long(mine(1, release.Failed, "a"))}}, Decision{Do: Start, Version: 2, Install: true, Failures: 1}},
		"that was removed": {
			Seen{History: []Revision{remedied(mine(1, release.Failed, "a"))}}, Decision{Do: Pause, Version: 2, Install: true, Failures: 1, After: 14 * time.Second},
		},
		"a failed upgrade": {
			Seen{History: []Revision{mine(1, release.Deployed, "b"), mine(2, release.Failed, "a")}}, Decision{Do: GoBack, Version: 3, To: 1},
		},
		"two in a row": {
			Seen{History: []Revision{mine(1, release.Deployed, "b"), mine(2, release.Failed, "c"), mine(3, release.Failed, "a")}},
			Decision{Do: GoBack, Version: 4, To: 1},
		},
		"gone back, and tried again": {
			Seen{History: []Revision{mine(1, release.Superseded, "b"), long(mine(2, release.Failed, "a")), back(mine(3, release.Deployed, "b"))}},
			Decision{Do: Start, Version: 4, Failures: 1},
		},
		"gone back, and wanted so": {
			Seen{Desired: "b", History: []Revision{mine(1, release.Superseded, "b"), mine(2, release.Failed, "a"), back(mine(3, release.Deployed, "b"))}},
			Decision{Do: UpToDate, Version: 3},
		},
		"a failed way back is not gone back from": {
			Seen{History: []Revision{mine(1, release.Deployed, "b"), long(mine(2, release.Failed, "a")), back(mine(3, release.Failed, "b"))}},
			Decision{Do: Start, Version: 4, Failures: 1},
		},
		"helm has tested it, and dropped its marks": {
			Seen{Acted: "a", Revision: 1, History: []Revision{helms(1, release.Deployed)}}, Decision{Do: UpToDate, Version: 1},
		},
		"helm has tested what was gone back to": {
			Seen{
				Acted: "a", Revision: 3, Failing: true,
				History: []Revision{mine(1, release.Superseded, "b"), long(mine(2, release.Failed, "a")), helms(3, release.Deployed)},
			},
			Decision{Do: Start, Version: 4, Failures: 1},
		},
		"helm had the last word": {
			Seen{Acted: "a", Revision: 1, History: []Revision{mine(1, release.Superseded, "a"), helms(2, release.Deployed)}},
			Decision{Do: Foreign, Version: 2},
		},
		"until the spec changes": {
			Seen{Acted: "b", Revision: 1, History: []Revision{mine(1, release.Superseded, "b"), helms(2, release.Deployed)}},
			Decision{Do: Start, Version: 3},
		},
		"one of helm's is adopted":  {Seen{History: []Revision{helms(4, release.Deployed)}}, Decision{Do: Start, Version: 5}},
		"no attempt is left":        {Seen{History: []Revision{remedied(long(mine(1, release.Failed, "a")))}}, Decision{Do: Exhausted, Version: 2, Install: true, Failures: 1}},
		"deleted, without release":  {Seen{Deleted: true, Revision: 1}, Decision{Do: LetGo}},
		"deleted, with one":         {Seen{Deleted: true, History: []Revision{mine(1, release.Deployed, "a")}}, Decision{Do: Uninstall, Version: 1}},
		"deleted in the middle":     {Seen{Deleted: true, History: []Revision{mine(1, release.PendingInstall, "a")}}, Decision{Do: Uninstall, Version: 1}},
		"deleted, with another's":   {Seen{Deleted: true, History: []Revision{helms(1, release.Deployed)}}, Decision{Do: LetGo}},
		"deleted while helm works":  {Seen{Deleted: true, Revision: 1, History: []Revision{helms(2, release.PendingUpgrade)}}, Decision{Do: Busy, Version: 2}},
		"deleted after helm's last": {Seen{Deleted: true, Revision: 1, History: []Revision{helms(2, release.Deployed)}}, Decision{Do: Uninstall, Version: 2}},
	} {
		s := c.s
		s.Me, s.Now = me, now
		if s.Desired == "" {
			s.Desired = "a"
		}
		s.RollBack = name != "that is kept"
		if s.Retries = 5; c.want.Do == Exhausted {
			s.Retries = 0
		}
		got := Decide(s)
		if c.want.Failures == 0 {
			got.Failures = 0 // the case is not about them
		}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// world is a release that decisions are carried out on, with luck or without.
type world struct {
	s      Seen
	starts int
}

func (w *world) last() *Revision {
	if len(w.s.History) == 0 {
		return nil
	}
	return &w.s.History[len(w.s.History)-1]
}

// step carries out one decision; lucky says whether an operation succeeds.
func (w *world) step(t *rapid.T, lucky bool) Decision {
	d := Decide(w.s)
	add := func(r Revision) {
		r.Version, r.Owner, r.When = d.Version, me, w.s.Now
		w.s.History = append(w.s.History, r)
	}
	switch d.Do {
	case Start:
		w.starts++
		status := release.PendingUpgrade
		if d.Install {
			status = release.PendingInstall
		}
		w.s.Acted = w.s.Desired
		add(Revision{Status: status, Desired: w.s.Desired})
	case GoBack:
		at := slices.IndexFunc(w.s.History, func(r Revision) bool { return r.Version == d.To })
		if at < 0 || w.s.History[at].Status != release.Deployed {
			t.Fatalf("gone back to %d of %+v", d.To, w.s.History)
		}
		add(Revision{Status: release.PendingRollback, Desired: w.s.History[at].Desired, Back: true})
	case Remove:
		w.last().Remedied = true
	case CarryOn:
		if w.last().Version != d.Version {
			t.Fatalf("carried on with %d of %+v", d.Version, w.s.History)
		}
		if !lucky {
			w.last().Status, w.last().When = release.Failed, w.s.Now
			break
		}
		for i := range w.s.History {
			if w.s.History[i].Status == release.Deployed {
				w.s.History[i].Status = release.Superseded
			}
		}
		w.last().Status = release.Deployed
		w.s.Revision = w.last().Version
	case Pause:
		w.s.Now = w.s.Now.Add(d.After)
	case Uninstall:
		w.s.History = nil
	default: // nothing is done
	}
	return d
}

// Whatever succeeds or fails, and whatever is asked for in between: a release comes to rest, with
// what is asked for deployed or with its attempts used up; never are two revisions deployed.
func TestEveryReleaseComesToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{s: Seen{
			Me: me, Desired: "a", Now: time.Unix(10000, 0),
			Retries: rapid.IntRange(0, 4).Draw(t, "retries"), RollBack: rapid.Bool().Draw(t, "rollBack"),
		}}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 8).Draw(t, "event") {
			case 0:
				w.s.Desired = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "desired")
			case 1:
				w.s.Now = w.s.Now.Add(time.Duration(rapid.IntRange(0, 1000).Draw(t, "seconds")) * time.Second)
			default:
				w.step(t, rapid.Bool().Draw(t, "lucky"))
			}
			deployed := 0
			for i, r := range w.s.History {
				if r.Status == release.Deployed {
					deployed++
				}
				if r.Version != i+1 || r.Status.Pending() && i != len(w.s.History)-1 {
					t.Fatalf("not one revision after the other: %+v", w.s.History)
				}
			}
			if deployed > 1 {
				t.Fatalf("two are deployed: %+v", w.s.History)
			}
		}
		before, starts := w.s.failures(), w.starts
		for i := 0; ; i++ {
			d := w.step(t, false)
			if d.Do == UpToDate || d.Do == Exhausted {
				break
			}
			if i > 200 {
				t.Fatalf("no rest, without luck: %+v", w.s.History)
			}
		}
		if tries := w.starts - starts; tries > max(w.s.Retries+1-before, 0) {
			t.Fatalf("%d attempts after %d failures, %d retries", tries, before, w.s.Retries)
		}
		w.s.Desired = "new"
		for i := 0; ; i++ {
			if d := w.step(t, true); d.Do == UpToDate {
				break
			}
			if i > 20 {
				t.Fatalf("no rest, with luck: %+v", w.s.History)
			}
		}
		if n := len(w.s.History); Decide(w.s).Do != UpToDate || len(w.s.History) != n {
			t.Fatal("at rest, and something is done")
		}
		w.s.Deleted = true
		if d := w.step(t, true); d.Do != Uninstall || Decide(w.s).Do != LetGo {
			t.Fatalf("%+v", d)
		}
	})
}

func TestHooksRunInOrder(t *testing.T) {
	r := &release.Record{Hooks: []*release.Hook{
		{Name: "c", Weight: 1, Events: []string{"pre-install", "post-install"}},
		{Name: "b", Events: []string{"pre-install"}},
		{Name: "a", Events: []string{"pre-install", "pre-upgrade"}},
		{Name: "z", Weight: -5, Events: []string{"pre-install"}},
		{Name: "x", Events: []string{"post-delete"}},
	}}
	var order []string
	at := StageBefore
	for {
		m := Next(r, Installing, at)
		if m.Hook != nil {
			order = append(order, m.Hook.Name)
			m.Hook.LastRun.Phase = release.HookSucceeded
			continue
		}
		if m.Stage == StageApply {
			order = append(order, "apply")
			for _, h := range r.On("post-install") {
				h.LastRun = release.Run{}
			}
			at = StageAfter
			continue
		}
		break
	}
	if got := fmt.Sprint(order); got != "[z a b c apply c]" {
		t.Error(got)
	}
	r.Hooks[4].LastRun.Phase = release.HookFailed
	if m := Next(r, Uninstalling, StageAfter); m.Fail == "" {
		t.Errorf("%+v", m)
	}
}

func TestPausesGrow(t *testing.T) {
	last := time.Duration(0)
	for n := 1; n < 50; n++ {
		p := Between(n)
		if p < last || p > longestPause || p < firstPause {
			t.Errorf("after %d failures: %s", n, p)
		}
		last = p
	}
	if last != longestPause {
		t.Error(last)
	}
}
