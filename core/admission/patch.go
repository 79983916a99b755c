// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// patchLimit bounds the patch that a span carries, in bytes.
const patchLimit = 16 << 10

// patchOp is one operation of a JSON patch (RFC 6902).
type patchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// MarshalJSON leaves the value out of a removal, and writes it, null too, elsewhere.
func (o patchOp) MarshalJSON() ([]byte, error) {
	if o.Op == "remove" {
		return json.Marshal(map[string]string{"op": o.Op, "path": o.Path})
	}
	type plain patchOp
	return json.Marshal(plain(o))
}

// patchText is a JSON patch as a span carries it.
func patchText(ops []patchOp) string {
	text, err := json.Marshal(ops)
	if err != nil {
		return fmt.Sprintf("%d changes; they cannot be encoded: %v", len(ops), err)
	}
	if len(text) > patchLimit {
		return fmt.Sprintf("%d changes of %d bytes, too many to keep", len(ops), len(text))
	}
	return string(text)
}

// diff appends the operations that lead from one value to the other, in an
// order in which they can be applied.
func diff(ops []patchOp, path string, from, to any) []patchOp {
	if a, ok := from.(map[string]any); ok {
		if b, ok := to.(map[string]any); ok {
			return diffObject(ops, path, a, b)
		}
	}
	if a, ok := from.([]any); ok {
		if b, ok := to.([]any); ok {
			return diffArray(ops, path, a, b)
		}
	}
	if reflect.DeepEqual(from, to) {
		return ops
	}
	return append(ops, patchOp{"replace", path, to})
}

func diffObject(ops []patchOp, path string, from, to map[string]any) []patchOp {
	for _, k := range sortedKeys(from) {
		if _, kept := to[k]; !kept {
			ops = append(ops, patchOp{Op: "remove", Path: path + "/" + escape(k)})
		}
	}
	for _, k := range sortedKeys(to) {
		if was, had := from[k]; had {
			ops = diff(ops, path+"/"+escape(k), was, to[k])
		} else {
			ops = append(ops, patchOp{"add", path + "/" + escape(k), to[k]})
		}
	}
	return ops
}

// diffArray leaves equal items at both ends alone, so that an item put in front
// is one operation and not a rewrite of all.
func diffArray(ops []patchOp, path string, from, to []any) []patchOp {
	head := 0
	for head < len(from) && head < len(to) && reflect.DeepEqual(from[head], to[head]) {
		head++
	}
	tail := 0
	for tail < len(from)-head && tail < len(to)-head && reflect.DeepEqual(from[len(from)-1-tail], to[len(to)-1-tail]) {
		tail++
	}
	a, b := from[head:len(from)-tail], to[head:len(to)-tail]
	for i := range min(len(a), len(b)) {
		ops = diff(ops, path+"/"+strconv.Itoa(head+i), a[i], b[i])
	}
	for i := len(a) - 1; i >= len(b); i-- {
		ops = append(ops, patchOp{Op: "remove", Path: path + "/" + strconv.Itoa(head+i)})
	}
	for i := len(a); i < len(b); i++ {
		ops = append(ops, patchOp{"add", path + "/" + strconv.Itoa(head+i), b[i]})
	}
	return ops
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// escape writes a key as a JSON pointer's token (RFC 6901).
func escape(key string) string {
	if !strings.ContainsAny(key, "~/") {
		return key
	}
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
