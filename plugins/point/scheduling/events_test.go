// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"testing"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/abi"
)

// A name that a manifest may have and nobody knows here would leave its pods waiting: events[e] is 0 then.
func TestEveryEventOfTheABIIsOneOfTheScheduler(t *testing.T) {
	var all framework.ClusterEvent
	for _, name := range abi.SchedulingEvents() {
		e := events[name]
		if e == 0 || all&e != 0 {
			t.Errorf("%s is the event %b, and those before it %b", name, e, all)
		}
		all |= e
	}
	if all&framework.NodeRemoved == 0 {
		t.Error("a plugin cannot wait for a node that goes away")
	}
}
