// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestOneRunAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	release, err := lockMachine(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockMachine(path); err == nil || !strings.Contains(err.Error(), "another run is under way") {
		t.Errorf("a second run: %v", err)
	}
	release()
	release, err = lockMachine(path)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	release()
}

func TestSharedRoot(t *testing.T) {
	for text, want := range map[string]bool{
		"": false,
		"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n":                                               false,
		"27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n":                                      true,
		"27 1 254:0 / / rw,relatime master:3 shared:1 - ext4 /dev/vda rw\n":                             true,
		"27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n28 27 0:5 / / rw - tmpfs none rw\n":    false,
		"27 1 254:0 / / rw - ext4 shared:1 rw\n":                                                        false,
		"27 1 254:0 / / rw - ext4 /dev/vda rw\n30 27 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n": false,
	} {
		if got := sharedRoot(text); got != want {
			t.Errorf("%q: shared %v, want %v", text, got, want)
		}
	}
}
