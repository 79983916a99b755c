// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// pinned is the label by which CRI, and with it the collection of unused images, leaves an image alone.
const pinned = "io.cri-containerd.pinned"

// seen is what a folder's file was when it was imported.
type seen struct {
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	Images   []string  `json:"images"`
}

// ImportFolder imports every archive and layout of a folder, and pins the images: no registry may have them. A file that
// has not changed since, and whose images are all there, is passed over; record is the file that remembers. A folder that
// is not there holds nothing. What is wrong with one file does not keep the others from being imported: the error is of all.
func (s *Store) ImportFolder(ctx context.Context, dir, record string, progress func(string)) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("import images: %w", err)
	}
	before := map[string]seen{}
	if data, err := os.ReadFile(record); err == nil {
		_ = json.Unmarshal(data, &before) // one that is damaged has everything imported again
	}
	now := map[string]seen{}
	var errs []error
	for _, f := range files {
		name := f.Name()
		if strings.HasPrefix(name, ".") {
			continue // half a copy, or an editor's
		}
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			errs = append(errs, fmt.Errorf("import images: %w", err))
			continue
		}
		is := seen{Size: info.Size(), Modified: info.ModTime().UTC()}
		if was, ok := before[name]; ok && !info.IsDir() && was.Size == is.Size && was.Modified.Equal(is.Modified) && s.haveAll(ctx, was.Images) {
			now[name] = was
			continue
		}
		imported, err := s.Import(ctx, Source{File: filepath.Join(dir, name), Pinned: true}, progress)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, i := range imported {
			is.Images = append(is.Images, i.Name)
		}
		now[name] = is
	}
	data, err := json.Marshal(now)
	if err == nil {
		err = atomicfile.Write(record, data, 0o600)
	}
	return errors.Join(append(errs, err)...)
}

func (s *Store) haveAll(ctx context.Context, names []string) bool {
	for _, name := range names {
		if known, err := s.known(ctx, name); err != nil || !known {
			return false
		}
	}
	return len(names) > 0
}
