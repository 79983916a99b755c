// SPDX-License-Identifier: Apache-2.0

package regobuiltins

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

var errPatch = errors.New("the patch cannot be applied")

// jsonPatch applies operations of RFC 6902, whose paths may also be lists of keys.
// Values are shared, never copied: what a patch can multiply is bounded when the result is written.
func jsonPatch(c *Evaluation, a []any) (any, error) {
	ops, ok := a[1].([]any)
	if !ok {
		return nil, errType
	}
	v := a[0]
	for _, op := range ops {
		o, ok := op.(object)
		if !ok {
			return nil, errType
		}
		var err error
		if v, err = patch(c, v, o); err != nil {
			return nil, err
		}
	}
	if size(v, c.Limit) > c.Limit {
		return nil, errTooLarge
	}
	return v, nil
}

// size counts a value's parts, up to a limit.
func size(v any, limit int) int {
	n := 1
	add := func(item any) bool {
		n += size(item, limit-n)
		return n <= limit
	}
	switch v := v.(type) {
	case string:
		return 1 + len(v)
	case []any:
		for _, item := range v {
			if !add(item) {
				break
			}
		}
	case set:
		return size([]any(v), limit)
	case object:
		for _, m := range v {
			if !add(m.key) || !add(m.value) {
				break
			}
		}
	}
	return n
}

func patch(c *Evaluation, v any, op object) (any, error) {
	name, _ := op.get("op")
	path, err := pathOf(op, "path")
	if err != nil {
		return nil, err
	}
	value, has := op.get("value")
	switch name {
	case "add", "replace", "test":
		if !has {
			return nil, errPatch
		}
	}
	switch name {
	case "add":
		return edit(c, v, path, func(any, bool) (any, bool, error) { return value, true, nil })
	case "replace":
		if len(path) == 0 {
			return value, nil
		}
		if v, err = edit(c, v, path, func(_ any, there bool) (any, bool, error) { return nil, false, missing(there) }); err != nil {
			return nil, err
		}
		return edit(c, v, path, func(any, bool) (any, bool, error) { return value, true, nil })
	case "remove":
		return edit(c, v, path, func(_ any, there bool) (any, bool, error) { return nil, false, missing(there) })
	case "test":
		at, ok := find(v, path)
		if !ok || compare(at, value) != 0 {
			return nil, errPatch
		}
		return v, nil
	case "copy", "move":
		from, err := pathOf(op, "from")
		if err != nil {
			return nil, err
		}
		moved, ok := find(v, from)
		if !ok {
			return nil, errPatch
		}
		if name == "move" {
			if v, err = edit(c, v, from, func(any, bool) (any, bool, error) { return nil, false, nil }); err != nil {
				return nil, err
			}
		}
		return edit(c, v, path, func(any, bool) (any, bool, error) { return moved, true, nil })
	}
	return nil, errPatch
}

func missing(there bool) error {
	if !there {
		return errPatch
	}
	return nil
}

func pathOf(op object, field string) ([]any, error) {
	v, _ := op.get(field)
	switch v := v.(type) {
	case []any:
		return v, nil
	case string:
		if v = strings.TrimPrefix(v, "/"); v == "" {
			return nil, nil
		}
		var out []any
		for _, part := range strings.Split(v, "/") {
			out = append(out, strings.NewReplacer("~1", "/", "~0", "~").Replace(part))
		}
		return out, nil
	}
	return nil, errPatch
}

func find(v any, path []any) (any, bool) {
	for _, key := range path {
		switch at := v.(type) {
		case object:
			var ok bool
			if v, ok = at.get(key); !ok {
				return nil, false
			}
		case []any:
			i, ok := index(key, len(at))
			if !ok || i >= len(at) {
				return nil, false
			}
			v = at[i]
		case set:
			if !slices.ContainsFunc(at, func(item any) bool { return compare(item, key) == 0 }) {
				return nil, false
			}
			v = key
		default:
			return nil, false
		}
	}
	return v, true
}

func index(key any, length int) (int, bool) {
	var i int64
	switch k := key.(type) {
	case string:
		if k == "-" {
			return length, true
		}
		n, err := strconv.Atoi(k)
		if err != nil || k != strconv.Itoa(n) {
			return 0, false
		}
		i = int64(n)
	default:
		n, err := integer(key)
		if err != nil {
			return 0, false
		}
		i = n
	}
	return int(i), i >= 0 && i <= int64(length)
}

// edit makes a value that differs at one place; the rest is shared. change gets
// what stands there, and answers what shall, or that nothing shall.
func edit(c *Evaluation, v any, path []any, change func(old any, there bool) (any, bool, error)) (any, error) {
	if len(path) == 0 {
		out, keep, err := change(v, true)
		if err == nil && !keep {
			err = errPatch
		}
		return out, err
	}
	last := len(path) == 1
	switch at := v.(type) {
	case object:
		c.Charge(int64(len(at)))
		old, there := at.get(path[0])
		out := slices.DeleteFunc(slices.Clone(at), func(m member) bool { return compare(m.key, path[0]) == 0 })
		if !last && !there {
			return nil, errPatch
		}
		fresh, keep, err := below(c, old, there, path, change)
		if err != nil || !keep {
			return out, err
		}
		return newObject(append(out, member{path[0], fresh})), nil
	case []any:
		c.Charge(int64(len(at)))
		return editArray(c, at, path, change)
	case set:
		c.Charge(int64(len(at)))
		there := slices.ContainsFunc(at, func(item any) bool { return compare(item, path[0]) == 0 })
		out := slices.DeleteFunc(slices.Clone([]any(at)), func(item any) bool { return compare(item, path[0]) == 0 })
		fresh, keep, err := below(c, path[0], there, path, change)
		if err != nil || !keep {
			return newSet(out), err
		}
		return newSet(append(out, fresh)), nil
	}
	return nil, errPatch
}

func below(c *Evaluation, old any, there bool, path []any, change func(any, bool) (any, bool, error)) (any, bool, error) {
	if len(path) == 1 {
		return change(old, there)
	}
	out, err := edit(c, old, path[1:], change)
	return out, true, err
}

// editArray inserts where nothing is replaced: change is told that nothing stood there.
func editArray(c *Evaluation, at []any, path []any, change func(any, bool) (any, bool, error)) (any, error) {
	i, ok := index(path[0], len(at))
	if !ok {
		return nil, errPatch
	}
	if len(path) > 1 {
		if i >= len(at) {
			return nil, errPatch
		}
		fresh, err := edit(c, at[i], path[1:], change)
		if err != nil {
			return nil, err
		}
		out := slices.Clone(at)
		out[i] = fresh
		return out, nil
	}
	var old any
	if i < len(at) {
		old = at[i]
	}
	fresh, keep, err := change(old, i < len(at))
	if err != nil {
		return nil, err
	}
	out := slices.Clone(at)
	if !keep {
		if i >= len(at) {
			return nil, errPatch
		}
		return slices.Delete(out, i, i+1), nil
	}
	return slices.Insert(out, i, fresh), nil
}
