// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"testing"

	"github.com/wasmplane/wasmplane/plugins/abi"
)

// A name without an event of the scheduler would have refused pods wait for nothing.
func TestEveryEventIsOneOfTheScheduler(t *testing.T) {
	for _, name := range abi.SchedulingEvents() {
		if events[name] == 0 {
			t.Errorf("event %s stands for none of the scheduler's", name)
		}
	}
	if len(events) != len(abi.SchedulingEvents()) {
		t.Errorf("%d events are known, %d are named", len(events), len(abi.SchedulingEvents()))
	}
}
