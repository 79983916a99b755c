// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestANodeWithoutProgramsOfFileSystems tells which is missing, and what to install. Loop devices need root.
func TestANodeWithoutProgramsOfFileSystems(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	device, _ := loopDevice(t)
	// A node that has some of the programs.
	with := func(names ...string) string {
		dir := t.TempDir()
		for _, name := range names {
			at, err := exec.LookPath(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(at, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	few, none := with("blkid", "mount"), with()
	xfs, unknown := "xfs", "zonefs"
	pv := boundVolume(localAt(device))
	for _, c := range []struct {
		path   string
		fsType *string
		want   []string
	}{
		{none, nil, []string{"no blkid: install the package util-linux", "no mount: install the package mount"}},
		{few, nil, []string{"this node has no mkfs.ext4: install the package e2fsprogs"}},
		{few, &xfs, []string{"this node has no mkfs.xfs: install the package xfsprogs"}},
		{few, &unknown, []string{"this node has no mkfs.zonefs: install the package that has it"}},
	} {
		pv.Spec.Local.FSType = c.fsType
		m, _ := managerOf(t, "", boundClaim("c"), pv)
		before := os.Getenv("PATH")
		t.Setenv("PATH", c.path)
		err := m.Mount(t.Context(), aPod(withClaim(false)))
		t.Setenv("PATH", before) // the device is taken away by a program
		for _, want := range append(c.want, "file system of", "of PV pv") {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("mounting says %v, want %q", err, want)
			}
		}
	}
}
