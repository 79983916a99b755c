// SPDX-License-Identifier: Apache-2.0

// Package wanted makes the object that a write wants of the current one: by the body
// of a create or an update, a patch of any type, or a server-side apply.
//
// It guarantees that what it returns is defaulted, that its managed fields say who set
// what, and that nothing of it is shared with the current object or with another
// attempt. Unknown and duplicate fields are refused, told as warnings or ignored, as
// the request's options say.
//
// A request that is over is refused between two of its steps. What it takes to decode its body or its patch, and the current object, is
// asked for from the request's account before that is done (decodedsize.Need).
//
// It reads and writes no store, and asks neither strategy nor admission.
package wanted

import (
	"context"
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/warning"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/decodedsize"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/ended"
	"github.com/wasmplane/wasmplane/core/registry/objectmeta"
	"github.com/wasmplane/wasmplane/core/registry/options"
)

// Body is what a request sends, and what it takes to read it.
type Body struct {
	Contract *api.Contract
	Resource *api.Resource
	// Codec is that of the requested version.
	Codec                      object.Codec
	Version, Subresource, Name string
	// Manager owns the fields that the write sets.
	Manager string
	Options options.Options

	// Data is undecoded, in a media type that the codec speaks. For a patch, PatchType says how to read it.
	Data      []byte
	MediaType string
	PatchType types.PatchType
}

// Decode reads the request's body and fills in defaults.
func (b *Body) Decode(ctx context.Context) (runtime.Object, error) {
	size := decodedsize.SizeBy(b.Codec, b.Data, b.MediaType)
	if err := decodedsize.NeedDecoded(ctx, decodedsize.Decoded, size, b.MediaType); err != nil {
		return nil, err
	}
	o, strict, err := b.decodeStrict(b.Data, b.MediaType)
	if err != nil {
		return nil, err
	}
	if err := ended.Check(ctx); err != nil {
		return nil, err
	}
	if len(strict) > 0 {
		if b.Options.Validation == metav1.FieldValidationStrict {
			return nil, b.Contract.StrictError(b.Resource, b.Version, strict)
		}
		warnStrict(ctx, strict)
	}
	objectmeta.UniqueOwners(ctx, o, objectmeta.DuplicateOwners)
	b.Codec.Default(o)
	return o, nil
}

// decodeStrict decodes data; strict lists unknown and duplicate fields where
// they matter to the request.
func (b *Body) decodeStrict(data []byte, mediaType string) (o runtime.Object, strict []error, err error) {
	if b.checksFields() {
		return b.Contract.DecodeStrict(b.Resource, b.Version, data, mediaType)
	}
	o, err = b.Codec.Decode(data, mediaType)
	return o, nil, err
}

// warnStrict warns of unknown and duplicate fields. What is wrong with a body in YAML comes
// in one error of several lines, of which each is a warning: none can have a line's end.
func warnStrict(ctx context.Context, errs []error) {
	for _, err := range errs {
		text := err.Error()
		for _, prefix := range []string{"yaml: unmarshal errors:\n", "error converting YAML to JSON: yaml: unmarshal errors:\n"} {
			text = strings.TrimPrefix(text, prefix)
		}
		for line := range strings.Lines(text) {
			warning.AddWarning(ctx, "", strings.TrimSpace(line))
		}
	}
}

func (b *Body) conflict(message string) error {
	return apierrors.NewConflict(b.Resource.GroupResource, b.Name, errors.New(message))
}

// groupKind is the kind that errors name.
func (b *Body) groupKind() schema.GroupKind {
	return schema.GroupKind{Group: b.Resource.Group, Kind: b.Resource.Kind}
}

// Refusal is an error about what was sent: as it is where it is one of the API already, else a bad request.
func Refusal(err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return err
	}
	return apierrors.NewBadRequest(err.Error())
}
