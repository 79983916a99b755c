// SPDX-License-Identifier: Apache-2.0

package ownership

import (
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// TrustingConverter does not hold Go structs against the schema that was
// generated from them. Upstream does, for both objects of every write, which
// was half of what field management cost. What validation alone can find,
// list items with the same key, it looks for only where they are refused: when
// something is applied.
type TrustingConverter struct {
	managedfields.TypeConverter
	known sync.Map // schema.GroupVersionKind to typeOf
}

type typeOf struct {
	schema *smdschema.Schema
	ref    smdschema.TypeRef
}

// ObjectToTyped implements managedfields.TypeConverter.
func (c *TrustingConverter) ObjectToTyped(o runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if _, ok := o.(*unstructured.Unstructured); ok || !allowsDuplicates(opts) {
		return c.TypeConverter.ObjectToTyped(o, opts...)
	}
	gvk := o.GetObjectKind().GroupVersionKind()
	t, err := c.typeOf(gvk, o, opts)
	if err != nil {
		return nil, err
	}
	v, err := value.NewValueReflect(o)
	if err != nil {
		return nil, err
	}
	// It is deprecated because validation has become cheap upstream; it is half of the cost still.
	return typed.AsTypedUnvalidated(v, t.schema, t.ref), nil //nolint:staticcheck // see above
}

func allowsDuplicates(opts []typed.ValidationOptions) bool {
	return len(opts) == 1 && opts[0] == typed.AllowDuplicates
}

// typeOf learns a kind's place in the schema from the first object of it.
func (c *TrustingConverter) typeOf(gvk schema.GroupVersionKind, o runtime.Object, opts []typed.ValidationOptions) (typeOf, error) {
	if t, ok := c.known.Load(gvk); ok {
		return t.(typeOf), nil
	}
	first, err := c.TypeConverter.ObjectToTyped(o, opts...)
	if err != nil {
		return typeOf{}, err
	}
	t := typeOf{schema: first.Schema(), ref: first.TypeRef()}
	c.known.Store(gvk, t)
	return t, nil
}
