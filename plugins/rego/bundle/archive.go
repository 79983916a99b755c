// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
)

// Bounds of a bundle: bytes of its files when they are unpacked, and their number.
const (
	mostBytes = 64 << 20
	mostFiles = 4096
)

// unpack reads the files of an archive, by their path without a slash at the beginning.
func unpack(archive []byte) (map[string][]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, fmt.Errorf("expected an archive as `opa build` makes it (.tar.gz): %w", err)
	}
	left := &io.LimitedReader{R: z, N: mostBytes + 1}
	files, t := map[string][]byte{}, tar.NewReader(left)
	for seen := 0; ; seen++ {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			return files, nil
		case left.N <= 0:
			return nil, fmt.Errorf("it has more than %d bytes when it is unpacked", mostBytes)
		case err != nil:
			return nil, fmt.Errorf("its archive is broken: %w", err)
		case seen >= mostFiles:
			return nil, fmt.Errorf("it has more than %d files", mostFiles)
		case h.Typeflag == tar.TypeDir, h.Typeflag == tar.TypeXGlobalHeader:
			continue
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		switch _, twice := files[name]; {
		case h.Typeflag != tar.TypeReg:
			return nil, fmt.Errorf("%s is no regular file", h.Name)
		case twice:
			return nil, fmt.Errorf("%s is there twice", name)
		case name == patchFile:
			return nil, fmt.Errorf("%s: it is a delta bundle, which changes another one: build a whole one", name)
		}
		if files[name], err = io.ReadAll(t); err != nil {
			if left.N <= 0 {
				return nil, fmt.Errorf("it has more than %d bytes when it is unpacked", mostBytes)
			}
			return nil, fmt.Errorf("its archive is broken in %s: %w", name, err)
		}
	}
}

// names are a map's keys in their order.
func names[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
