// SPDX-License-Identifier: Apache-2.0

package object

import (
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Named returns the versioned form with its kind set, as CEL, plugins and webhooks
// read it: built-in kinds are decoded without theirs.
func (o *Object) Named() (runtime.Object, error) {
	v, err := o.Versioned()
	if err != nil {
		return nil, err
	}
	return Named(v, o.Kind()), nil
}

// Named is o with its kind set, in a shallow copy where it has another one or
// none: others may be reading o.
func Named(o runtime.Object, kind schema.GroupVersionKind) runtime.Object {
	v := reflect.ValueOf(o)
	if o.GetObjectKind().GroupVersionKind() == kind || v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return o
	}
	if _, ok := o.(runtime.Unstructured); ok {
		return o
	}
	shallow := reflect.New(v.Elem().Type())
	shallow.Elem().Set(v.Elem())
	named, ok := shallow.Interface().(runtime.Object)
	if !ok {
		return o // a copy has the methods of what was copied
	}
	named.GetObjectKind().SetGroupVersionKind(kind)
	return named
}
