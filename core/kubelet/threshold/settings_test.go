// SPDX-License-Identifier: Apache-2.0

package threshold_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/kubelet/threshold"
)

func TestSettingsAreRead(t *testing.T) {
	s := threshold.Settings{
		Hard: map[string]string{threshold.DiskAvailable: "1Gi"}, Soft: map[string]string{threshold.MemoryAvailable: "10%"},
		SoftGracePeriod: map[string]time.Duration{threshold.MemoryAvailable: time.Minute},
		MinimumReclaim:  map[string]string{threshold.DiskAvailable: "500Mi"}, MaxPodGracePeriod: 30 * time.Second,
	}
	r, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Hard) != len(threshold.Defaults()) || len(r.Soft) != 1 || len(r.MinimumReclaim) != 1 {
		t.Errorf("only hard limits have defaults: %v", r)
	}
	if got := r.Soft[threshold.MemoryAvailable].Of(1000); got != 100 {
		t.Errorf("a tenth of 1000 is %d", got)
	}
}

// What is wrong names the setting, and what to do.
func TestWrongSettings(t *testing.T) {
	memory := map[string]string{threshold.MemoryAvailable: "1Gi"}
	for _, c := range []struct {
		s             threshold.Settings
		setting, says string
	}{
		{threshold.Settings{Hard: map[string]string{"imagefs.available": "1%"}}, "evictionHard", `unknown signal "imagefs.available": expected one of memory`},
		{threshold.Settings{Soft: map[string]string{threshold.PIDsAvailable: "many"}}, "evictionSoft", `pid.available: expected a percentage`},
		{threshold.Settings{MinimumReclaim: map[string]string{threshold.PIDsAvailable: "-1"}}, "evictionMinimumReclaim", `found "-1"`},
		{threshold.Settings{Soft: memory}, "evictionSoftGracePeriod", "memory.available: 90s"},
		{
			threshold.Settings{SoftGracePeriod: map[string]time.Duration{threshold.MemoryAvailable: 0}},
			"evictionSoftGracePeriod",
			"memory.available has no limit in evictionSoft",
		},
		{
			threshold.Settings{Soft: memory, SoftGracePeriod: map[string]time.Duration{threshold.MemoryAvailable: -time.Second}},
			"evictionSoftGracePeriod", "memory.available: expected at least 0s, found -1s",
		},
		{threshold.Settings{MaxPodGracePeriod: -1}, "evictionMaxPodGracePeriod", "at least 0s"},
		{threshold.Settings{MaxPodGracePeriod: 1500 * time.Millisecond}, "evictionMaxPodGracePeriod", "whole seconds"},
		{threshold.Settings{PressureTransitionPeriod: -1}, "evictionPressureTransitionPeriod", "at least 0s"},
	} {
		_, err := c.s.Read()
		var wrong *threshold.SettingError
		if !errors.As(err, &wrong) || wrong.Setting != c.setting || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %s: %s", c.s, err, c.setting, c.says)
		}
	}
}
