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
	"strconv"
	"strings"

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
	room := maxCopied
	for i := range ops {
		out, err := h.patchTree(doc, kind, &ops[i], &room)
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

// ErrNotTyped is returned by PatchStruct where only a JSON tree can be patched:
// the operation is move, copy or test, or a path leads into a type with an encoding of its own.
var ErrNotTyped = errors.New("the patch needs a JSON tree")

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
			err = setField(v.Elem(), tokens, op)
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

// maxCopied bounds how many values the copy operations of one patch may make: each
// can double what is there, and a thousand of them would make more than there is memory.
const maxCopied = 100_000

func (h *Hook) patchTree(doc any, kind string, op *PatchOp, room *int) (any, error) {
	tokens, err := h.pointer(op.Path, kind)
	if err != nil {
		return nil, err
	}
	switch op.Op {
	case "add", "replace", "test":
		var value any
		if op.Value == nil {
			return nil, errors.New("the value is missing")
		}
		if value, err = Decode(op.Value); err != nil {
			return nil, fmt.Errorf("the value is no JSON: %w", err)
		}
		if op.Op != "test" {
			return setTree(doc, tokens, value, op.Op)
		}
		found, err := getTree(doc, tokens)
		if err == nil && !reflect.DeepEqual(found, value) {
			err = errors.New("the test failed")
		}
		return doc, err
	case "remove":
		return setTree(doc, tokens, nil, op.Op)
	case "move", "copy":
		from, err := h.pointer(op.From, kind)
		if err != nil {
			return nil, err
		}
		value, err := getTree(doc, from)
		if err != nil {
			return nil, err
		}
		if op.Op == "move" {
			if len(from) < len(tokens) && slices.Equal(from, tokens[:len(from)]) {
				return nil, fmt.Errorf("%s cannot be moved into itself", op.From)
			}
			if doc, err = setTree(doc, from, nil, "remove"); err != nil {
				return nil, err
			}
		}
		if value, err = copyTree(value, room); err != nil {
			return nil, err
		}
		return setTree(doc, tokens, value, "add")
	}
	return nil, errors.New("unknown operation: add, replace, remove, move, copy or test was expected")
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

func copyTree(v any, room *int) (out any, err error) {
	if *room--; *room < 0 {
		return nil, fmt.Errorf("the patch copies more than %d values", maxCopied)
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

// setField is setTree on Go values. v is settable.
func setField(v reflect.Value, tokens []string, op *PatchOp) error {
	if len(tokens) == 0 {
		return assign(v, op)
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			if op.Op != "add" {
				return errMissing
			}
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct:
		return setStruct(v, tokens, op)
	case reflect.Map:
		return setMap(v, tokens, op)
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Uint8 {
			return setSlice(v, tokens, op)
		}
	case reflect.Interface:
		return ErrNotTyped
	default:
	}
	return fmt.Errorf("%q is looked for in what is neither an object nor an array", tokens[0])
}

// assign puts the operation's value into v, or empties it.
func assign(v reflect.Value, op *PatchOp) error {
	if op.Op == "remove" {
		v.SetZero()
		return nil
	}
	if op.Value == nil {
		return errors.New("the value is missing")
	}
	v.SetZero()
	d := json.NewDecoder(bytes.NewReader(op.Value))
	d.DisallowUnknownFields()
	if err := d.Decode(v.Addr().Interface()); err != nil {
		return fmt.Errorf("the value does not fit: %w", err)
	}
	return nil
}

func setStruct(v reflect.Value, tokens []string, op *PatchOp) error {
	info := jsonvalue.InfoOf(v.Type())
	if info.Form != jsonvalue.Plain {
		return ErrNotTyped
	}
	i, ok := info.ByName[tokens[0]]
	if !ok {
		return fmt.Errorf("a %s has no field %q", v.Type().Name(), tokens[0])
	}
	f, err := v.FieldByIndexErr(info.Fields[i].Index)
	if err != nil {
		return ErrNotTyped
	}
	if op.Op != "add" && len(tokens) == 1 && jsonvalue.IsEmpty(f) && info.Fields[i].OmitEmpty {
		return errMissing
	}
	return setField(f, tokens[1:], op)
}

func setMap(v reflect.Value, tokens []string, op *PatchOp) error {
	if v.Type().Key().Kind() != reflect.String {
		return ErrNotTyped
	}
	k := reflect.ValueOf(tokens[0]).Convert(v.Type().Key())
	had := v.MapIndex(k)
	if !had.IsValid() && op.Op != "add" {
		return errMissing
	}
	if len(tokens) == 1 && op.Op == "remove" {
		v.SetMapIndex(k, reflect.Value{})
		return nil
	}
	item := reflect.New(v.Type().Elem()).Elem()
	if had.IsValid() {
		item.Set(had)
	}
	if err := setField(item, tokens[1:], op); err != nil {
		return err
	}
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	v.SetMapIndex(k, item)
	return nil
}

func setSlice(v reflect.Value, tokens []string, op *PatchOp) error {
	t, last := tokens[0], len(tokens) == 1
	name, want, keyed := key(t)
	i, err := sliceIndex(v, t)
	switch {
	case op.Op == "add" && (last && t == "-" || keyed && err != nil):
		item := reflect.New(v.Type().Elem()).Elem()
		if keyed && !last {
			f, ok := jsonvalue.Get(item, name)
			if !ok || !f.CanSet() || f.Kind() != reflect.String {
				return ErrNotTyped
			}
			f.SetString(want)
		}
		if err := setField(item, tokens[1:], op); err != nil {
			return err
		}
		v.Set(reflect.Append(v, item))
		return nil
	case op.Op == "add" && last && !keyed:
		at, err := index(t, v.Len(), true)
		if err != nil {
			return err
		}
		item := reflect.New(v.Type().Elem()).Elem()
		if err := assign(item, op); err != nil {
			return err
		}
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
		reflect.Copy(v.Slice(at+1, v.Len()), v.Slice(at, v.Len()-1))
		v.Index(at).Set(item)
		return nil
	case err != nil:
		return err
	case last && op.Op == "remove":
		v.Set(reflect.AppendSlice(v.Slice(0, i), v.Slice(i+1, v.Len())))
		return nil
	}
	return setField(v.Index(i), tokens[1:], op)
}

func sliceIndex(v reflect.Value, token string) (int, error) {
	name, want, ok := key(token)
	if !ok {
		return index(token, v.Len(), false)
	}
	for i := range v.Len() {
		if f, ok := jsonvalue.Get(v.Index(i), name); ok && f.Kind() == reflect.String && f.String() == want {
			return i, nil
		}
	}
	return 0, fmt.Errorf("no item of the list has %s %q", name, want)
}
