package admission

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// typedDiff appends the operations that lead from one object to another of the
// same Go type, as diff does for their JSON trees. Only what differs becomes
// JSON: making trees of a whole pod before and after each step would cost more
// than all the steps. Both values are addressable.
func typedDiff(ops []patchOp, path string, from, to reflect.Value) []patchOp {
	if same(from, to) {
		return ops
	}
	if _, own := to.Addr().Interface().(json.Marshaler); own {
		return append(ops, patchOp{"replace", path, to.Interface()})
	}
	switch from.Kind() {
	case reflect.Pointer:
		if !from.IsNil() && !to.IsNil() {
			return typedDiff(ops, path, from.Elem(), to.Elem())
		}
	case reflect.Struct:
		return structDiff(ops, path, from, to)
	case reflect.Map:
		if from.Type().Key().Kind() == reflect.String {
			return mapDiff(ops, path, from, to)
		}
	case reflect.Slice:
		if from.Type().Elem().Kind() != reflect.Uint8 {
			return sliceDiff(ops, path, from, to)
		}
	}
	return append(ops, patchOp{"replace", path, to.Interface()})
}

func same(a, b reflect.Value) bool {
	return reflect.DeepEqual(a.Addr().Interface(), b.Addr().Interface())
}

func structDiff(ops []patchOp, path string, from, to reflect.Value) []patchOp {
	for i := range from.NumField() {
		a, b := from.Field(i), to.Field(i)
		field := from.Type().Field(i)
		if !field.IsExported() || same(a, b) {
			continue
		}
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-":
			continue
		case name == "" && field.Anonymous:
			ops = typedDiff(ops, path, a, b)
			continue
		case name == "":
			name = field.Name
		}
		ops = memberDiff(ops, path+"/"+escape(name), a, b, leftOut(options, a), leftOut(options, b))
	}
	return ops
}

// memberDiff is of a member that JSON may leave out on either side.
func memberDiff(ops []patchOp, path string, a, b reflect.Value, noA, noB bool) []patchOp {
	switch {
	case noA && noB:
		return ops
	case noA:
		return append(ops, patchOp{"add", path, b.Interface()})
	case noB:
		return append(ops, patchOp{Op: "remove", Path: path})
	}
	return typedDiff(ops, path, a, b)
}

// leftOut says whether encoding/json leaves a field with these options out.
func leftOut(options string, v reflect.Value) bool {
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "omitempty":
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
		case "omitzero":
			if z, ok := v.Addr().Interface().(interface{ IsZero() bool }); ok && v.Kind() != reflect.Pointer {
				return z.IsZero()
			}
			if v.IsZero() {
				return true
			}
		}
	}
	return false
}

func mapDiff(ops []patchOp, path string, from, to reflect.Value) []patchOp {
	if from.IsNil() != to.IsNil() { // null is no object
		return append(ops, patchOp{"replace", path, to.Interface()})
	}
	for _, k := range mapKeys(from) {
		if !to.MapIndex(k).IsValid() {
			ops = append(ops, patchOp{Op: "remove", Path: path + "/" + escape(k.String())})
		}
	}
	for _, k := range mapKeys(to) {
		key := path + "/" + escape(k.String())
		if was := from.MapIndex(k); was.IsValid() {
			ops = typedDiff(ops, key, addressable(was), addressable(to.MapIndex(k)))
		} else {
			ops = append(ops, patchOp{"add", key, to.MapIndex(k).Interface()})
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
func sliceDiff(ops []patchOp, path string, from, to reflect.Value) []patchOp {
	if from.IsNil() != to.IsNil() {
		return append(ops, patchOp{"replace", path, to.Interface()})
	}
	n, m := from.Len(), to.Len()
	head := 0
	for head < n && head < m && same(from.Index(head), to.Index(head)) {
		head++
	}
	tail := 0
	for tail < n-head && tail < m-head && same(from.Index(n-1-tail), to.Index(m-1-tail)) {
		tail++
	}
	for i := range min(n, m) - head - tail {
		ops = typedDiff(ops, path+"/"+strconv.Itoa(head+i), from.Index(head+i), to.Index(head+i))
	}
	for i := n - tail - 1; i >= m-tail; i-- {
		ops = append(ops, patchOp{Op: "remove", Path: path + "/" + strconv.Itoa(i)})
	}
	for i := n - tail; i < m-tail; i++ {
		ops = append(ops, patchOp{"add", path + "/" + strconv.Itoa(i), to.Index(i).Interface()})
	}
	return ops
}
