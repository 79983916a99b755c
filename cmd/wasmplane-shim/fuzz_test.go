// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

// FuzzImageConfig: whatever an image's configuration says, the module is a blob of the content store.
func FuzzImageConfig(f *testing.F) {
	module := digest.FromString("module").String()
	for _, c := range []any{
		map[string]any{"layerDigests": []string{module}},
		map[string]any{"layerDigests": []string{"sha256:../../../etc/passwd"}},
		map[string]any{"rootfs": map[string]any{"diff_ids": []string{module}}},
		map[string]any{"layerDigests": []string{module, module}},
	} {
		text, err := json.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	content := f.TempDir()
	store := filepath.Join(content, "blobs", "sha256")
	if err := os.MkdirAll(store, 0o755); err != nil {
		f.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(store, strings.TrimPrefix(module, "sha256:")), nil, 0o644); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, config []byte) {
		name := digest.FromBytes(config)
		file := filepath.Join(store, name.Encoded())
		if err := os.WriteFile(file, config, 0o644); err != nil {
			t.Fatal(err)
		}
		found, err := blob(content, name.String())
		if rest := strings.TrimPrefix(found, store+"/"); err == nil && found != "" && (rest == found || strings.Contains(rest, "/")) {
			t.Errorf("%s: the module is %s", config, found)
		}
		if name.String() != module {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzCode: whatever a compiler that was taken over answers, its files are in one folder, and can be read alone.
func FuzzCode(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "wazero/", Typeflag: tar.TypeDir},
		{Name: "wazero/x", Typeflag: tar.TypeReg, Mode: 0o6777},
		{Name: "../y", Typeflag: tar.TypeReg},
		{Name: "l", Linkname: "..", Typeflag: tar.TypeSymlink},
	} {
		if err := w.WriteHeader(&h); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, archive []byte) {
		top, err := os.MkdirTemp("", "wasmplane-fuzz-") //nolint:usetesting // t.TempDir is slow
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := os.RemoveAll(top); err != nil {
				t.Error(err)
			}
		}()
		_ = unpack(bytes.NewReader(archive), filepath.Join(top, "code")) // what it refuses is removed with its scratch
		around, err := os.ReadDir(top)
		if err != nil || len(around) > 1 {
			t.Fatalf("it climbed out: %v, %v", around, err)
		}
		err = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil && !d.IsDir() && info.Mode()&^0o644 != 0 {
				t.Errorf("%s has the mode %v", path, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}
