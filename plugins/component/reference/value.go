// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/wasmplane/wasmplane/plugins/component/canon"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
)

// typed is a value as the scripts write it.
type typed struct {
	Type  string
	Value json.RawMessage
}

// value makes of it what the canonical ABI takes for a type.
func (v *typed) value(t *ctype.Type) (any, error) {
	switch t.Kind {
	case ctype.Bool:
		return string(v.Value) == "true", nil
	case ctype.String, ctype.Char:
		var s string
		err := json.Unmarshal(v.Value, &s)
		if t.Kind == ctype.Char {
			r, _ := utf8.DecodeRuneInString(s)
			return r, err
		}
		return s, err
	case ctype.List, ctype.Tuple, ctype.FixedList, ctype.Map:
		return v.list(t)
	case ctype.Record:
		return v.record(t)
	case ctype.Variant, ctype.Enum, ctype.Option, ctype.Result:
		return v.variant(t)
	case ctype.Flags:
		return v.flags(t)
	default:
	}
	return v.number(t)
}

func (v *typed) number(t *ctype.Type) (any, error) {
	var s string
	if err := json.Unmarshal(v.Value, &s); err != nil {
		return nil, err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		var u uint64
		if u, err = strconv.ParseUint(s, 10, 64); err != nil {
			return nil, err
		}
		n = int64(u)
	}
	switch t.Kind {
	case ctype.S8:
		return int8(n), nil
	case ctype.U8:
		return uint8(n), nil
	case ctype.S16:
		return int16(n), nil
	case ctype.U16:
		return uint16(n), nil
	case ctype.S32:
		return int32(n), nil
	case ctype.U32:
		return uint32(n), nil
	case ctype.S64:
		return n, nil
	case ctype.U64:
		return uint64(n), nil
	case ctype.F32:
		return math.Float32frombits(uint32(n)), nil
	case ctype.F64:
		return math.Float64frombits(uint64(n)), nil
	default:
	}
	return nil, fmt.Errorf("a %s of %s", t, v.Type)
}

func (v *typed) list(t *ctype.Type) (any, error) {
	var all []typed
	if err := json.Unmarshal(v.Value, &all); err != nil {
		return nil, err
	}
	out := make([]any, 0, len(all))
	var bytes []byte
	for i := range all {
		of := t.Elem
		if t.Kind == ctype.Tuple {
			of = t.Fields[i].Type
		}
		e, err := all[i].value(of)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
		if b, ok := e.(uint8); ok {
			bytes = append(bytes, b)
		}
	}
	if t.Elem != nil && t.Elem.Kind == ctype.U8 {
		return bytes, nil
	}
	return out, nil
}

func (v *typed) record(t *ctype.Type) (any, error) {
	var all [][2]json.RawMessage
	if err := json.Unmarshal(v.Value, &all); err != nil {
		return nil, err
	}
	out := make([]any, len(all))
	for i := range all {
		var f typed
		if err := json.Unmarshal(all[i][1], &f); err != nil {
			return nil, err
		}
		var err error
		if out[i], err = f.value(t.Fields[i].Type); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (v *typed) flags(t *ctype.Type) (any, error) {
	var set []string
	if err := json.Unmarshal(v.Value, &set); err != nil {
		return nil, err
	}
	var out canon.Flags
	for _, s := range set {
		for i, l := range t.Labels {
			if l == s {
				out |= 1 << i
			}
		}
	}
	return out, nil
}

func (v *typed) variant(t *ctype.Type) (any, error) {
	name, payload, err := v.chosen(t)
	if err != nil {
		return nil, err
	}
	for i, c := range t.Cases {
		if c.Name != name {
			continue
		}
		out := canon.Variant{Case: uint32(i)}
		if c.Type != nil && payload != nil {
			out.Value, err = payload.value(c.Type)
		}
		return out, err
	}
	return nil, fmt.Errorf("no case %q in %s", name, t)
}

// chosen is the case, with its payload.
func (v *typed) chosen(t *ctype.Type) (name string, payload *typed, err error) {
	null := len(v.Value) == 0 || string(v.Value) == "null"
	switch {
	case t.Kind == ctype.Option && null:
		return "none", nil, nil
	case t.Kind == ctype.Option:
		err = json.Unmarshal(v.Value, &payload)
		return "some", payload, err
	case t.Kind == ctype.Result:
		var r struct{ Ok, Err *typed }
		if err := json.Unmarshal(v.Value, &r); err != nil {
			return "", nil, err
		}
		var keys map[string]json.RawMessage
		if err := json.Unmarshal(v.Value, &keys); err != nil {
			return "", nil, err
		}
		if _, failed := keys["Err"]; failed {
			return "error", r.Err, nil
		}
		return "ok", r.Ok, nil
	case t.Kind == ctype.Enum:
		err = json.Unmarshal(v.Value, &name)
		return name, nil, err
	}
	var c struct {
		Case    string
		Payload *typed
	}
	err = json.Unmarshal(v.Value, &c)
	return c.Case, c.Payload, err
}
