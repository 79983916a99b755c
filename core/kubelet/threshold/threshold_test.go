// SPDX-License-Identifier: Apache-2.0

package threshold_test

import (
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/kubelet/threshold"
)

func TestLimits(t *testing.T) {
	const gi = 1 << 30
	for _, c := range []struct {
		text     string
		capacity int64
		want     int64
	}{
		{"10%", 100 * gi, 10 * gi},
		{"1Gi", 100 * gi, gi},
		{"10%,4Gi", 2000 * gi, 4 * gi},
		{"10%, 4Gi", 20 * gi, 2 * gi},
		{"0%", 20 * gi, 0},
		{"0", 20 * gi, 0},
		{"4Gi", gi, gi}, // never more than there is
		{"2.5%", 1000, 25},
	} {
		set, err := threshold.Parse(map[string]string{threshold.DiskAvailable: c.text})
		if err != nil {
			t.Fatal(err)
		}
		if got := set[threshold.DiskAvailable].Of(c.capacity); got != c.want {
			t.Errorf("%s of %d is %d, want %d", c.text, c.capacity, got, c.want)
		}
		if got := set[threshold.MemoryAvailable].Of(8 * gi); got != 100<<20 {
			t.Errorf("what is not named keeps its default, not %d", got)
		}
	}
}

func TestBadLimits(t *testing.T) {
	for text, want := range map[string]string{
		"":         `found ""`,
		"-1Gi":     `found "-1Gi"`,
		"100%":     "below 100%",
		"NaN%":     "below 100%",
		"10%,lots": `found "10%,lots"`,
	} {
		if _, err := threshold.Parse(map[string]string{threshold.DiskAvailable: text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := threshold.Parse(map[string]string{"imagefs.available": "1%"}); err == nil || !strings.Contains(err.Error(),
		"memory.available, nodefs.available") {
		t.Errorf("an unknown signal: %v", err)
	}
}
