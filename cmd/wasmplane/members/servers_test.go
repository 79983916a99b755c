// SPDX-License-Identifier: Apache-2.0

package members

import (
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/store/etcd/diskspeed"
)

func TestTheDiskInAServersMetrics(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 0, "# HELP " + diskspeed.Metric + " what\n": 0, diskspeed.Metric + " 0\n": 0,
		"a 1\n" + diskspeed.Metric + " 0.128\nb 2\n": 128 * time.Millisecond, diskspeed.Metric + " 1.6e-05": 16 * time.Microsecond,
	} {
		if l := diskOf(text); l.P99 != want || (l.Writes > 0) != (want > 0) {
			t.Errorf("%q: %+v", text, l)
		}
	}
}
