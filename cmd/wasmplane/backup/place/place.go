// SPDX-License-Identifier: Apache-2.0

// Package place is where backups are kept: a folder, or a bucket with the interface of
// Amazon S3. A place holds whole files under names; a file is there once Put has returned,
// and never in part.
package place

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// Item is one file of a place.
type Item struct {
	Name     string
	Bytes    int64
	Modified time.Time
}

// Place keeps files. Errors name the place.
type Place interface {
	// Put copies a local file into the place.
	Put(ctx context.Context, name, file string) error
	// Get writes a file of the place to w.
	Get(ctx context.Context, name string, w io.Writer) error
	// List answers the files whose names begin with prefix, by name.
	List(ctx context.Context, prefix string) ([]Item, error)
	// Delete removes a file; one that is not there is no error.
	Delete(ctx context.Context, name string) error
	// String names the place for people.
	String() string
}

// Of is the place of a configuration; nil = it has none.
func Of(c *config.Configuration) (Place, error) {
	switch b := c.Backup; {
	case b.Directory != "":
		return Folder(c.Path(b.Directory)), nil
	case b.S3.Endpoint != "":
		return newBucket(c)
	}
	return nil, nil
}

// Folder is a Place on this machine.
type Folder string

// String implements Place.
func (f Folder) String() string { return string(f) }

// Put implements Place.
func (f Folder) Put(_ context.Context, name, file string) error {
	if err := os.MkdirAll(string(f), 0o700); err != nil {
		return fmt.Errorf("make the folder of backups: %w", err)
	}
	from, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	return atomicfile.WriteFrom(filepath.Join(string(f), name), 0o600, func(w io.Writer) error {
		_, err := io.Copy(w, from)
		return err
	})
}

// Get implements Place.
func (f Folder) Get(_ context.Context, name string, w io.Writer) error {
	from, err := os.Open(filepath.Join(string(f), filepath.Base(name)))
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	_, err = io.Copy(w, from)
	return err
}

// List implements Place.
func (f Folder) List(_ context.Context, prefix string) ([]Item, error) {
	entries, err := os.ReadDir(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list backups: %w", err)
	}
	var found []Item
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.Type().IsRegular() || len(e.Name()) < len(prefix) || e.Name()[:len(prefix)] != prefix {
			continue
		}
		found = append(found, Item{Name: e.Name(), Bytes: info.Size(), Modified: info.ModTime()})
	}
	return found, nil
}

// Delete implements Place.
func (f Folder) Delete(_ context.Context, name string) error {
	err := os.Remove(filepath.Join(string(f), filepath.Base(name)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// digest is what S3 has in each request, of the file that it carries.
func digest(f *os.File) (sum string, size int64, err error) {
	h := sha256.New()
	if size, err = io.Copy(h, f); err != nil {
		return "", 0, err
	}
	_, err = f.Seek(0, io.SeekStart)
	return hex.EncodeToString(h.Sum(nil)), size, err
}
