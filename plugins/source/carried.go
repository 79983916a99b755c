// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// carried are the names of what a cache has: blobs by their digests, and what is known of sources.
var carried = regexp.MustCompile(`^(blobs/sha256-[0-9a-f]{64}|sources/[0-9a-f]{64}\.json)$`)

// CacheFiles are the files of a cache, by names that Carry takes: all that a fetcher needs that cannot reach the sources.
func CacheFiles(dir string) (names []string, err error) {
	for _, folder := range []string{"blobs", "sources"} {
		entries, err := os.ReadDir(filepath.Join(dir, folder))
		if err != nil {
			return nil, fmt.Errorf("read the fetched modules: %w", err)
		}
		for _, e := range entries {
			if name := folder + "/" + e.Name(); carried.MatchString(name) {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// Carry puts a file of another cache into that of dir. What a fetcher here has found out by itself stays, unless again is
// set. Nothing is trusted by that: blobs are held against their digests when they are used, signatures are verified.
func Carry(dir, name string, content io.Reader, again bool) error {
	if !carried.MatchString(name) {
		return fmt.Errorf("no file of fetched modules is called %q", name)
	}
	c, err := openCache(dir)
	if err != nil {
		return err
	}
	file := filepath.Join(c.dir, filepath.FromSlash(name))
	if _, err := os.Stat(file); err == nil && !again {
		return nil
	}
	err = atomicfile.WriteFrom(file, 0o600, func(w io.Writer) error {
		_, err := io.Copy(w, content)
		return err
	})
	if err != nil {
		return fmt.Errorf("keep a module: %w", err)
	}
	return nil
}
