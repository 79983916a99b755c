// SPDX-License-Identifier: Apache-2.0

package members

import (
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/store/etcd"
)

func TestTheDiskInAServersMetrics(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 0, "# HELP " + etcd.DiskMetric + " what\n": 0, etcd.DiskMetric + " 0\n": 0,
		"a 1\n" + etcd.DiskMetric + " 0.128\nb 2\n": 128 * time.Millisecond, etcd.DiskMetric + " 1.6e-05": 16 * time.Microsecond,
	} {
		if l := diskOf(text); l.P99 != want || (l.Writes > 0) != (want > 0) {
			t.Errorf("%q: %+v", text, l)
		}
	}
}
