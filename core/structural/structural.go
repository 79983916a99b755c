// SPDX-License-Identifier: Apache-2.0

// Package structural knows the Go types of API objects by their structure: which
// members they have in JSON, and whether two values of them are the same. It finds
// out once about each type, and compares without allocating, so that questions
// which every write asks of whole objects (what did this step change, what may be
// left out of a comparison) cost microseconds.
//
// It compares what is exported. Two values that it calls the same are the same in
// every encoding.
package structural

import (
	"encoding/json"
	"reflect"
	"strings"
	"sync"
)

// Types remembers types. The zero value is ready for use, also by several
// goroutines at once.
type Types struct{ known sync.Map } // reflect.Type to *Type

// Type is what is known of a Go type. It is never changed.
type Type struct {
	Kind reflect.Kind
	// Own: the type encodes itself, so that its JSON has nothing to do with its
	// members, if it has any. A struct of such a type has none here.
	Own     bool
	Members []Member // of a struct
	Elem    *Type    // of a pointer, slice, array or map
}

// Member is an exported field of a struct.
type Member struct {
	Index     int    // for reflect.Value.Field
	Name      string // in JSON; "" where the member's own members stand in its place
	OmitEmpty bool
	OmitZero  bool
	Type      *Type
}

var selfEncoding = reflect.TypeFor[json.Marshaler]()

// Of describes a type.
func (k *Types) Of(t reflect.Type) *Type {
	if s, ok := k.known.Load(t); ok {
		return s.(*Type)
	}
	begun := map[reflect.Type]*Type{}
	s := learn(t, begun)
	for t, s := range begun { // only whole descriptions are shared
		k.known.Store(t, s)
	}
	return s
}

// learn describes t and what it consists of. begun breaks the circles of types
// that contain themselves.
func learn(t reflect.Type, begun map[reflect.Type]*Type) *Type {
	if s := begun[t]; s != nil {
		return s
	}
	s := &Type{Kind: t.Kind(), Own: reflect.PointerTo(t).Implements(selfEncoding)}
	begun[t] = s
	switch {
	case s.Own && s.Kind == reflect.Struct: // compared as a whole
	case s.Kind == reflect.Struct:
		for i := range t.NumField() {
			if m, ok := memberOf(t.Field(i)); ok {
				m.Index, m.Type = i, learn(t.Field(i).Type, begun)
				s.Members = append(s.Members, m)
			}
		}
	case s.Kind == reflect.Pointer, s.Kind == reflect.Slice, s.Kind == reflect.Array, s.Kind == reflect.Map:
		s.Elem = learn(t.Elem(), begun)
	}
	return s
}

func memberOf(f reflect.StructField) (m Member, ok bool) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch {
	case !f.IsExported() || name == "-":
		return m, false
	case name == "" && !f.Anonymous && !strings.Contains(options, "inline"):
		name = f.Name
	}
	m.Name = name
	for option := range strings.SplitSeq(options, ",") {
		m.OmitEmpty = m.OmitEmpty || option == "omitempty"
		m.OmitZero = m.OmitZero || option == "omitzero"
	}
	return m, true
}

// LeftOut says whether encoding/json leaves the member out, where v is its value.
func (m *Member) LeftOut(v reflect.Value) bool {
	if m.OmitEmpty {
		switch v.Kind() {
		case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
			if v.Len() == 0 {
				return true
			}
		case reflect.Struct: // never empty
		default:
			if v.IsZero() {
				return true
			}
		}
	}
	if !m.OmitZero {
		return false
	}
	if v.Kind() == reflect.Pointer {
		return v.IsNil()
	}
	if z, ok := v.Interface().(interface{ IsZero() bool }); ok {
		return z.IsZero()
	}
	if v.CanAddr() {
		if z, ok := v.Addr().Interface().(interface{ IsZero() bool }); ok {
			return z.IsZero()
		}
	}
	return v.IsZero()
}

// Same says whether two values of the type are the same in all that is exported.
// What one has from the other (a copy's strings, a map that was not touched) is
// compared by its address.
func (s *Type) Same(a, b reflect.Value) bool {
	switch s.Kind {
	case reflect.Bool:
		return a.Bool() == b.Bool()
	case reflect.String:
		return a.String() == b.String()
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return a.Int() == b.Int()
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return a.Uint() == b.Uint()
	case reflect.Pointer:
		if a.UnsafePointer() == b.UnsafePointer() || a.IsNil() || b.IsNil() {
			return a.UnsafePointer() == b.UnsafePointer()
		}
		return s.Elem.Same(a.Elem(), b.Elem())
	case reflect.Struct:
		return s.sameStruct(a, b)
	case reflect.Slice:
		return s.sameSlice(a, b)
	case reflect.Map:
		return s.sameMap(a, b)
	default:
		return reflect.DeepEqual(a.Interface(), b.Interface())
	}
}

func (s *Type) sameStruct(a, b reflect.Value) bool {
	if s.Own {
		return reflect.DeepEqual(a.Interface(), b.Interface())
	}
	for i := range s.Members {
		m := &s.Members[i]
		if !m.Type.Same(a.Field(m.Index), b.Field(m.Index)) {
			return false
		}
	}
	return true
}

func (s *Type) sameSlice(a, b reflect.Value) bool {
	if a.Len() != b.Len() || a.IsNil() != b.IsNil() {
		return false
	}
	if a.UnsafePointer() == b.UnsafePointer() {
		return true
	}
	for i := range a.Len() {
		if !s.Elem.Same(a.Index(i), b.Index(i)) {
			return false
		}
	}
	return true
}

func (s *Type) sameMap(a, b reflect.Value) bool {
	if a.Len() != b.Len() || a.IsNil() != b.IsNil() {
		return false
	}
	if a.UnsafePointer() == b.UnsafePointer() {
		return true
	}
	if x, ok := a.Interface().(map[string]string); ok { // labels and annotations: without reflection
		y, _ := b.Interface().(map[string]string)
		for k, v := range x {
			if w, ok := y[k]; !ok || v != w {
				return false
			}
		}
		return true
	}
	for i := a.MapRange(); i.Next(); {
		other := b.MapIndex(i.Key())
		if !other.IsValid() || !s.Elem.Same(i.Value(), other) {
			return false
		}
	}
	return true
}
