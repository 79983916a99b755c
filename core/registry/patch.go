// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
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

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/patch"
)

// patched applies the request's patch to current and returns the versioned object,
// decoded but not defaulted.
func (w *write) patched(ctx context.Context, current *object.Object) (runtime.Object, error) {
	if err := w.patch().Check(); err != nil {
		return nil, err
	}
	if w.req.PatchType == types.StrategicMergePatchType {
		return w.strategicMerge(ctx, current)
	}
	before, err := current.Encoded(object.JSON)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	after, strict, err := w.patchJSON(before)
	if err != nil {
		return nil, err
	}
	o, fieldErrs, err := w.decodeStrict(after, object.JSON)
	if err != nil {
		return nil, undecodable(after, err)
	}
	return o, w.strictness(ctx, append(strict, fieldErrs...), string(after))
}

// undecodable is the refusal of a patch whose result is no object of its kind.
func undecodable(after []byte, err error) error {
	return invalid(schema.GroupKind{}, "", field.Invalid(field.NewPath("patch"), string(after), err.Error()))
}

// isApply says whether the patch is a server-side apply.
func (w *write) isApply() bool {
	return w.req != nil && (w.req.PatchType == types.ApplyYAMLPatchType || w.req.PatchType == types.ApplyCBORPatchType)
}

// patch is the request's patch.
func (w *write) patch() patch.Patch {
	return patch.Patch{Type: w.req.PatchType, Body: w.req.Body, Fields: w.checksFields()}
}

// patchJSON applies a JSON patch or a merge patch. strict lists unknown and
// duplicate fields of the patch where they matter to the request.
func (w *write) patchJSON(before []byte) (after []byte, strict []error, err error) {
	after, strict, err = w.patch().Apply(before)
	if errors.Is(err, patch.ErrType) {
		err = apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", w.r.res.GroupResource, w.req.Name,
			string(w.req.PatchType), 0, true)
	}
	return after, strict, err
}

func (w *write) checksFields() bool {
	return w.opts.Validation == metav1.FieldValidationStrict || w.opts.Validation == metav1.FieldValidationWarn
}

// strictness turns unknown and duplicate fields into warnings or the patch's refusal.
func (w *write) strictness(ctx context.Context, errs []error, after string) error {
	if len(errs) == 0 || !w.checksFields() {
		return nil
	}
	if w.opts.Validation == metav1.FieldValidationWarn {
		warnStrict(ctx, errs)
		return nil
	}
	return invalid(schema.GroupKind{}, "", field.Invalid(field.NewPath("patch"), after, runtime.NewStrictDecodingError(errs).Error()))
}

func (w *write) strategicMerge(ctx context.Context, current *object.Object) (runtime.Object, error) {
	change := map[string]any{}
	var strict []error
	var err error
	if w.checksFields() {
		strict, err = kjson.UnmarshalStrict(w.req.Body, &change)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(w.req.Body, &change)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	versioned, err := current.Versioned()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if _, ok := versioned.(runtime.Unstructured); ok {
		return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", w.r.res.GroupResource, w.req.Name,
			"strategic merge patches are not for custom resources, use a merge patch", 0, true)
	}
	after, unknown, err := w.r.cfg.Contract.StrategicMerge(w.r.res, w.req.Version, versioned, change, w.checksFields())
	if err != nil {
		return nil, err
	}
	if strict = append(strict, unknown...); len(strict) == 0 {
		return after, nil
	}
	return after, w.strictness(ctx, strict, fmt.Sprintf("%+v", change))
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
