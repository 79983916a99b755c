// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/object"
)

// Convert is an object of the cache, or of a write, in a served version. It is shared.
func (r *Reader) Convert(ctx context.Context, o *object.Object, version string) (*object.Object, error) {
	if r.res.Custom != nil {
		all, err := r.converted(ctx, []*object.Object{o}, version)
		if err != nil {
			return nil, err
		}
		return all[0], nil
	}
	codec := r.res.Codec(version)
	if codec == nil {
		return nil, apierrors.NewNotFound(r.res.GroupResource, "")
	}
	if o.Kind() == codec.Kind() {
		return o, nil
	}
	if o.PackedSize() < worthKeeping {
		return inVersion(o, codec)
	}
	if view := o.View(codec); view != nil {
		return view, nil
	}
	// All who read the object at this moment wait for one of them: the watches of a change come here together.
	view, err, _ := r.views.Do(fmt.Sprintf("%p %s", o, version), func() (any, error) {
		if view := o.View(codec); view != nil {
			return view, nil
		}
		view, err := inVersion(o, codec)
		if err != nil {
			return nil, err
		}
		return view, o.KeepView(r, codec, view)
	})
	if err != nil {
		return nil, err
	}
	kept, ok := view.(*object.Object)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("a %T is no object", view))
	}
	return kept, nil
}

// worthKeeping is from how many bytes on an object of the store is kept in another version with it, in the bytes that clients in the
// process read. Definitions of custom resources, which are stored in an old version, are converted schema by schema: one of 25,000
// fields was converted and encoded by each of its readers, half a dozen for each change. Small objects are converted sooner than kept.
const worthKeeping = 16 << 10

// inVersion is an object in another version.
func inVersion(o *object.Object, codec object.Codec) (*object.Object, error) {
	internal, err := Internal(o)
	if err != nil {
		return nil, err
	}
	versioned, err := codec.Versioned(internal)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return object.FromStored(codec, versioned, object.Protobuf), nil
}

// converted are custom resources in a version, converted together.
func (r *Reader) converted(ctx context.Context, objects []*object.Object, version string) ([]*object.Object, error) {
	out, err := r.res.Custom.Convert(ctx, objects, version)
	var status apierrors.APIStatus
	if err != nil && !errors.As(err, &status) {
		return nil, apierrors.NewInternalError(err)
	}
	return out, err
}

// Internal is the internal form of an object of the watch cache, which shares
// its memory. It is made anew each time: kept, it would double what the cache holds.
func Internal(o *object.Object) (runtime.Object, error) {
	versioned, err := o.Versioned()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	internal, err := o.Codec().Internal(versioned)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return internal, nil
}
