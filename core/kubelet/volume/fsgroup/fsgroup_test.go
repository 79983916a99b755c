// SPDX-License-Identifier: Apache-2.0

package fsgroup

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A volume is opened to its group, and what its modes say besides stays: a folder in memory is sticky, and a
// program that has the rights of its owner keeps them.
func TestModesOfAVolume(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root: files are given to another group")
	}
	for _, c := range []struct {
		was            fs.FileMode
		readOnly, want fs.FileMode // readOnly: with a volume that is not written
	}{
		{fs.ModeDir | fs.ModeSticky | 0o777, fs.ModeDir | fs.ModeSticky | fs.ModeSetgid | 0o777, fs.ModeDir | fs.ModeSticky | fs.ModeSetgid | 0o777},
		{fs.ModeDir | 0o700, fs.ModeDir | fs.ModeSetgid | 0o750, fs.ModeDir | fs.ModeSetgid | 0o770},
		{fs.ModeDir | fs.ModeSetgid | 0o755, fs.ModeDir | fs.ModeSetgid | 0o755, fs.ModeDir | fs.ModeSetgid | 0o775},
		{0o600, 0o640, 0o660},
		{fs.ModeSetuid | 0o755, fs.ModeSetuid | 0o755, fs.ModeSetuid | 0o775},
	} {
		for _, readOnly := range []bool{true, false} {
			dir, want := t.TempDir(), c.want
			if readOnly {
				want = c.readOnly
			}
			path := filepath.Join(dir, "one")
			if c.was.IsDir() {
				if err := os.Mkdir(path, 0o700); err != nil {
					t.Fatal(err)
				}
			} else if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, c.was); err != nil {
				t.Fatal(err)
			}
			pod := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{FSGroup: new(int64(123))}}}
			if err := Own(dir, pod, readOnly); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode() != want {
				t.Errorf("%s, read-only %t: %s, want %s", c.was, readOnly, info.Mode(), want)
			}
		}
	}
}
