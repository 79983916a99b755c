// SPDX-License-Identifier: Apache-2.0

// Package known reads known bugs: each is a file that says what goes wrong, in which file
// of the project, and which piece of it is replaced by what.
package known

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Bug is one change that breaks something.
type Bug struct {
	Name     string
	Text     string // what goes wrong
	File     string // from the root of the project
	old, new string
}

// Read reads the bugs of a directory, in the order of their names.
func Read(dir string) ([]Bug, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	var out []Bug
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		b := Bug{Name: strings.TrimSuffix(filepath.Base(file), ".txt")}
		head, body, ok1 := strings.Cut(string(text), "\n<<<\n")
		before, after, ok2 := strings.Cut(body, "\n===\n")
		lines := strings.Split(head, "\n")
		if !ok1 || !ok2 || len(lines) != 2 {
			return nil, fmt.Errorf("%s: want a line of text, a file, and a replacement between <<<, === and >>>", file)
		}
		b.Text, b.File, b.old, b.new = lines[0], lines[1], before, strings.TrimSuffix(after, "\n>>>\n")
		out = append(out, b)
	}
	return out, nil
}

// Applied is the bug's file with the bug in it.
func (b Bug) Applied(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, b.File))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), b.old); n != 1 {
		return "", fmt.Errorf("bug %s: what it replaces is %d times in %s, want once: write the bug anew", b.Name, n, b.File)
	}
	return strings.Replace(string(text), b.old, b.new, 1), nil
}
