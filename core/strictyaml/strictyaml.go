// SPDX-License-Identifier: Apache-2.0

// Package strictyaml fills Go structs from YAML and takes nothing that it does not know: a wrong field is an error with
// its line, its path, and what would have been right. The configuration and other documents of ours are read by it.
package strictyaml

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
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

// Decode decodes a section that another package owns, as strictly as the
// document's own; path is the section's, for messages.
func Decode(n *yaml.Node, into any, path string) error {
	return decode(n, reflect.ValueOf(into).Elem(), path)
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
