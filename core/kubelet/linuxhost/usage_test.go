// SPDX-License-Identifier: Apache-2.0

package linuxhost

import "testing"

func TestBusy(t *testing.T) {
	for stat, want := range map[string]uint64{
		"cpu  100 20 30 9999 8888 4 5 6 7 8\ncpu0 1 2 3 4\n": 1_590_000_000,
		"cpu  0 0 0 1 1 0 0\n":                               0,
	} {
		if got, err := busy(stat); err != nil || got != want {
			t.Errorf("busy(%q) = %d, %v; want %d", stat, got, err, want)
		}
	}
	for _, stat := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu a b c d e f g h"} {
		if got, err := busy(stat); err == nil {
			t.Errorf("busy(%q) = %d, want an error", stat, got)
		}
	}
}

func TestUsageOfThisMachine(t *testing.T) {
	cpu, memory, err := (&Host{}).Usage(t.Context())
	if err != nil || cpu == 0 || memory == 0 {
		t.Errorf("used %d ns, %d bytes, %v", cpu, memory, err)
	}
	mem, err := meminfo()
	if err != nil || memory > uint64(mem["MemTotal"]) {
		t.Errorf("used %d bytes of %d, %v", memory, mem["MemTotal"], err)
	}
}
