// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// FuzzKeys: whatever an archive of keys holds, files are written in one folder alone, and are their owner's. Archives
// are compressed here: otherwise most of what is tried would not come as far as the archive.
func FuzzKeys(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"ca.crt", "ca.key", "sa.key", "../x"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 1, Mode: 0o644}); err != nil {
			f.Fatal(err)
		}
		if _, err := w.Write([]byte("k")); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, archive []byte) {
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		if _, err := z.Write(archive); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		top, err := os.MkdirTemp("", "wasmplane-fuzz-") //nolint:usetesting // t.TempDir is slow
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := os.RemoveAll(top); err != nil {
				t.Error(err)
			}
		}()
		dir := filepath.Join(top, "keys")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		taken := unpackKeys(&packed, dir)
		around, err := os.ReadDir(top)
		files, err2 := os.ReadDir(dir)
		if err := errors.Join(err, err2); err != nil || len(around) != 1 {
			t.Fatalf("it climbed out: %v, %v", around, err)
		}
		for _, e := range files {
			if info, err := e.Info(); err != nil || info.Mode() != 0o600 {
				t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
			}
		}
		if taken == nil && len(files) < 3 {
			t.Errorf("%d files are taken for keys", len(files))
		}
	})
}
