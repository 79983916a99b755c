// SPDX-License-Identifier: Apache-2.0

// Package journal keeps the results of tests in a file, one a line, so that a run which was cut off can be carried on.
package journal

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxLine bounds a line that is read, in bytes.
const maxLine = 16 << 20

// Read calls each with the results in a file, in their order. A file that is missing has none.
// What is no result is passed over: the last line is half of one after a crash.
func Read[R any](file string, each func(R)) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var r R
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			each(r)
		}
	}
	return lines.Err()
}

// Append writes a result to the end of a file, which is made with its folder where they are missing.
// One process at a time may do so.
func Append(file string, result any) error {
	line, err := json.Marshal(result)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	if halfLine(f) {
		line = append([]byte{'\n'}, line...)
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// halfLine says whether a file ends within a line.
func halfLine(f *os.File) bool {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || end == 0 {
		return false
	}
	var last [1]byte
	_, err = f.ReadAt(last[:], end-1)
	return err == nil && last[0] != '\n'
}

// Build identifies the program that is tested.
func Build(program string) (string, error) {
	f, err := os.Open(program)
	if err != nil {
		return "", fmt.Errorf("the program to test is missing, `make build` makes it: %w", err)
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), nil
}

// MaxText bounds what InLine answers, in bytes, but for three dots at the end.
const MaxText = 700

// InLine joins the first lines of a text that are not empty.
func InLine(text string, lines int) string {
	var kept []string
	for l := range strings.Lines(text) {
		if l = strings.TrimSpace(l); l != "" {
			kept = append(kept, l)
		}
		if len(kept) == lines {
			break
		}
	}
	line := strings.Join(kept, " | ")
	if len(line) > MaxText {
		line = strings.ToValidUTF8(line[:MaxText], "") + "..."
	}
	return line
}
