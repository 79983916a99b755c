package api

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// StrategicPatch applies a strategic merge patch to an object of one version.
// original and patch are JSON trees; the answer is a new tree that may share
// parts with both. FromPatched makes the object.
func (c *Contract) StrategicPatch(r *Resource, version string, original, patch map[string]any) (map[string]any, error) {
	cd, ok := r.codecs[version].(*codec)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s is not served in version %q", r.GroupResource, version))
	}
	out, err := strategicpatch.StrategicMergeMapPatch(original, patch, cd.empty())
	switch {
	case errors.Is(err, mergepatch.ErrNoListOfLists), errors.Is(err, mergepatch.ErrPatchContentNotMatchRetainKeys):
		return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	case err != nil:
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return out, nil
}

// FromPatched makes a versioned object of the tree that a patch gave. strict
// lists the unknown fields. The patch itself appears in the refusal of a tree
// that does not fit the type. The object is not defaulted.
func (c *Contract) FromPatched(r *Resource, version string, tree, patch map[string]any) (o runtime.Object, strict []error, err error) {
	cd, ok := r.codecs[version].(*codec)
	if !ok {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("%s is not served in version %q", r.GroupResource, version))
	}
	o = cd.empty()
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(tree, o, true)
	if unknown, ok := runtime.AsStrictDecodingError(err); ok {
		strict, err = unknown.Errors(), nil
	}
	if err != nil {
		return nil, nil, apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
			field.Invalid(field.NewPath("patch"), fmt.Sprintf("%+v", patch), err.Error()),
		})
	}
	return cd.named(o), strict, nil
}

// PatchedStrictError is the refusal of a patch that leaves unknown fields, for fieldValidation=Strict.
func (c *Contract) PatchedStrictError(patch map[string]any, strict []error) error {
	if len(strict) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{
		field.Invalid(field.NewPath("patch"), fmt.Sprintf("%+v", patch), runtime.NewStrictDecodingError(strict).Error()),
	})
}
