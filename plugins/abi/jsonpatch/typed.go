// SPDX-License-Identifier: Apache-2.0

package jsonpatch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/wasmplane/wasmplane/plugins/abi/jsonvalue"
)

// ErrNotTyped is returned by Struct where only a tree can be patched: a path leads into a type with an encoding of its own.
var ErrNotTyped = errors.New("the patch needs a JSON tree")

type edit struct {
	name  string
	value json.RawMessage
}

// Struct adds, replaces or removes what is at a path below a Go value, which is settable. After an error it
// may be half changed.
func Struct(v reflect.Value, name string, path []string, value json.RawMessage) error {
	return setField(v, path, &edit{name, value})
}

// setField is setTree on Go values. v is settable.
func setField(v reflect.Value, tokens []string, op *edit) error {
	if len(tokens) == 0 {
		return assign(v, op)
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			if op.name != "add" {
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
func assign(v reflect.Value, op *edit) error {
	if op.name == "remove" {
		v.SetZero()
		return nil
	}
	if op.value == nil {
		return errors.New("the value is missing")
	}
	v.SetZero()
	d := json.NewDecoder(bytes.NewReader(op.value))
	d.DisallowUnknownFields()
	if err := d.Decode(v.Addr().Interface()); err != nil {
		return fmt.Errorf("the value does not fit: %w", err)
	}
	return nil
}

func setStruct(v reflect.Value, tokens []string, op *edit) error {
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
	if op.name != "add" && len(tokens) == 1 && jsonvalue.IsEmpty(f) && info.Fields[i].OmitEmpty {
		return errMissing
	}
	return setField(f, tokens[1:], op)
}

func setMap(v reflect.Value, tokens []string, op *edit) error {
	if v.Type().Key().Kind() != reflect.String {
		return ErrNotTyped
	}
	k := reflect.ValueOf(tokens[0]).Convert(v.Type().Key())
	had := v.MapIndex(k)
	if !had.IsValid() && op.name != "add" {
		return errMissing
	}
	if len(tokens) == 1 && op.name == "remove" {
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

func setSlice(v reflect.Value, tokens []string, op *edit) error {
	t, last := tokens[0], len(tokens) == 1
	name, want, keyed := key(t)
	i, err := sliceIndex(v, t)
	switch {
	case op.name == "add" && (last && t == "-" || keyed && err != nil):
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
	case op.name == "add" && last && !keyed:
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
	case last && op.name == "remove":
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
