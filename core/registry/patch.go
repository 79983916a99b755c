// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/wasmplane/wasmplane/core/object"
)

// maxPatchOperations is upstream's bound on a JSON patch; copies within one can
// grow the object exponentially, which maxPatched bounds.
const (
	maxPatchOperations = 10_000
	maxPatched         = 16 << 20
	maxMoved           = 50_000_000
)

// patched applies the request's patch to current and returns the versioned object,
// decoded but not defaulted.
func (w *write) patched(ctx context.Context, current *object.Object) (runtime.Object, error) {
	if !json.Valid(w.req.Body) {
		return nil, errInvalidPatch()
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

func errInvalidPatch() error { return apierrors.NewBadRequest("invalid JSON patch") }

// undecodable is the refusal of a patch whose result is no object of its kind.
func undecodable(after []byte, err error) error {
	return invalid(schema.GroupKind{}, "", field.Invalid(field.NewPath("patch"), string(after), err.Error()))
}

// isApply says whether the patch is a server-side apply.
func (w *write) isApply() bool {
	return w.req != nil && (w.req.PatchType == types.ApplyYAMLPatchType || w.req.PatchType == types.ApplyCBORPatchType)
}

// patchJSON applies a JSON patch or a merge patch. strict lists unknown and
// duplicate fields of the patch where they matter to the request.
func (w *write) patchJSON(before []byte) (after []byte, strict []error, err error) {
	if w.req.PatchType == types.JSONPatchType {
		return w.jsonPatch(before)
	}
	if w.req.PatchType == types.MergePatchType {
		return w.mergePatch(before)
	}
	return nil, nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", w.r.res.GroupResource, w.req.Name, string(w.req.PatchType), 0, true)
}

func (w *write) checksFields() bool {
	return w.opts.validation == metav1.FieldValidationStrict || w.opts.validation == metav1.FieldValidationWarn
}

// strictness turns unknown and duplicate fields into warnings or the patch's refusal.
func (w *write) strictness(ctx context.Context, errs []error, after string) error {
	if len(errs) == 0 || !w.checksFields() {
		return nil
	}
	if w.opts.validation == metav1.FieldValidationWarn {
		warnStrict(ctx, errs)
		return nil
	}
	return invalid(schema.GroupKind{}, "", field.Invalid(field.NewPath("patch"), after, runtime.NewStrictDecodingError(errs).Error()))
}

type jsonPatchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

func (w *write) jsonPatch(before []byte) (after []byte, strict []error, err error) {
	if w.checksFields() {
		var ops []jsonPatchOp
		if strict, err = kjson.UnmarshalStrict(w.req.Body, &ops); err != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
		for i, e := range strict {
			strict[i] = fmt.Errorf("json patch %w", e)
		}
	}
	patch, err := jsonpatch.DecodePatch(w.req.Body)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if len(patch) > maxPatchOperations {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", maxPatchOperations, len(patch)))
	}
	if err := boundCopies(before, w.req.Body); err != nil {
		return nil, nil, err
	}
	if err := boundMoves(before, w.req.Body, len(patch)); err != nil {
		return nil, nil, err
	}
	after, err = patch.Apply(before)
	if err != nil {
		return nil, nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	return after, strict, nil
}

// boundCopies refuses a JSON patch whose copies could blow the object up: each
// copy at most doubles it.
func boundCopies(before, patch []byte) error {
	var ops []jsonPatchOp
	if err := kjson.UnmarshalCaseSensitivePreserveInts(patch, &ops); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	size := len(before) + len(patch)
	for _, op := range ops {
		if op.Op != "copy" {
			continue
		}
		if size *= 2; size > maxPatched {
			return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the copy operations of the JSON patch could make the object larger than %d bytes", maxPatched))
		}
	}
	return nil
}

// boundMoves refuses a JSON patch that could move too many entries: whoever adds or
// removes one of a list moves all behind it. The list is the object's or comes with the
// patch; what operations add one by one is bounded by their number.
func boundMoves(before, patch []byte, operations int) error {
	if operations*max(len(before), len(patch))/2 <= maxMoved { // an entry has two bytes at least
		return nil
	}
	if longest := max(longestList(before), longestList(patch)); operations*longest > maxMoved {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"the JSON patch has %d operations, and the longest list %d entries: the product is bounded by %d; replace the list", operations, longest, maxMoved))
	}
	return nil
}

// longestList is the number of entries of the longest list in a valid JSON object or
// list, without itself, or more where objects have more members.
func longestList(data []byte) int {
	var commas []int
	longest, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted:
			if c == '\\' {
				i++
			} else if c == '"' {
				quoted = false
			}
		case c == '"':
			quoted = true
		case c == '{' || c == '[':
			commas = append(commas, 1)
		case c == ',':
			commas[len(commas)-1]++
		case c == '}' || c == ']':
			if len(commas) > 1 { // the outermost is the object, or the list of operations
				longest = max(longest, commas[len(commas)-1])
			}
			commas = commas[:len(commas)-1]
		}
	}
	return longest
}

func (w *write) mergePatch(before []byte) (after []byte, strict []error, err error) {
	if w.checksFields() {
		v := map[string]any{}
		if strict, err = kjson.UnmarshalStrict(w.req.Body, &v); err != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
	}
	after, err = jsonpatch.MergePatch(before, w.req.Body)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	return after, strict, nil
}

func (w *write) strategicMerge(ctx context.Context, current *object.Object) (runtime.Object, error) {
	patch := map[string]any{}
	var strict []error
	var err error
	if w.checksFields() {
		strict, err = kjson.UnmarshalStrict(w.req.Body, &patch)
	} else {
		err = kjson.UnmarshalCaseSensitivePreserveInts(w.req.Body, &patch)
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
	after, unknown, err := w.r.cfg.Contract.StrategicMerge(w.r.res, w.req.Version, versioned, patch, w.checksFields())
	if err != nil {
		return nil, err
	}
	if strict = append(strict, unknown...); len(strict) == 0 {
		return after, nil
	}
	return after, w.strictness(ctx, strict, fmt.Sprintf("%+v", patch))
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
