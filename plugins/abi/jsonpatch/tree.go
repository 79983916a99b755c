// SPDX-License-Identifier: Apache-2.0

// Package jsonpatch carries out operations of JSON patches (RFC 6902) on JSON trees, and on Go values where that spares
// the way over a tree. It has two of the ABI's additions: add makes the objects and arrays on the way that are missing, and
// an item of a list is addressed by key too ("[name=web]"). Pointers have been split into tokens.
package jsonpatch

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Op is one operation on a tree: add, replace, remove, move, copy or test.
type Op struct {
	Name       string
	Path, From []string // From of move and copy
	Value      any      // of add, replace and test
}

// MostCopied bounds how many values the copy operations of one patch may make: each
// can double what is there, and a thousand of them would make more than there is memory.
const MostCopied = 100_000

// key reads a token of the form [name=web].
func key(token string) (name, value string, ok bool) {
	if len(token) < 3 || token[0] != '[' || token[len(token)-1] != ']' {
		return "", "", false
	}
	name, value, ok = strings.Cut(token[1:len(token)-1], "=")
	return name, value, ok && name != ""
}

func index(token string, length int, insert bool) (int, error) {
	limit := length - 1
	if insert {
		limit = length
	}
	i, err := strconv.Atoi(token)
	if err != nil || i < 0 || len(token) > 1 && token[0] == '0' {
		return 0, fmt.Errorf("%q is no index of an array", token)
	}
	if i > limit {
		return 0, fmt.Errorf("index %d is behind the end of an array of %d", i, length)
	}
	return i, nil
}

var errMissing = errors.New("there is nothing at this path")

// Tree carries an operation out on a tree, which it may change, and returns the result. room is how many more values
// the patch may copy; MostCopied at its beginning.
func Tree(doc any, op *Op, room *int) (any, error) {
	switch op.Name {
	case "add", "replace":
		return setTree(doc, op.Path, op.Value, op.Name)
	case "remove":
		return setTree(doc, op.Path, nil, op.Name)
	case "test":
		found, err := getTree(doc, op.Path)
		if err == nil && !reflect.DeepEqual(found, op.Value) {
			err = errors.New("the test failed")
		}
		return doc, err
	case "move", "copy":
		return copyOrMove(doc, op, room)
	}
	return nil, errors.New("unknown operation: add, replace, remove, move, copy or test was expected")
}

func copyOrMove(doc any, op *Op, room *int) (any, error) {
	value, err := getTree(doc, op.From)
	if err != nil {
		return nil, err
	}
	if op.Name == "move" {
		if len(op.From) < len(op.Path) && slices.Equal(op.From, op.Path[:len(op.From)]) {
			return nil, errors.New("what is at from cannot be moved into itself")
		}
		if doc, err = setTree(doc, op.From, nil, "remove"); err != nil {
			return nil, err
		}
	}
	if value, err = copyTree(value, room); err != nil {
		return nil, err
	}
	return setTree(doc, op.Path, value, "add")
}

func copyTree(v any, room *int) (out any, err error) {
	if *room--; *room < 0 {
		return nil, fmt.Errorf("the patch copies more than %d values", MostCopied)
	}
	switch x := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(x))
		for k := range x {
			if out[k], err = copyTree(x[k], room); err != nil {
				return nil, err
			}
		}
		return out, nil
	case []any:
		out := make([]any, len(x))
		for i := range x {
			if out[i], err = copyTree(x[i], room); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return v, nil
}

func getTree(v any, tokens []string) (any, error) {
	for _, t := range tokens {
		switch x := v.(type) {
		case map[string]any:
			child, ok := x[t]
			if !ok {
				return nil, errMissing
			}
			v = child
		case []any:
			i, err := itemIndex(x, t)
			if err != nil {
				return nil, err
			}
			v = x[i]
		default:
			return nil, errMissing
		}
	}
	return v, nil
}

func itemIndex(list []any, token string) (int, error) {
	if name, value, ok := key(token); ok {
		i := slices.IndexFunc(list, func(item any) bool {
			m, _ := item.(map[string]any)
			s, _ := m[name].(string)
			return s == value && m[name] != nil
		})
		if i < 0 {
			return 0, fmt.Errorf("no item of the list has %s %q", name, value)
		}
		return i, nil
	}
	return index(token, len(list), false)
}

// setTree does one add, replace or remove below v, and returns the new v.
func setTree(v any, tokens []string, value any, op string) (any, error) {
	if len(tokens) == 0 {
		return value, nil
	}
	t, last := tokens[0], len(tokens) == 1
	if v == nil && op == "add" {
		v = emptyFor(t)
	}
	switch x := v.(type) {
	case map[string]any:
		child, ok := x[t]
		if !ok && op != "add" {
			return nil, errMissing
		}
		if last && op == "remove" {
			delete(x, t)
			return x, nil
		}
		child, err := setTree(child, tokens[1:], value, op)
		if err == nil {
			x[t] = child
		}
		return x, err
	case []any:
		return setItem(x, tokens, value, op)
	}
	return nil, fmt.Errorf("%q is looked for in what is neither an object nor an array", t)
}

func emptyFor(token string) any {
	if _, _, keyed := key(token); keyed || token == "-" || token == "0" {
		return []any{}
	}
	return map[string]any{}
}

func setItem(list []any, tokens []string, value any, op string) (any, error) {
	t, last := tokens[0], len(tokens) == 1
	name, want, keyed := key(t)
	i, err := itemIndex(list, t)
	switch {
	case op == "add" && last && t == "-":
		return append(list, value), nil
	case op == "add" && keyed && err != nil:
		var item any = map[string]any{name: want}
		if last {
			item = value
		} else if item, err = setTree(item, tokens[1:], value, op); err != nil {
			return nil, err
		}
		return append(list, item), nil
	case op == "add" && last && !keyed:
		at, err := index(t, len(list), true)
		if err != nil {
			return nil, err
		}
		return slices.Insert(list, at, value), nil
	case err != nil:
		return nil, err
	case last && op == "remove":
		return slices.Delete(list, i, i+1), nil
	}
	list[i], err = setTree(list[i], tokens[1:], value, op)
	return list, err
}
