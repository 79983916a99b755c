// SPDX-License-Identifier: Apache-2.0

package wanted

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/wasmplane/wasmplane/core/api/decodedsize"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/ended"
	"github.com/wasmplane/wasmplane/core/registry/objectmeta"
	"github.com/wasmplane/wasmplane/core/registry/patch"
)

// Patch is the current object (nil: there is none) as the request's patch changes it.
func (b *Body) Patch(ctx context.Context, current *object.Object) (*object.Object, error) {
	mediaType := b.patchMediaType()
	if err := b.bound(mediaType); err != nil {
		return nil, err
	}
	if err := b.needMerge(ctx, current, mediaType); err != nil {
		return nil, err
	}
	if b.IsApply() {
		return b.applied(ctx, current)
	}
	next, err := b.patched(ctx, current)
	if err != nil {
		return nil, err
	}
	if err := ended.Check(ctx); err != nil {
		return nil, err
	}
	objectmeta.UniqueOwners(ctx, next, objectmeta.DuplicateOwners)
	b.Codec.Default(next)
	return b.Owned(ctx, current, next)
}

// patched applies the request's patch to current and returns the versioned object,
// decoded but not defaulted.
func (b *Body) patched(ctx context.Context, current *object.Object) (runtime.Object, error) {
	if err := b.patch().Check(); err != nil {
		return nil, err
	}
	if b.PatchType == types.StrategicMergePatchType {
		return b.strategicMerge(ctx, current)
	}
	before, err := current.Encoded(object.JSON)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if err := ended.Check(ctx); err != nil {
		return nil, err
	}
	after, strict, err := b.patchJSON(before)
	if err != nil {
		return nil, err
	}
	if err := ended.Check(ctx); err != nil {
		return nil, err
	}
	if err := decodedsize.NeedDecoded(ctx, decodedsize.Result, decodedsize.SizeBy(b.Codec, after, object.JSON), object.JSON); err != nil {
		return nil, err
	}
	o, fieldErrs, err := b.decodeStrict(after, object.JSON)
	if err != nil {
		return nil, undecodable(after, err)
	}
	return o, b.strictness(ctx, append(strict, fieldErrs...), string(after))
}

// undecodable is the refusal of a patch whose result is no object of its kind.
func undecodable(after []byte, err error) error {
	if apierrors.IsRequestEntityTooLargeError(err) {
		return err // and nothing of what is too large in its text
	}
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), string(after), err.Error())})
}

// IsApply says whether the patch is a server-side apply.
func (b *Body) IsApply() bool {
	return b.PatchType == types.ApplyYAMLPatchType || b.PatchType == types.ApplyCBORPatchType
}

// patch is the request's patch.
func (b *Body) patch() patch.Patch {
	return patch.Patch{Type: b.PatchType, Body: b.Data, Fields: b.checksFields()}
}

// patchJSON applies a JSON patch or a merge patch. strict lists unknown and
// duplicate fields of the patch where they matter to the request.
func (b *Body) patchJSON(before []byte) (after []byte, strict []error, err error) {
	after, strict, err = b.patch().Apply(before)
	if errors.Is(err, patch.ErrType) {
		err = apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", b.Resource.GroupResource, b.Name,
			string(b.PatchType), 0, true)
	}
	return after, strict, err
}

func (b *Body) checksFields() bool {
	return b.Options.Validation == metav1.FieldValidationStrict || b.Options.Validation == metav1.FieldValidationWarn
}

// strictness turns unknown and duplicate fields into warnings or the patch's refusal.
func (b *Body) strictness(ctx context.Context, errs []error, after string) error {
	if len(errs) == 0 || !b.checksFields() {
		return nil
	}
	if b.Options.Validation == metav1.FieldValidationWarn {
		warnStrict(ctx, errs)
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), after, runtime.NewStrictDecodingError(errs).Error()),
	})
}

func (b *Body) strategicMerge(ctx context.Context, current *object.Object) (runtime.Object, error) {
	change := map[string]any{}
	var strict []error
	var err error
	if b.checksFields() {
		strict, err = kjson.UnmarshalStrict(b.Data, &change)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(b.Data, &change)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	versioned, err := current.Versioned()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if _, ok := versioned.(runtime.Unstructured); ok {
		return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", b.Resource.GroupResource, b.Name,
			"strategic merge patches are not for custom resources, use a merge patch", 0, true)
	}
	if err := ended.Check(ctx); err != nil {
		return nil, err
	}
	after, unknown, err := b.Contract.StrategicMerge(b.Resource, b.Version, versioned, change, b.checksFields())
	if err != nil {
		return nil, err
	}
	if strict = append(strict, unknown...); len(strict) == 0 {
		return after, nil
	}
	return after, b.strictness(ctx, strict, fmt.Sprintf("%+v", change))
}

// bounding is an optional power of a codec: it refuses what would take more than an object may once it is decoded.
type bounding interface {
	Bound(data []byte, mediaType string) error
	BoundTree(tree map[string]any) error
}

// bound refuses a patch that has the shape of an object and is too large for one, before it is decoded and merged.
func (b *Body) bound(mediaType string) error {
	c, ok := b.Codec.(bounding)
	if !ok || b.PatchType == types.JSONPatchType || mediaType != object.JSON {
		return nil // an apply is looked at as a tree once more, and what comes of a JSON patch when it is decoded
	}
	return c.Bound(b.Data, mediaType)
}

// patchMediaType is what the patch is written in. Most applies that are sent as YAML are JSON.
func (b *Body) patchMediaType() string {
	switch {
	case b.PatchType == types.ApplyCBORPatchType:
		return object.CBOR
	case b.PatchType == types.ApplyYAMLPatchType && !json.Valid(b.Data):
		return object.YAML
	}
	return object.JSON
}

// needPatch asks for what it takes to decode the patch.
func (b *Body) needPatch(ctx context.Context, mediaType string) error {
	return decodedsize.NeedDecoded(ctx, decodedsize.Decoded, decodedsize.TreeSize(b.Data, mediaType), mediaType)
}

// needMerge asks for what it takes to decode the patch and current, and for what is made of the two where they are merged as trees. What
// comes of the other patches is a text, whose size is known before it is decoded.
func (b *Body) needMerge(ctx context.Context, current *object.Object, mediaType string) error {
	if err := b.needPatch(ctx, mediaType); err != nil || current == nil {
		return err
	}
	size := decodedsize.OfObject(current)
	if err := decodedsize.NeedDecoded(ctx, decodedsize.Current, size, object.Protobuf); err != nil {
		return err
	}
	if b.IsApply() || b.PatchType == types.StrategicMergePatchType {
		return decodedsize.Need(ctx, decodedsize.Result, size+decodedsize.SizeBy(b.Codec, b.Data, mediaType))
	}
	return nil
}

// emptyLike is an empty versioned object of the codec's kind.
func emptyLike(c object.Codec) (runtime.Object, error) {
	apiVersion, kind := c.Kind().ToAPIVersionAndKind()
	o, err := c.FromTree(map[string]any{"apiVersion": apiVersion, "kind": kind})
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return o, nil
}
