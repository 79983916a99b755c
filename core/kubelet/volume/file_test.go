// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// TestFilesOfVolumes are read for pods that put them there, whatever else lies in their way.
func TestFilesOfVolumes(t *testing.T) {
	m, root := manager(t, &objects{})
	dir := filepath.Join(root, "volume")
	p := aPod(corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}})
	secret := filepath.Join(root, "secret")
	for file, data := range map[string][]byte{
		secret: []byte("of the host"), filepath.Join(dir, "in", "a.env"): []byte("K='v'"),
		filepath.Join(dir, "most"): bytes.Repeat([]byte("x"), 1<<20), filepath.Join(dir, "large"): bytes.Repeat([]byte("x"), 1<<20+1),
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"link": "in/a.env", "abs": secret, "up": "../secret", "proc": "/proc/self/environ"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.File(p.UID, "v", "in/a.env"); err == nil {
		t.Error("a file of a volume that is not set up was read")
	}
	if err := m.Mount(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"in/a.env", "link"} {
		if data, err := m.File(p.UID, "v", path); err != nil || string(data) != "K='v'" {
			t.Errorf("%s: %q, %v", path, data, err)
		}
	}
	if data, err := m.File(p.UID, "v", "most"); err != nil || len(data) != 1<<20 {
		t.Errorf("the largest file: %d bytes, %v", len(data), err)
	}
	for _, path := range []string{"abs", "up", "proc", "../secret", "in", "pipe", "large"} {
		if data, err := m.File(p.UID, "v", path); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %d bytes, %v", path, len(data), err)
		}
	}
	if _, err := m.File(p.UID, "v", "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is missing: %v", err)
	}
}
