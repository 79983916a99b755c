// SPDX-License-Identifier: Apache-2.0

package schedwasm

import (
	"bytes"
	"testing"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// TestEventsAreReadWithoutCopies: a guest's answer may be a MiB, which has 131,072 events.
func TestEventsAreReadWithoutCopies(t *testing.T) {
	all := bytes.Repeat([]byte("Pod\x00\x01\x00\x00\x00"), 131_072)
	if allocated := testing.AllocsPerRun(1, func() { clusterEvents(all) }); allocated > 10 {
		t.Errorf("%v allocations", allocated)
	}
}

// FuzzGuest: whatever a guest writes is some event, and some names.
func FuzzGuest(f *testing.F) {
	f.Add([]byte("Pod\x00\x01\x00\x00\x00Node\x00\x01\x00\x00\x00"))
	f.Add([]byte("a\x00b\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if clusterEvents(b) == framework.ClusterEvent(0) {
			t.Error("no event at all: the plugin would never be asked again")
		}
		if n := len(terminated(b)); n > len(b) {
			t.Errorf("%d names in %d bytes", n, len(b))
		}
	})
}
