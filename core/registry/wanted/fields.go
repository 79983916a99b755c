// SPDX-License-Identifier: Apache-2.0

package wanted

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/wasmplane/wasmplane/core/api/decodedsize"
	"github.com/wasmplane/wasmplane/core/api/ownership"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/ended"
	"github.com/wasmplane/wasmplane/core/registry/objectmeta"
)

// Owned writes into next's managedFields who set what, by comparing it with
// current. Like upstream it does so before admission: what plugins and the server
// fill in belongs to nobody, so that a later apply neither conflicts with it nor
// takes it away. What makes an object (current is nil) does not set what the system sets.
func (b *Body) Owned(ctx context.Context, current *object.Object, next runtime.Object) (*object.Object, error) {
	if err := ended.Check(ctx); err != nil {
		return nil, err
	}
	if current != nil {
		if err := decodedsize.NeedDecoded(ctx, decodedsize.Current, decodedsize.OfObject(current), object.Protobuf); err != nil {
			return nil, err
		}
	}
	if m, err := meta.Accessor(next); err == nil {
		if current == nil {
			rest.WipeObjectMetaSystemFields(m)
		}
		if err := objectmeta.Bound(b.groupKind(), m, current); err != nil {
			return nil, err
		}
	}
	fm, err := b.fieldManager(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if s, ok := b.Codec.(converter); ok {
		if next, err = s.AsConverted(next); err != nil {
			return nil, Refusal(err)
		}
	}
	if quick, ok := fm.(creator); ok && current == nil {
		return object.FromVersioned(b.Codec, quick.Create(next, b.Manager)), nil
	}
	was, err := b.before(current)
	if err != nil {
		return nil, err
	}
	return object.FromVersioned(b.Codec, fm.UpdateNoErrors(was, next, b.Manager)), nil
}

// converter is an optional power of a codec whose conversion may change what a
// client wrote: AsConverted returns the object as it will be.
type converter interface {
	AsConverted(o runtime.Object) (runtime.Object, error)
}

// creator is an optional power of a field manager: what it says of an object that
// did not exist, it may know without comparing it with nothing.
type creator interface {
	Create(next runtime.Object, manager string) runtime.Object
}

func (b *Body) fieldManager(ctx context.Context) (ownership.Upstream, error) {
	if custom := b.Resource.Custom; custom != nil {
		return custom.FieldManager(ctx, b.Version, b.Subresource)
	}
	return b.Contract.FieldManager(b.Resource, b.Version, b.Subresource)
}

// before is what the field manager compares with: current, or an empty object.
func (b *Body) before(current *object.Object) (runtime.Object, error) {
	if current == nil {
		return emptyLike(b.Codec)
	}
	was, err := current.Versioned()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return was, nil
}

// applied is the change of a server-side apply.
func (b *Body) applied(ctx context.Context, current *object.Object) (*object.Object, error) {
	fm, err := b.fieldManager(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	was, err := b.before(current)
	if err != nil {
		return nil, err
	}
	next, err := b.applyWith(ctx, fm, was, current)
	if err != nil {
		return nil, err
	}
	if err := ended.Check(ctx); err != nil {
		return nil, err
	}
	if current == nil {
		m, err := meta.Accessor(next)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		if uid := m.GetUID(); uid != "" {
			return nil, b.conflict(fmt.Sprintf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
		}
		rest.WipeObjectMetaSystemFields(m)
	}
	// An apply that changes nothing answers the current object's form, any other the internal one.
	versioned, err := b.Codec.Versioned(next)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return object.FromVersioned(b.Codec, versioned), nil
}

// applyWith merges the request's apply patch into was, which is current, or an empty
// object where there is none.
func (b *Body) applyWith(ctx context.Context, fm ownership.Upstream, was runtime.Object, current *object.Object) (runtime.Object, error) {
	patch := &unstructured.Unstructured{Object: map[string]any{}}
	if err := b.unmarshal(&patch.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	if err := objectmeta.Bound(b.groupKind(), patch, current); err != nil { // before the field manager compares its entries
		return nil, err
	}
	if c, ok := b.Codec.(bounding); ok {
		if err := c.BoundTree(patch.Object); err != nil {
			return nil, err
		}
	}
	if err := ended.Check(ctx); err != nil {
		return nil, err
	}
	next, err := fm.Apply(was, patch, b.Manager, b.Options.Force)
	if err != nil {
		// Unknown fields and the like come as plain errors; conflicts as API ones.
		return nil, Refusal(err)
	}
	return next, b.duplicates(ctx) // after what the apply itself is refused for, as upstream
}

func (b *Body) unmarshal(into *map[string]any) error {
	if b.PatchType == types.ApplyCBORPatchType {
		return cbor.Unmarshal(b.Data, into)
	}
	return yaml.Unmarshal(b.Data, into)
}

// duplicates reports fields that an apply patch names twice; unknown ones the
// field manager has already refused.
func (b *Body) duplicates(ctx context.Context) error {
	if !b.checksFields() || b.PatchType == types.ApplyCBORPatchType {
		return nil
	}
	err := yaml.UnmarshalStrict(b.Data, &map[string]any{})
	switch {
	case err == nil:
		return nil
	case b.Options.Validation == metav1.FieldValidationStrict:
		return apierrors.NewBadRequest(fmt.Sprintf("error strict decoding patch: %v", err))
	}
	warnStrict(ctx, []error{err})
	return nil
}
