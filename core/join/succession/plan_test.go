// SPDX-License-Identifier: Apache-2.0

package succession

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// machine is a model of one that follows: what it has, against what it was told last.
type machine struct {
	server bool
	phase  Phase // of the Secret that a server has seen; of what was published for a worker
	report *Report
	trusts []string
	signed string
}

// follow does what Server and Worker do.
func (m *machine) follow(told Phase) {
	m.phase = told
	switch {
	case m.server:
		switch told.Step() {
		case "trust":
			m.trusts = []string{"old", "new"}
		case "sign":
			m.trusts, m.signed = []string{"new", "old"}, "new"
		case "drop":
			m.trusts, m.signed = []string{"new"}, "new"
		default: // there is nothing to do
		}
	case told == Published || told == Promoted:
		m.trusts = []string{"old", "new"}
	case told == Announced:
		m.trusts, m.signed = []string{"new", "old"}, "new"
	case told == Dropped:
		m.trusts, m.signed = []string{"new"}, "new"
	}
	m.report = &Report{Trusts: m.trusts, Signed: []string{m.signed}}
}

// Whatever the order in which machines follow and the driver looks, or is killed and begins
// again: each accepts all others at any time, and the change ends once all are there.
func TestNobodyIsRefusedAtAnyTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []*machine
		for i := range rapid.IntRange(1, 6).Draw(t, "machines") {
			all = append(all, &machine{server: i < 3 && (i == 0 || rapid.Bool().Draw(t, "server")), trusts: []string{"old"}, signed: "old"})
		}
		now := time.Unix(0, 0)
		w := World{State: State{Phase: Offered, Since: now}, From: "old", To: "new", Now: now}
		published := Phase("") // what workers are told, which may be ahead of the Secret
		look := func() {
			w.Machines, w.Now = nil, now
			for _, m := range all {
				w.Machines = append(w.Machines, Machine{Server: m.server, Alive: true, Report: m.report})
			}
		}
		step := func(m *machine) {
			told := w.State.Phase
			if !m.server {
				told = published
			}
			m.follow(told)
		}
		drive := func() (over bool) {
			look()
			next, wait := Next(w)
			if !wait.Over() {
				return false
			}
			if next == "" {
				return true
			}
			published = next
			if rapid.Bool().Draw(t, "killed in between") {
				return false
			}
			w.State.Phase, w.State.Since = next, now
			return false
		}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "a machine, not the driver") {
				step(rapid.SampledFrom(all).Draw(t, "which"))
			} else if drive() {
				break
			}
			now = now.Add(rapid.SampledFrom([]time.Duration{0, time.Second, Grace}).Draw(t, "passes"))
			for i, a := range all {
				for j, b := range all {
					if !slices.Contains(a.trusts, b.signed) {
						t.Fatalf("%s: machine %d (server %v), which trusts %s, refuses machine %d (server %v), signed by %s", w.State.Phase, i, a.server, a.trusts, j, b.server, b.signed)
					}
				}
			}
		}
		for round := 0; ; round++ { // all are there from now on
			if round > 200 {
				look()
				_, wait := Next(w)
				t.Fatalf("it does not end: %s waits for %+v", w.State.Phase, wait)
			}
			for _, m := range all {
				step(m)
			}
			now = now.Add(Grace)
			if drive() {
				break
			}
		}
		for i, m := range all {
			if !slices.Equal(m.trusts, []string{"new"}) || m.signed != "new" {
				t.Errorf("machine %d trusts %s, and is signed by %s", i, m.trusts, m.signed)
			}
		}
	})
}

func TestWhatAPhaseWaitsFor(t *testing.T) {
	both, signed := &Report{Trusts: []string{"old", "new"}, Signed: []string{"old"}},
		&Report{Trusts: []string{"new", "old"}, Signed: []string{"new", "new"}}
	half := &Report{Trusts: []string{"new", "old"}, Signed: []string{"new", "old"}}
	last := &Report{Trusts: []string{"new"}, Signed: []string{"new"}}
	begun := time.Unix(1000, 0)
	for _, c := range []struct {
		name        string
		phase       Phase
		server      bool
		report      *Report
		unpublished int
		passed      time.Duration
		next        Phase
		over        bool
	}{
		{"a server that has said nothing", Offered, true, nil, 0, 0, Published, false},
		{"a server that trusts both", Offered, true, both, 0, 0, Published, true},
		{"workers are not asked yet", Offered, false, nil, 0, 0, Published, true},
		{"a worker that has said nothing", Published, false, nil, 0, 0, Promoted, false},
		{"a namespace that tells of one alone", Published, false, both, 1, 0, Promoted, false},
		{"a worker that trusts both", Published, false, both, 0, 0, Promoted, true},
		{"a server that signs by the old one", Promoted, true, both, 0, 0, Announced, false},
		{"one of a worker's certificates is signed by the old one", Announced, false, half, 0, time.Hour, Dropped, false},
		{"clients may have old connections", Announced, false, signed, 0, Grace - 1, Dropped, false},
		{"all are signed by the new one", Announced, false, signed, 0, Grace, Dropped, true},
		{"a worker that trusts the old one still", Dropped, false, signed, 0, 0, "", false},
		{"the end", Dropped, false, last, 0, 0, "", true},
	} {
		w := World{
			State: State{Phase: c.phase, Since: begun}, From: "old", To: "new", Unpublished: c.unpublished, Now: begun.Add(c.passed),
			Machines: []Machine{{Name: "m", Server: c.server, Report: c.report}},
		}
		next, wait := Next(w)
		if next != c.next || wait.Over() != c.over {
			t.Errorf("%s: next %q, over %v (%+v), want %q, %v", c.name, next, wait.Over(), wait, c.next, c.over)
		}
	}
}

func TestStateAndReportsAreReadAsWritten(t *testing.T) {
	r := Report{Trusts: []string{"sha256:a", "sha256:b"}, Signed: []string{"sha256:a"}}
	if got, err := ParseReport(r.String()); err != nil || got.String() != r.String() {
		t.Errorf("read %+v, %v", got, err)
	}
	for _, bad := range []string{"", "trusts a", "a; signed by b"} {
		if _, err := ParseReport(bad); err == nil {
			t.Errorf("%q was read as a report", bad)
		}
	}
	if Key("fd00::1") != "fd00--1" {
		t.Error("the address of a server is no key of a ConfigMap")
	}
}
