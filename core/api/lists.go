package api

import (
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// NewListObject builds the list kind of a version around versioned items. The
// items are copied shallowly: they stay shared with their owner.
func (c *Contract) NewListObject(r *Resource, version string, items []runtime.Object, resourceVersion, cont string, remaining *int64) (runtime.Object, error) {
	gvk := r.GVK(version).GroupVersion().WithKind(r.ListKind)
	list, err := r.scheme.New(gvk)
	if err != nil {
		return nil, fmt.Errorf("list of %s in %s: %w", r.GroupResource, version, err)
	}
	list.GetObjectKind().SetGroupVersionKind(gvk)
	v := reflect.ValueOf(list).Elem()
	v.FieldByName("ListMeta").Set(reflect.ValueOf(metav1.ListMeta{
		ResourceVersion: resourceVersion, Continue: cont, RemainingItemCount: remaining,
	}))
	slice := v.FieldByName("Items")
	slice.Set(reflect.MakeSlice(slice.Type(), len(items), len(items)))
	for i, o := range items {
		item := reflect.ValueOf(o).Elem()
		if item.Type() != slice.Type().Elem() {
			return nil, fmt.Errorf("list of %s in %s: item %d is a %T", r.GroupResource, version, i, o)
		}
		slice.Index(i).Set(item)
		// Upstream's lists leave the kind of items out.
		slice.Index(i).FieldByName("TypeMeta").SetZero()
	}
	return list, nil
}
