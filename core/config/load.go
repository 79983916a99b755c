// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// FieldError is one wrong field of a document.
type FieldError struct {
	File    string
	Line    int    // 0 = unknown
	Path    string // "node.registries[0].host"; "" = the document
	Problem string
}

// Error implements error: "cluster.yaml:7: node.mode: expected ...".
func (e *FieldError) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
		b.WriteString(": ")
	} else if e.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", e.Line)
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	return b.String() + e.Problem
}

func field(path, format string, args ...any) error {
	return &FieldError{Path: path, Problem: fmt.Sprintf(format, args...)}
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
		return nil, &FieldError{File: file, Problem: fmt.Sprintf("the document is empty; it begins with apiVersion: %s and kind: %s", APIVersion,
			Kind)}
	}
	root := doc.Content[0]
	c.root = root
	if err := decode(root, reflect.ValueOf(c).Elem(), ""); err != nil {
		return nil, inFile(err, file)
	}
	if err := dec.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, &FieldError{File: file, Problem: "expected one document, found several"}
	}
	if c.APIVersion != APIVersion || c.Kind != Kind {
		return nil, &FieldError{File: file, Line: root.Line, Problem: fmt.Sprintf("expected apiVersion: %s and kind: %s, found %q and %q",
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
	var fe *FieldError
	if errors.As(err, &fe) {
		fe.File = file
		return fe
	}
	return fmt.Errorf("%s: %w", file, err)
}

// decode fills v from n, strictly. It exists because yaml's own strictness knows
// neither the path of a field nor what would have been right.
func decode(n *yaml.Node, v reflect.Value, path string) error {
	if n.Kind == yaml.AliasNode {
		return &FieldError{Line: n.Line, Path: path, Problem: "aliases are not allowed here; write the value out"}
	}
	if v.Type() == reflect.TypeFor[yaml.Node]() {
		v.Set(reflect.ValueOf(*n))
		return nil
	}
	if u, ok := v.Addr().Interface().(yaml.Unmarshaler); ok {
		return withPath(u.UnmarshalYAML(n), path)
	}
	switch v.Kind() {
	case reflect.Struct:
		return decodeStruct(n, v, path)
	case reflect.Slice:
		return decodeSlice(n, v, path)
	case reflect.Pointer:
		if v.Type().Elem().Kind() == reflect.Struct && !isNull(n) { // as strictly as a struct that is not behind one
			v.Set(reflect.New(v.Type().Elem()))
			return decode(n, v.Elem(), path)
		}
		fallthrough
	default:
		if err := n.Decode(v.Addr().Interface()); err != nil {
			if fe := new(FieldError); errors.As(err, &fe) {
				return withPath(err, path) // of a value in a map, which knows what it expects
			}
			return &FieldError{Line: n.Line, Path: path, Problem: fmt.Sprintf("expected %s, found %s", describe(v.Type()), found(n))}
		}
		return nil
	}
}

func decodeStruct(n *yaml.Node, v reflect.Value, path string) error {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return &FieldError{Line: n.Line, Path: path, Problem: fmt.Sprintf("expected a mapping, found %s", found(n))}
	}
	fields := map[string]int{}
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("yaml"); name != "-" && name != "" {
			fields[name] = i
		}
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		at := join(path, key.Value)
		index, known := fields[key.Value]
		switch {
		case !known:
			return &FieldError{Line: key.Line, Path: at, Problem: "unknown field; known here: " + strings.Join(sortedKeys(fields), ", ")}
		case seen[key.Value]:
			return &FieldError{Line: key.Line, Path: at, Problem: "the field is given twice"}
		}
		seen[key.Value] = true
		if err := decode(n.Content[i+1], v.Field(index), at); err != nil {
			return err
		}
	}
	return nil
}

func decodeSlice(n *yaml.Node, v reflect.Value, path string) error {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		return &FieldError{Line: n.Line, Path: path, Problem: fmt.Sprintf("expected a list, found %s", found(n))}
	}
	list := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		if err := decode(item, list.Index(i), fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
	}
	v.Set(list)
	return nil
}

func withPath(err error, path string) error {
	var fe *FieldError
	if errors.As(err, &fe) && fe.Path == "" {
		fe.Path = path
	}
	return err
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func describe(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64, reflect.Int32:
		return "a whole number"
	case reflect.Map:
		return "a mapping of names to " + describe(t.Elem())
	default:
		return "a " + t.Kind().String()
	}
}

func found(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
		return fmt.Sprintf("%q", n.Value)
	}
}

func sortedKeys(m map[string]int) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// DecodeNode decodes a section that another package owns, as strictly as the
// document's own; path is the section's, for messages.
func DecodeNode(n *yaml.Node, into any, path string) error {
	return decode(n, reflect.ValueOf(into).Elem(), path)
}
