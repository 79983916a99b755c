// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/abi/jsonpatch"
	"github.com/wasmplane/wasmplane/plugins/abi/jsonvalue"
)

// PatchOp is one operation of a JSON patch (RFC 6902), with three comforts:
//   - add makes the objects and arrays on the way that are missing;
//   - an item of a list is addressed by key too: "/spec/containers/[name=web]/image";
//     add of such an item replaces the one with that key, or appends;
//   - a first token that is an alias leads where the hook's fields lead:
//     "/@podMeta/labels/team".
type PatchOp struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	From  string          `json:"from,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

// Patch applies operations to a JSON tree, which it may change, and returns the result.
func (h *Hook) Patch(tree map[string]any, kind string, ops []PatchOp) (map[string]any, error) {
	var doc any = tree
	room := jsonpatch.MostCopied
	for i := range ops {
		op, err := h.operation(kind, &ops[i])
		var out any
		if err == nil {
			out, err = jsonpatch.Tree(doc, op, &room)
		}
		if err != nil {
			return nil, fmt.Errorf("patch[%d] (%s %s): %w", i, ops[i].Op, ops[i].Path, err)
		}
		doc = out
	}
	out, ok := doc.(map[string]any)
	if !ok {
		return nil, errors.New("the patch leaves no object")
	}
	return out, nil
}

// operation leads the pointers of an operation to their places, and reads its value.
func (h *Hook) operation(kind string, op *PatchOp) (_ *jsonpatch.Op, err error) {
	out := &jsonpatch.Op{Name: op.Op}
	if out.Path, err = h.pointer(op.Path, kind); err != nil {
		return nil, err
	}
	switch op.Op {
	case "add", "replace", "test":
		if op.Value == nil {
			return nil, errors.New("the value is missing")
		}
		if out.Value, err = Decode(op.Value); err != nil {
			return nil, fmt.Errorf("the value is no JSON: %w", err)
		}
	case "move", "copy":
		out.From, err = h.pointer(op.From, kind)
	}
	return out, err
}

// ErrNotTyped is returned by PatchStruct where only a JSON tree can be patched:
// the operation is move, copy or test, or a path leads into a type with an encoding of its own.
var ErrNotTyped = jsonpatch.ErrNotTyped

// PatchStruct applies operations to a Go object in place, which spares the
// conversion to a tree and back. On an error the object may be half changed.
func (h *Hook) PatchStruct(object any, kind string, ops []PatchOp) error {
	v := reflect.ValueOf(object)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct || jsonvalue.InfoOf(v.Elem().Type()).Form != jsonvalue.Plain {
		return ErrNotTyped
	}
	for i := range ops {
		op := &ops[i]
		if op.Op != "add" && op.Op != "replace" && op.Op != "remove" {
			return ErrNotTyped
		}
		tokens, err := h.pointer(op.Path, kind)
		if err == nil {
			err = jsonpatch.Struct(v.Elem(), op.Op, tokens, op.Value)
		}
		if err != nil {
			return fmt.Errorf("patch[%d] (%s %s): %w", i, op.Op, op.Path, err)
		}
	}
	return nil
}

// pointer splits a JSON pointer and leads an alias to its place.
func (h *Hook) pointer(text, kind string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	if text[0] != '/' || len(text) > maxPath {
		return nil, errors.New("a path begins with / and has at most 1024 characters")
	}
	tokens := strings.Split(text[1:], "/")
	for i, t := range tokens {
		if strings.Contains(t, "~") {
			tokens[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(t)
		}
	}
	if strings.HasPrefix(tokens[0], "@") {
		via, ok := place(h.places, tokens[0], kind)
		if !ok {
			return nil, fmt.Errorf("%s leads nowhere in a %s", tokens[0], kind)
		}
		tokens = slices.Concat(via, tokens[1:])
	}
	return tokens, nil
}

// Decode reads JSON with whole numbers as int64, as trees of API objects have them.
func Decode(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more behind it")
	}
	return Integers(v), nil
}

// Integers turns whole numbers into int64, as trees of API objects have them.
func Integers(v any) any {
	switch x := v.(type) {
	case json.Number:
		if n, err := x.Int64(); err == nil {
			return n
		}
		if f, err := x.Float64(); err == nil {
			return Integers(f)
		}
		return x.String()
	case float64:
		if x == float64(int64(x)) && x > -1<<53 && x < 1<<53 {
			return int64(x)
		}
	case map[string]any:
		for k := range x {
			x[k] = Integers(x[k])
		}
	case []any:
		for i := range x {
			x[i] = Integers(x[i])
		}
	}
	return v
}
