// SPDX-License-Identifier: Apache-2.0

package matching

import "github.com/wasmplane/wasmplane/core/admission"

// Rounds is what a plugin that asks others remembers of a request from its first round to
// the second (reinvocation): whom it asked who wants to see later changes, and whom of
// them the object changed behind.
type Rounds struct {
	begun  bool
	output int             // the object's changes after the last round
	wants  map[string]bool // were asked, and want to be asked again
	due    map[string]bool // are to be asked again
}

// RoundsOf is what the plugin of a key remembers of a request.
func RoundsOf(r *admission.Request, key any) *Rounds {
	return r.Memo(key, func() any { return &Rounds{wants: map[string]bool{}, due: map[string]bool{}} }).(*Rounds)
}

// Begin begins a round on an object that has changed so many times, and says whether it
// is the second. Changes by other plugins since the first one count.
func (s *Rounds) Begin(changes int) (again bool) {
	if s.begun && changes != s.output {
		s.Changed()
	}
	again, s.begun = s.begun, true
	return again
}

// End ends a round.
func (s *Rounds) End(changes int) { s.output = changes }

// Changed makes everybody due who wants to see later changes.
func (s *Rounds) Changed() {
	for id := range s.wants {
		s.due[id] = true
	}
	s.wants = map[string]bool{}
}

// Wants records that one who was asked wants to see later changes.
func (s *Rounds) Wants(id string) { s.wants[id] = true }

// Due says whether one is to be asked again.
func (s *Rounds) Due(id string) bool { return s.due[id] }

// Done takes one off those who are to be asked again.
func (s *Rounds) Done(id string) { delete(s.due, id) }

// Again says whether anybody is to be asked again.
func (s *Rounds) Again() bool { return len(s.due) > 0 }
