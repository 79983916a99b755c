// SPDX-License-Identifier: Apache-2.0

// Package jsonvalue reads Go values by the names that their JSON has, without
// encoding them: structs with JSON tags, maps, and API objects. Types that encode
// themselves are seen as what they encode to.
package jsonvalue

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Object is an API object inside a document. Decoded structs leave their kind and
// apiVersion empty; the projection writes those of GVK.
type Object struct {
	Object runtime.Object
	GVK    schema.GroupVersionKind
	// Keeper keeps the object as JSON for all who want the whole of it; nil = nobody does.
	Keeper Keeper
}

// Keeper keeps what is made of an object, once for each name, for as long as the object stays as it is.
type Keeper interface {
	Kept(name string, compute func() ([]byte, error)) ([]byte, error)
}

// KeptBy is the Object that a value is, where somebody keeps its JSON; nil = it is none, or nobody does.
func KeptBy(v reflect.Value) *Object {
	if v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if v.Kind() != reflect.Pointer || v.Type() != objectPointer || v.IsNil() {
		return nil
	}
	if o := v.Interface().(*Object); o.Keeper != nil {
		return o
	}
	return nil
}

// Get finds a field or key; ok is false where it is absent.
func Get(v reflect.Value, name string) (reflect.Value, bool) {
	var gvk *schema.GroupVersionKind
	v, gvk = Open(v)
	if !v.IsValid() {
		return v, false
	}
	switch v.Kind() {
	case reflect.Struct:
		info := InfoOf(v.Type())
		if info.Form != Plain {
			return Get(Container(v), name)
		}
		i, ok := info.ByName[name]
		if !ok {
			return v, false
		}
		return info.Fields[i].Read(v, gvk)
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String {
			return v, false
		}
		child := v.MapIndex(reflect.ValueOf(name).Convert(v.Type().Key()))
		return child, child.IsValid()
	default:
		return v, false
	}
}

// Open follows pointers and interfaces, into Objects too. Nil is the invalid value.
func Open(v reflect.Value) (reflect.Value, *schema.GroupVersionKind) {
	var gvk *schema.GroupVersionKind
	for v.IsValid() {
		switch v.Kind() {
		case reflect.Interface:
			v = v.Elem()
		case reflect.Pointer:
			switch {
			case v.IsNil():
				return reflect.Value{}, nil
			case v.Type() == unstructuredType:
				return reflect.ValueOf(v.Interface().(*unstructured.Unstructured).Object), nil
			case v.Type() == objectPointer:
				o := v.Interface().(*Object)
				gvk, v = &o.GVK, reflect.ValueOf(o.Object)
			default:
				v = v.Elem()
			}
		case reflect.Struct:
			if v.Type() != objectType {
				return v, gvk
			}
			o := v.Interface().(Object)
			gvk, v = &o.GVK, reflect.ValueOf(o.Object)
		default:
			return v, gvk
		}
	}
	return reflect.Value{}, nil
}

// Container is Open for values that paths go through: a struct with an encoding
// of its own is seen as what it encodes to.
func Container(v reflect.Value) reflect.Value {
	opened, gvk := Open(v)
	if gvk != nil {
		return v // keeps its kind
	}
	if opened.IsValid() && opened.Kind() == reflect.Struct && InfoOf(opened.Type()).Form != Plain {
		return reflect.ValueOf(Decoded(opened))
	}
	return opened
}

// Decoded is what a value's own encoding says, as plain data.
func Decoded(v reflect.Value) any {
	b, err := json.Marshal(v.Interface())
	if err != nil {
		return nil
	}
	var out any
	if json.Unmarshal(b, &out) != nil {
		return nil
	}
	return out
}

// IsArray says whether the value is an array in JSON: a list that is no text of bytes.
func IsArray(v reflect.Value) bool {
	return (v.Kind() == reflect.Slice || v.Kind() == reflect.Array) && v.Type().Elem().Kind() != reflect.Uint8
}

// IsObject says whether it is an object in JSON.
func IsObject(v reflect.Value) bool {
	v, _ = Open(v)
	return v.IsValid() && (v.Kind() == reflect.Struct || v.Kind() == reflect.Map)
}

// Form is how a struct is encoded: field by field, or by itself.
type Form uint8

// The forms.
const (
	Plain Form = iota // field by field
	Quantity
	Time
	IntOrString
	Marshaler
)

// QuantityType is the type of quantities.
var QuantityType = reflect.TypeFor[resource.Quantity]()

var (
	objectType    = reflect.TypeFor[Object]()
	objectPointer = reflect.TypeFor[*Object]()
	timeType      = reflect.TypeFor[metav1.Time]()
	intOrStrType  = reflect.TypeFor[intstr.IntOrString]()
	marshalerType = reflect.TypeFor[json.Marshaler]()

	unstructuredType = reflect.TypeFor[*unstructured.Unstructured]()
)

// TypeInfo is how a struct is encoded, by the rules of encoding/json.
type TypeInfo struct {
	Form   Form
	Fields []FieldInfo
	ByName map[string]int
}

// FieldInfo is one member of an object.
type FieldInfo struct {
	Name      string
	Index     []int
	OmitEmpty bool
	omitZero  bool
	meta      byte // 'k' kind, 'v' apiVersion of the object itself
}

// types caches TypeInfo: it is a function of the program's own types.
var types sync.Map

// InfoOf is the information about a struct type.
func InfoOf(t reflect.Type) *TypeInfo {
	if i, ok := types.Load(t); ok {
		return i.(*TypeInfo)
	}
	info := &TypeInfo{ByName: map[string]int{}}
	switch {
	case t == QuantityType:
		info.Form = Quantity
	case t == timeType:
		info.Form = Time
	case t == intOrStrType:
		info.Form = IntOrString
	case t.Implements(marshalerType) || reflect.PointerTo(t).Implements(marshalerType):
		info.Form = Marshaler
	default:
		info.collect(t, nil)
	}
	i, _ := types.LoadOrStore(t, info)
	return i.(*TypeInfo)
}

func (info *TypeInfo) collect(t reflect.Type, prefix []int) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		index := append(slices.Clone(prefix), i)
		if tag == "-" || !f.IsExported() && !f.Anonymous {
			continue
		}
		if f.Anonymous && name == "" {
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				info.collect(inner, index)
				continue
			}
		}
		if name == "" || !tagged {
			name = f.Name
		}
		fi := FieldInfo{
			Name: name, Index: index,
			OmitEmpty: strings.Contains(options, "omitempty"), omitZero: strings.Contains(options, "omitzero"),
		}
		if t == reflect.TypeFor[metav1.TypeMeta]() {
			fi.meta = map[string]byte{"kind": 'k', "apiVersion": 'v'}[name]
		}
		if _, taken := info.ByName[name]; taken {
			continue // an outer field hides an embedded one
		}
		info.ByName[name] = len(info.Fields)
		info.Fields = append(info.Fields, fi)
	}
}

// Read returns the field's value; ok is false where the encoding leaves it out.
func (f *FieldInfo) Read(v reflect.Value, gvk *schema.GroupVersionKind) (reflect.Value, bool) {
	child, err := v.FieldByIndexErr(f.Index)
	if err != nil {
		return child, false
	}
	if f.meta != 0 && gvk != nil && child.Len() == 0 {
		apiVersion, kind := gvk.ToAPIVersionAndKind()
		if f.meta == 'k' {
			child = reflect.ValueOf(kind)
		} else {
			child = reflect.ValueOf(apiVersion)
		}
	}
	if f.OmitEmpty && IsEmpty(child) || f.omitZero && isZero(child) {
		return child, false
	}
	return child, true
}

func isZero(v reflect.Value) bool {
	if z, ok := v.Interface().(interface{ IsZero() bool }); ok && (v.Kind() != reflect.Pointer || !v.IsNil()) {
		return z.IsZero()
	}
	return v.IsZero()
}

// IsEmpty says what omitempty leaves out.
func IsEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String, reflect.Array:
		return v.Len() == 0
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
		reflect.Float32, reflect.Float64, reflect.Pointer, reflect.Interface:
		return v.IsZero()
	default:
		return false
	}
}
