// SPDX-License-Identifier: Apache-2.0

package linuxhost_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/threshold"
)

// A disk that fills up below a soft limit and is emptied again: pods go for it after a while, until there is more than the
// limit, and the condition lasts longer. It is a real one; making it needs root.
func TestADiskUnderPressure(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	const mi = 1 << 20
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64m,nr_inodes=1000"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	}()
	file := filepath.Join(disk, "file")
	if err := os.WriteFile(file, make([]byte, 40*mi), 0o600); err != nil {
		t.Fatal(err)
	}
	hard := map[string]string{}
	for signal := range threshold.Defaults() {
		hard[signal] = "0"
	}
	synctest.Test(t, func(t *testing.T) {
		h, err := linuxhost.New(linuxhost.Config{
			NodeName: "n1", RootDir: filepath.Join(disk, "root"), LogRoot: filepath.Join(disk, "logs"), NodeIPs: []string{"192.0.2.7"},
			Evict: threshold.Settings{
				Hard: hard, Soft: map[string]string{threshold.DiskAvailable: "32Mi"}, MaxPodGracePeriod: 20 * time.Second,
				SoftGracePeriod: map[string]time.Duration{threshold.DiskAvailable: time.Minute},
				MinimumReclaim:  map[string]string{threshold.DiskAvailable: "8Mi"}, PressureTransitionPeriod: 2 * time.Minute,
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			later           time.Duration
			holds           int64 // of 64 MiB
			short, pressure bool
		}{
			{0, 20 * mi, false, false},
			{0, 40 * mi, false, true},
			{time.Minute - 1, 40 * mi, false, true},
			{1, 40 * mi, true, true},
			{time.Minute, 28 * mi, true, true}, // more than the limit, not by so much as is to be reclaimed
			{time.Minute, 16 * mi, false, true},
			{time.Minute - 1, 16 * mi, false, true},
			{1, 16 * mi, false, false},
		} {
			time.Sleep(c.later)
			if err := os.Truncate(file, 0); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, make([]byte, c.holds), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := h.Facts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if (len(f.Short) == 1) != c.short || (f.Pressure[corev1.NodeDiskPressure] != "") != c.pressure {
				t.Errorf("with %d MiB, %v later: short of %v, conditions %v; want %v", c.holds/mi, c.later, f.Short, f.Pressure, c)
			}
			if c.short && (f.Short[0].Grace != 20*time.Second || f.Short[0].Threshold.String() != "32Mi") {
				t.Errorf("it says %+v", f.Short[0])
			}
		}
	})
}
