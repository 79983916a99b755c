// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/structural"
)

// differ finds what differs between objects of the same Go type. The zero value
// is ready for use.
type differ struct{ types structural.Types }

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
	return d.diff(nil, "", d.types.Of(a.Type()), a, b)
}

// diff appends the operations that lead from one value to a different one of the
// same Go type, as diff does for their JSON trees. Only what differs becomes
// JSON: making trees of a whole pod before and after each step would cost more
// than all the steps.
func (d *differ) diff(ops []patchOp, path string, s *structural.Type, from, to reflect.Value) []patchOp {
	switch {
	case s.Own:
	case s.Kind == reflect.Pointer && !from.IsNil() && !to.IsNil():
		return d.diff(ops, path, s.Elem, from.Elem(), to.Elem())
	case s.Kind == reflect.Struct:
		return d.structDiff(ops, path, s, from, to)
	case s.Kind == reflect.Map && from.Type().Key().Kind() == reflect.String:
		return d.mapDiff(ops, path, s, from, to)
	case s.Kind == reflect.Slice && s.Elem.Kind != reflect.Uint8:
		return d.sliceDiff(ops, path, s, from, to)
	}
	return append(ops, patchOp{"replace", path, to.Interface()})
}

func (d *differ) structDiff(ops []patchOp, path string, s *structural.Type, from, to reflect.Value) []patchOp {
	for i := range s.Members {
		m := &s.Members[i]
		a, b := from.Field(m.Index), to.Field(m.Index)
		if m.Type.Same(a, b) {
			continue
		}
		if m.Name == "" {
			ops = d.diff(ops, path, m.Type, a, b)
			continue
		}
		at := path + "/" + escape(m.Name)
		switch noA, noB := m.LeftOut(a), m.LeftOut(b); {
		case noA && noB:
		case noA:
			ops = append(ops, patchOp{"add", at, b.Interface()})
		case noB:
			ops = append(ops, patchOp{Op: "remove", Path: at})
		default:
			ops = d.diff(ops, at, m.Type, a, b)
		}
	}
	return ops
}

func (d *differ) mapDiff(ops []patchOp, path string, s *structural.Type, from, to reflect.Value) []patchOp {
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
		case !s.Elem.Same(was, is):
			ops = d.diff(ops, key, s.Elem, addressable(was), addressable(is))
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
func (d *differ) sliceDiff(ops []patchOp, path string, s *structural.Type, from, to reflect.Value) []patchOp {
	if from.IsNil() != to.IsNil() {
		return append(ops, patchOp{"replace", path, to.Interface()})
	}
	n, m := from.Len(), to.Len()
	head := 0
	for head < n && head < m && s.Elem.Same(from.Index(head), to.Index(head)) {
		head++
	}
	tail := 0
	for tail < n-head && tail < m-head && s.Elem.Same(from.Index(n-1-tail), to.Index(m-1-tail)) {
		tail++
	}
	for i := range min(n, m) - head - tail {
		if a, b := from.Index(head+i), to.Index(head+i); !s.Elem.Same(a, b) {
			ops = d.diff(ops, path+"/"+strconv.Itoa(head+i), s.Elem, a, b)
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
