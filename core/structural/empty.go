// SPDX-License-Identifier: Apache-2.0

package structural

import "reflect"

// DropEmpty makes nil of every empty list and map below v. The values of maps are
// left alone: none of the API's types has lists there that may be empty.
func DropEmpty(t *Type, v reflect.Value) {
	if t.Own {
		return
	}
	switch t.Kind {
	case reflect.Struct:
		for i := range t.Members {
			m := &t.Members[i]
			DropEmpty(m.Type, v.Field(m.Index))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			DropEmpty(t.Elem, v.Elem())
		}
	case reflect.Map:
		if !v.IsNil() && v.Len() == 0 {
			v.SetZero()
		}
	case reflect.Slice:
		switch {
		case v.IsNil() || t.Elem.Kind == reflect.Uint8: // bytes are kept
		case v.Len() == 0:
			v.SetZero()
		case holdsLists(t.Elem.Kind):
			for i := range v.Len() {
				DropEmpty(t.Elem, v.Index(i))
			}
		}
	default: // has nothing below it
	}
}

func holdsLists(k reflect.Kind) bool {
	return k == reflect.Struct || k == reflect.Pointer || k == reflect.Slice || k == reflect.Map
}
