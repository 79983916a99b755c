// SPDX-License-Identifier: Apache-2.0

package matching_test

import (
	"testing"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
)

func TestWhoWantsToSeeLaterChangesIsAskedAgain(t *testing.T) {
	r := &admission.Request{}
	of := func() *matching.Rounds { return matching.RoundsOf(r, t.Name()) }
	first := of()
	if first.Begin(0) {
		t.Error("the first round is the second")
	}
	first.Wants("a")
	first.Done("a")
	first.End(1) // by a itself
	if of().Again() {
		t.Error("asked again, and nobody else has changed the object")
	}
	second := of()
	if !second.Begin(2) || !second.Due("a") || second.Due("b") {
		t.Error("another plugin has changed the object, and a is not asked again")
	}
	second.Done("a")
	second.Changed()
	second.End(3)
	if of().Again() {
		t.Error("asked a third time")
	}
	if matching.RoundsOf(r, "another plugin").Begin(3) {
		t.Error("two plugins share their rounds")
	}
}
