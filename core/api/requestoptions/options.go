// SPDX-License-Identifier: Apache-2.0

// Package requestoptions reads and validates the options of requests, from their query and body.
package requestoptions

import (
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metascheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	listvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/wasmplane/wasmplane/core/object"
)

func parameters(q url.Values, into runtime.Object) error {
	if err := metascheme.ParameterCodec.DecodeParameters(q, metav1.SchemeGroupVersion, into); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

func invalid(kind string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
}

// List reads and validates the query of a list, watch or
// deletecollection. Field labels are still those of the request's version: see
// FieldSelector.
func List(q url.Values) (*internalversion.ListOptions, error) {
	o := &internalversion.ListOptions{}
	if err := parameters(q, o); err != nil {
		return nil, err
	}
	return o, invalid("ListOptions", listvalidation.ValidateListOptions(o, true))
}

// Get reads the query of a get.
func Get(q url.Values) (*metav1.GetOptions, error) {
	o := &metav1.GetOptions{}
	return o, parameters(q, o)
}

// Create reads and validates the query of a create.
func Create(q url.Values) (*metav1.CreateOptions, error) {
	o := &metav1.CreateOptions{}
	if err := parameters(q, o); err != nil {
		return nil, err
	}
	if err := invalid("CreateOptions", validation.ValidateCreateOptions(o)); err != nil {
		return nil, err
	}
	o.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("CreateOptions"))
	return o, nil
}

// Update reads and validates the query of an update.
func Update(q url.Values) (*metav1.UpdateOptions, error) {
	o := &metav1.UpdateOptions{}
	if err := parameters(q, o); err != nil {
		return nil, err
	}
	if err := invalid("UpdateOptions", validation.ValidateUpdateOptions(o)); err != nil {
		return nil, err
	}
	o.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("UpdateOptions"))
	return o, nil
}

// Patch reads and validates the query of a patch; what is allowed depends on its type.
func Patch(q url.Values, t types.PatchType) (*metav1.PatchOptions, error) {
	o := &metav1.PatchOptions{}
	if err := parameters(q, o); err != nil {
		return nil, err
	}
	if err := invalid("PatchOptions", validation.ValidatePatchOptions(o, t)); err != nil {
		return nil, err
	}
	o.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PatchOptions"))
	return o, nil
}

// Table reads and validates what a Table is asked for with.
func Table(q url.Values) (*metav1.TableOptions, error) {
	o := &metav1.TableOptions{}
	if err := parameters(q, o); err != nil {
		return nil, err
	}
	if errs := validation.ValidateTableOptions(o); len(errs) > 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", errs.ToAggregate()))
	}
	return o, nil
}

// Delete reads and validates what a delete is asked for with: the body
// where there is one, else the query. Upstream takes a body in any API version.
func Delete(q url.Values, body []byte, mediaType string) (*metav1.DeleteOptions, error) {
	o := &metav1.DeleteOptions{}
	if len(body) > 0 {
		if err := deleteBody(body, mediaType, o); err != nil {
			return nil, err
		}
	} else if err := parameters(q, o); err != nil {
		return nil, err
	}
	if err := invalid("DeleteOptions", validation.ValidateDeleteOptions(o)); err != nil {
		return nil, err
	}
	o.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("DeleteOptions"))
	return o, nil
}

func deleteBody(body []byte, mediaType string, into *metav1.DeleteOptions) error {
	if mediaType == "" {
		mediaType = object.JSON
	}
	info, ok := runtime.SerializerInfoForMediaType(metascheme.Codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("the body of the request was in an unknown format - accepted media types include: %s, %s, %s",
			object.JSON, object.YAML, object.Protobuf))
	}
	gvk := schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"}
	o, _, err := metascheme.Codecs.DecoderToVersion(info.Serializer, gvk.GroupVersion()).Decode(body, &gvk, into)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if o != runtime.Object(into) {
		return apierrors.NewBadRequest("decoded object cannot be converted to DeleteOptions")
	}
	return nil
}
