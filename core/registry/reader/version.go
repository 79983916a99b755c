// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"errors"

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
	internal, err := Internal(o)
	if err != nil {
		return nil, err
	}
	versioned, err := codec.Versioned(internal)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return object.FromVersioned(codec, versioned), nil
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
