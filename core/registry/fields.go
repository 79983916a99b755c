// SPDX-License-Identifier: Apache-2.0

package registry

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

	"github.com/wasmplane/wasmplane/core/api/ownership"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/objectmeta"
)

// owned writes into next's managedFields who set what, by comparing it with
// current. Like upstream it does so before admission: what plugins and the server
// fill in belongs to nobody, so that a later apply neither conflicts with it nor
// takes it away.
func (w *write) owned(ctx context.Context, current *object.Object, next runtime.Object) (*object.Object, error) {
	if m, err := meta.Accessor(next); err == nil {
		if err := objectmeta.Bound(w.r.groupKind(), m, current); err != nil {
			return nil, err
		}
	}
	fm, err := w.fieldManager(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if s, ok := w.codec.(converter); ok {
		if next, err = s.AsConverted(next); err != nil {
			return nil, badObject(err)
		}
	}
	if quick, ok := fm.(creator); ok && current == nil {
		return object.FromVersioned(w.codec, quick.Create(next, w.req.Manager)), nil
	}
	was, err := w.before(current)
	if err != nil {
		return nil, err
	}
	return object.FromVersioned(w.codec, fm.UpdateNoErrors(was, next, w.req.Manager)), nil
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

func (w *write) fieldManager(ctx context.Context) (ownership.Upstream, error) {
	if custom := w.r.res.Custom; custom != nil {
		return custom.FieldManager(ctx, w.req.Version, w.req.Subresource)
	}
	return w.r.cfg.Contract.FieldManager(w.r.res, w.req.Version, w.req.Subresource)
}

// before is what the field manager compares with: current, or an empty object.
func (w *write) before(current *object.Object) (runtime.Object, error) {
	if current == nil {
		return emptyLike(w.codec)
	}
	was, err := current.Versioned()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return was, nil
}

// applied is the change of a server-side apply.
func (w *write) applied(ctx context.Context, current *object.Object) (*object.Object, error) {
	fm, err := w.fieldManager(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	was, err := w.before(current)
	if err != nil {
		return nil, err
	}
	next, err := w.applyWith(ctx, fm, was, current)
	if err != nil {
		return nil, err
	}
	if current == nil {
		m, err := meta.Accessor(next)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		if uid := m.GetUID(); uid != "" {
			return nil, w.r.reads.Conflict(w.req.Name, fmt.Sprintf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
		}
		wipe(next)
	}
	// An apply that changes nothing answers the current object's form, any other the internal one.
	versioned, err := w.codec.Versioned(next)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return object.FromVersioned(w.codec, versioned), nil
}

// applyWith merges the request's apply patch into was, which is current, or an empty
// object where there is none.
func (w *write) applyWith(ctx context.Context, fm ownership.Upstream, was runtime.Object, current *object.Object) (runtime.Object, error) {
	patch := &unstructured.Unstructured{Object: map[string]any{}}
	if err := w.unmarshal(&patch.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	if err := objectmeta.Bound(w.r.groupKind(), patch, current); err != nil { // before the field manager compares its entries
		return nil, err
	}
	next, err := fm.Apply(was, patch, w.req.Manager, w.opts.Force)
	if err != nil {
		// Unknown fields and the like come as plain errors; conflicts as API ones.
		return nil, badObject(err)
	}
	return next, w.duplicates(ctx) // after what the apply itself is refused for, as upstream
}

func (w *write) unmarshal(into *map[string]any) error {
	if w.req.PatchType == types.ApplyCBORPatchType {
		return cbor.Unmarshal(w.req.Body, into)
	}
	return yaml.Unmarshal(w.req.Body, into)
}

// duplicates reports fields that an apply patch names twice; unknown ones the
// field manager has already refused.
func (w *write) duplicates(ctx context.Context) error {
	if !w.checksFields() || w.req.PatchType == types.ApplyCBORPatchType {
		return nil
	}
	err := yaml.UnmarshalStrict(w.req.Body, &map[string]any{})
	switch {
	case err == nil:
		return nil
	case w.opts.Validation == metav1.FieldValidationStrict:
		return apierrors.NewBadRequest(fmt.Sprintf("error strict decoding patch: %v", err))
	}
	warnStrict(ctx, []error{err})
	return nil
}
