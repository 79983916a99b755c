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
	if err != nil || cpu == 0 {
		t.Fatalf("used %d ns, %v", cpu, err)
	}
	mem, err := meminfo()
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]uint64{
		"usage": memory.UsageBytes.Value, "working set": memory.WorkingSetBytes.Value,
		"resident": memory.RssBytes.Value, "available": memory.AvailableBytes.Value,
	} {
		if value == 0 || value > uint64(mem["MemTotal"]) {
			t.Errorf("%s: %d bytes of %d", name, value, mem["MemTotal"])
		}
	}
}
