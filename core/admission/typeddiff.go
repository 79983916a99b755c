package admission

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// differ finds what differs between objects of the same Go type. Every write
// asks it, for each step that changed something, so what it has to know of a
// type it finds out once. The zero value is ready for use.
type differ struct{ shapes sync.Map } // reflect.Type to *shape

// shape is what is known of a type.
type shape struct {
	// own: the type encodes itself, so that it has no members of JSON.
	own    bool
	kind   reflect.Kind
	fields []member // of a struct
	elem   *shape   // of a pointer, slice, array or map
}

// member is an exported field of a struct.
type member struct {
	index     int
	token     string // of its JSON pointer; "" for a struct that is inlined
	omitEmpty bool
	omitZero  bool
	of        *shape
}

var selfEncoding = reflect.TypeFor[json.Marshaler]()

func (d *differ) shapeOf(t reflect.Type) *shape {
	if s, ok := d.shapes.Load(t); ok {
		return s.(*shape)
	}
	return d.learn(t, map[reflect.Type]*shape{})
}

// learn describes t and what it consists of. begun breaks the circles of types
// that contain themselves; only whole descriptions are shared.
func (d *differ) learn(t reflect.Type, begun map[reflect.Type]*shape) *shape {
	top := len(begun) == 0
	if s := begun[t]; s != nil {
		return s
	}
	s := &shape{kind: t.Kind(), own: reflect.PointerTo(t).Implements(selfEncoding)}
	begun[t] = s
	switch {
	case s.own && s.kind == reflect.Struct: // compared as a whole
	case s.kind == reflect.Struct:
		for i := range t.NumField() {
			if m, ok := memberOf(t.Field(i)); ok {
				m.index, m.of = i, d.learn(t.Field(i).Type, begun)
				s.fields = append(s.fields, m)
			}
		}
	case s.kind == reflect.Pointer, s.kind == reflect.Slice, s.kind == reflect.Array, s.kind == reflect.Map:
		s.elem = d.learn(t.Elem(), begun)
	}
	if top {
		for t, s := range begun {
			d.shapes.Store(t, s)
		}
	}
	return s
}

func memberOf(f reflect.StructField) (m member, ok bool) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch {
	case !f.IsExported() || name == "-":
		return m, false
	case name == "" && !f.Anonymous:
		name = f.Name
	}
	m.token = escape(name)
	for option := range strings.SplitSeq(options, ",") {
		m.omitEmpty = m.omitEmpty || option == "omitempty"
		m.omitZero = m.omitZero || option == "omitzero"
	}
	return m, true
}

// same says whether two values are the same in all that is exported. What one
// has from the other (a copy's strings, a map that was not touched) is compared
// by its address.
func (d *differ) same(s *shape, a, b reflect.Value) bool {
	switch s.kind {
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
		return d.same(s.elem, a.Elem(), b.Elem())
	case reflect.Struct:
		if s.own {
			return reflect.DeepEqual(a.Interface(), b.Interface())
		}
		for i := range s.fields {
			f := &s.fields[i]
			if !d.same(f.of, a.Field(f.index), b.Field(f.index)) {
				return false
			}
		}
		return true
	case reflect.Slice:
		if a.Len() != b.Len() || a.IsNil() != b.IsNil() {
			return false
		}
		if a.UnsafePointer() == b.UnsafePointer() {
			return true
		}
		for i := range a.Len() {
			if !d.same(s.elem, a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Map:
		return d.sameMap(s, a, b)
	default:
		return reflect.DeepEqual(a.Interface(), b.Interface())
	}
}

func (d *differ) sameMap(s *shape, a, b reflect.Value) bool {
	if a.Len() != b.Len() || a.IsNil() != b.IsNil() {
		return false
	}
	if a.UnsafePointer() == b.UnsafePointer() {
		return true
	}
	if x, ok := a.Interface().(map[string]string); ok { // labels and annotations: without reflection
		y := b.Interface().(map[string]string)
		for k, v := range x {
			if w, ok := y[k]; !ok || v != w {
				return false
			}
		}
		return true
	}
	for i := a.MapRange(); i.Next(); {
		other := b.MapIndex(i.Key())
		if !other.IsValid() || !d.same(s.elem, i.Value(), other) {
			return false
		}
	}
	return true
}

// changes are the operations that lead from one versioned object to the other.
func (d *differ) changes(from, to runtime.Object) []patchOp {
	if a, ok := from.(runtime.Unstructured); ok {
		b, ok := to.(runtime.Unstructured)
		if !ok {
			return []patchOp{{"replace", "", to}}
		}
		return diff(nil, "", a.UnstructuredContent(), b.UnstructuredContent())
	}
	a, b := reflect.ValueOf(from).Elem(), reflect.ValueOf(to).Elem()
	s := d.shapeOf(a.Type())
	if d.same(s, a, b) {
		return nil
	}
	return d.diff(nil, "", s, a, b)
}

// diff appends the operations that lead from one value to a different one of the
// same Go type, as diff does for their JSON trees. Only what differs becomes
// JSON: making trees of a whole pod before and after each step would cost more
// than all the steps.
func (d *differ) diff(ops []patchOp, path string, s *shape, from, to reflect.Value) []patchOp {
	switch {
	case s.own:
	case s.kind == reflect.Pointer && !from.IsNil() && !to.IsNil():
		return d.diff(ops, path, s.elem, from.Elem(), to.Elem())
	case s.kind == reflect.Struct:
		return d.structDiff(ops, path, s, from, to)
	case s.kind == reflect.Map && from.Type().Key().Kind() == reflect.String:
		return d.mapDiff(ops, path, s, from, to)
	case s.kind == reflect.Slice && s.elem.kind != reflect.Uint8:
		return d.sliceDiff(ops, path, s, from, to)
	}
	return append(ops, patchOp{"replace", path, to.Interface()})
}

func (d *differ) structDiff(ops []patchOp, path string, s *shape, from, to reflect.Value) []patchOp {
	for i := range s.fields {
		f := &s.fields[i]
		a, b := from.Field(f.index), to.Field(f.index)
		if d.same(f.of, a, b) {
			continue
		}
		if f.token == "" {
			ops = d.diff(ops, path, f.of, a, b)
			continue
		}
		at := path + "/" + f.token
		switch noA, noB := f.leftOut(a), f.leftOut(b); {
		case noA && noB:
		case noA:
			ops = append(ops, patchOp{"add", at, b.Interface()})
		case noB:
			ops = append(ops, patchOp{Op: "remove", Path: at})
		default:
			ops = d.diff(ops, at, f.of, a, b)
		}
	}
	return ops
}

// leftOut says whether encoding/json leaves the member out.
func (m *member) leftOut(v reflect.Value) bool {
	if m.omitEmpty {
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
	if !m.omitZero {
		return false
	}
	if z, ok := v.Interface().(interface{ IsZero() bool }); ok && v.Kind() != reflect.Pointer {
		return z.IsZero()
	}
	if v.CanAddr() && v.Kind() != reflect.Pointer {
		if z, ok := v.Addr().Interface().(interface{ IsZero() bool }); ok {
			return z.IsZero()
		}
	}
	return v.IsZero()
}

func (d *differ) mapDiff(ops []patchOp, path string, s *shape, from, to reflect.Value) []patchOp {
	if from.IsNil() != to.IsNil() { // null is no object
		return append(ops, patchOp{"replace", path, to.Interface()})
	}
	for _, k := range mapKeys(from) {
		if !to.MapIndex(k).IsValid() {
			ops = append(ops, patchOp{Op: "remove", Path: path + "/" + escape(k.String())})
		}
	}
	for _, k := range mapKeys(to) {
		key, was, is := path+"/"+escape(k.String()), from.MapIndex(k), to.MapIndex(k)
		switch {
		case !was.IsValid():
			ops = append(ops, patchOp{"add", key, is.Interface()})
		case !d.same(s.elem, was, is):
			ops = d.diff(ops, key, s.elem, addressable(was), addressable(is))
		}
	}
	return ops
}

func mapKeys(m reflect.Value) []reflect.Value {
	keys := m.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	return keys
}

func addressable(v reflect.Value) reflect.Value {
	a := reflect.New(v.Type()).Elem()
	a.Set(v)
	return a
}

// sliceDiff leaves equal items at both ends alone, as diffArray does.
func (d *differ) sliceDiff(ops []patchOp, path string, s *shape, from, to reflect.Value) []patchOp {
	if from.IsNil() != to.IsNil() {
		return append(ops, patchOp{"replace", path, to.Interface()})
	}
	n, m := from.Len(), to.Len()
	head := 0
	for head < n && head < m && d.same(s.elem, from.Index(head), to.Index(head)) {
		head++
	}
	tail := 0
	for tail < n-head && tail < m-head && d.same(s.elem, from.Index(n-1-tail), to.Index(m-1-tail)) {
		tail++
	}
	for i := range min(n, m) - head - tail {
		if a, b := from.Index(head+i), to.Index(head+i); !d.same(s.elem, a, b) {
			ops = d.diff(ops, path+"/"+strconv.Itoa(head+i), s.elem, a, b)
		}
	}
	for i := n - tail - 1; i >= m-tail; i-- {
		ops = append(ops, patchOp{Op: "remove", Path: path + "/" + strconv.Itoa(i)})
	}
	for i := n - tail; i < m-tail; i++ {
		ops = append(ops, patchOp{"add", path + "/" + strconv.Itoa(i), to.Index(i).Interface()})
	}
	return ops
}
