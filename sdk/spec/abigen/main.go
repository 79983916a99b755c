// SPDX-License-Identifier: Apache-2.0

// Command abigen writes the tables of the plugin ABI, which sdk/spec/abi.yaml has once,
// into the host, the SDKs and the pages that show them. It is run by `make gen`, from
// the repository's root:
//
//	go run ./sdk/spec/abigen
//
// Some files are written whole. In others it replaces what stands between two lines that
// hold "abi.yaml: begin NAME" and "abi.yaml: end NAME", in whatever form of comment.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	files, err := generate(".")
	for path, content := range files {
		if err == nil {
			err = os.WriteFile(path, content, 0o644) //nolint:gosec // sources, for everybody to read
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "abigen:", err)
		os.Exit(1)
	}
}

// generate returns every file that the table has a part in, as it has to be.
func generate(root string) (map[string][]byte, error) {
	t, err := readTable(filepath.Join(root, "sdk/spec/abi.yaml"))
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	var errs []error
	for path, render := range wholeFiles() {
		var b bytes.Buffer
		render(&b, t)
		content := b.Bytes()
		if strings.HasSuffix(path, ".go") {
			if content, err = format.Source(content); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", path, err))
			}
		}
		out[filepath.Join(root, path)] = content
	}
	for path, regions := range partFiles() {
		content, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return nil, fmt.Errorf("read a file with a part of the ABI: %w", err)
		}
		for name, render := range regions {
			var b bytes.Buffer
			render(&b, t)
			if content, err = replace(content, name, b.Bytes()); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", path, err))
			}
		}
		out[filepath.Join(root, path)] = content
	}
	return out, errors.Join(errs...)
}

// replace puts lines between the two lines that mark a region.
func replace(content []byte, name string, lines []byte) ([]byte, error) {
	begin, end := []byte("abi.yaml: begin "+name), []byte("abi.yaml: end "+name)
	at, to := bytes.Index(content, begin), bytes.Index(content, end)
	if at < 0 || to < at || bytes.Count(content, begin) != 1 {
		return content, fmt.Errorf("it needs one line with %q and after it one with %q", begin, end)
	}
	at += bytes.IndexByte(content[at:], '\n') + 1
	to = bytes.LastIndexByte(content[:to], '\n') + 1
	return bytes.Join([][]byte{content[:at], lines, content[to:]}, nil), nil
}
