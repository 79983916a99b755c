// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/core/strictyaml"
)

func field(path, format string, args ...any) error {
	return &strictyaml.FieldError{Path: path, Problem: fmt.Sprintf(format, args...)}
}

// LoadFile reads a document over the defaults. It does not Complete it: flags
// and environment come in between.
func LoadFile(path string) (*Configuration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return Load(path, data)
}

// Load is LoadFile of bytes; file is for messages and relative paths.
func Load(file string, data []byte) (*Configuration, error) {
	c := Default()
	c.File = file
	c.APIVersion, c.Kind = "", ""
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(doc.Content) == 0 {
		return nil, &strictyaml.FieldError{File: file, Problem: fmt.Sprintf(
			"the document is empty; it begins with apiVersion: %s and kind: %s", APIVersion,
			Kind)}
	}
	root := doc.Content[0]
	c.root = root
	if err := strictyaml.Decode(root, c, ""); err != nil {
		return nil, inFile(err, file)
	}
	if err := dec.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, &strictyaml.FieldError{File: file, Problem: "expected one document, found several"}
	}
	if c.APIVersion != APIVersion || c.Kind != Kind {
		return nil, &strictyaml.FieldError{File: file, Line: root.Line, Problem: fmt.Sprintf(
			"expected apiVersion: %s and kind: %s, found %q and %q",
			APIVersion, Kind, c.APIVersion, c.Kind)}
	}
	return c, nil
}

// lineOf is the line of a field; 0 = the document does not have it.
func lineOf(n *yaml.Node, path string) int {
	line := n.Line
	for _, step := range strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		if line, n = child(n, step); n == nil {
			return 0
		}
	}
	return line
}

// NearestLine is the line of a field of a document; of one that is missing, that of what it
// would stand in.
func NearestLine(n *yaml.Node, path string) int {
	for at := path; at != ""; at = at[:max(strings.LastIndexAny(at, ".["), 0)] {
		if line := lineOf(n, at); line > 0 {
			return line
		}
	}
	return n.Line
}

// child is a mapping's value, or a sequence's item, and the line where it begins.
func child(n *yaml.Node, step string) (line int, value *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == step {
				return n.Content[i].Line, n.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i].Line, n.Content[i]
		}
	default: // it has no parts
	}
	return 0, nil
}

func inFile(err error, file string) error {
	var fe *strictyaml.FieldError
	if errors.As(err, &fe) {
		fe.File = file
		return fe
	}
	return fmt.Errorf("%s: %w", file, err)
}
