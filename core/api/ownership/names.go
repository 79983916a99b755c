// SPDX-License-Identifier: Apache-2.0

package ownership

import (
	"bytes"
	"slices"
	"strings"
)

// Each pod has an IP of its own, and the lease of each node an owner of its own. Both are keys of lists, so they stand in
// the managed fields, and updates of two pods or two leases would never look alike. But what upstream's code makes of
// an update depends on such keys only by which are the same and by their order. So where an update is described they
// are replaced by numbers, in the order in which they are found, and their order is added.

// name is a value of a list's key that was replaced by its number.
type name struct {
	key   int // of keyNames, from one on
	value string
}

// keyNames are the keys of lists whose values are replaced, where an item has no other key.
var keyNames = [...]string{"ip", "uid"}

// keyName is the number of a key in keyNames, from one on; 0: its values are not replaced.
func keyName(keys []string) int {
	if len(keys) != 1 {
		return 0
	}
	return slices.Index(keyNames[:], keys[0]) + 1
}

// simpleName: it stands in JSON as it is.
func simpleName(value string) bool {
	return value != "" && len(value) <= 64 && strings.IndexFunc(value, func(r rune) bool {
		return r != '-' && r != '.' && r != ':' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) < 0
}

// maxNames is how many values are replaced: each is looked for among all others.
const maxNames = 16

// name draws the number of a value instead of it; false: it is not a simple one, or there are too many.
func (s *sketch) name(key int, value string) bool {
	if !simpleName(value) {
		return false
	}
	at := s.find(key, value)
	if at < 0 {
		if len(s.names) == maxNames {
			return false
		}
		at = len(s.names)
		s.names = append(s.names, name{key, value})
	}
	s.number(uint64(at)) //nolint:gosec // not negative
	return true
}

func (s *sketch) find(key int, value string) int {
	return slices.IndexFunc(s.names, func(n name) bool { return n.key == key && n.value == value })
}

// fields draws an encoded set of fields; false: one of its names is not simple.
func (s *sketch) fields(encoded []byte) bool {
	return split(encoded, func(piece []byte, key int, value string) bool {
		s.text(string(piece))
		s.number(uint64(key)) //nolint:gosec // not negative
		return key == 0 || s.name(key, value)
	})
}

// order draws how the names of each key are ordered: sets of fields are.
func (s *sketch) order() {
	for _, n := range s.names {
		before := 0
		for _, other := range s.names {
			if other.key == n.key && other.value < n.value {
				before++
			}
		}
		s.number(uint64(before)) //nolint:gosec // not negative
	}
}

// keyBegins is how a list's key of that name begins in an encoded set of fields.
func keyBegins(i int) []byte { return []byte(`k:{\"` + keyNames[i] + `\":`) }

// split tells of the pieces of an encoded set of fields and of the name that stands behind each: the last has none, and
// key 0. It stops at a name that is not simple, and where it is told to, with false.
func split(encoded []byte, tell func(piece []byte, key int, value string) bool) bool {
	for {
		at, key := -1, 0
		for i := range keyNames {
			if found := bytes.Index(encoded, keyBegins(i)); found >= 0 && (at < 0 || found < at) {
				at, key = found, i+1
			}
		}
		if at < 0 {
			return tell(encoded, 0, "")
		}
		at += len(keyBegins(key - 1))
		rest, quoted := bytes.CutPrefix(encoded[at:], []byte(`\"`))
		value, _, ends := bytes.Cut(rest, []byte(`\"}`))
		if !quoted || !ends || !simpleName(string(value)) {
			return false
		}
		at += len(`\"`)
		if !tell(encoded[:at:at], key, string(value)) {
			return false
		}
		encoded = encoded[at+len(value):]
	}
}
