// SPDX-License-Identifier: Apache-2.0

// Package transient has the codec of kinds that clients send and nobody stores:
// Binding, Eviction, Scale, TokenRequest, reviews, options of connections. They have
// one version, and no internal form here; an Eviction is also read from the version before.
//
// It guarantees that what it decodes is of exactly its kind. It fills in no
// defaults: whatever answers such an object knows them.
package transient

import (
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/wasmplane/wasmplane/core/api/decodedsize"
)

// Codec is the codec of one kind.
type Codec struct{ GVK schema.GroupVersionKind }

// Kind implements object.Codec.
func (c Codec) Kind() schema.GroupVersionKind { return c.GVK }

// Size implements decodedsize.Sizing.
func (c Codec) Size(data []byte, mediaType string) int64 {
	if t, ok := scheme.Scheme.AllKnownTypes()[c.GVK]; ok {
		return decodedsize.Size(t, data, mediaType)
	}
	return decodedsize.TreeSize(data, mediaType)
}

// Decode implements object.Codec.
func (c Codec) Decode(data []byte, mediaType string) (runtime.Object, error) {
	o, _, err := c.DecodeStrict(data, mediaType, false)
	return o, err
}

// DecodeStrict is Decode; where strict is true it also lists unknown and duplicate
// fields.
func (c Codec) DecodeStrict(data []byte, mediaType string, strict bool) (runtime.Object, []error, error) {
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("a %s cannot be read from %q", c.GVK.Kind, mediaType))
	}
	if t, ok := scheme.Scheme.AllKnownTypes()[c.GVK]; ok {
		if err := decodedsize.Check(t, data, mediaType); err != nil {
			return nil, nil, err
		}
	}
	s := info.Serializer
	if strict {
		s = info.StrictSerializer
	}
	o, gvk, err := s.Decode(data, &c.GVK, nil)
	var unknown []error
	if strictErr, ok := runtime.AsStrictDecodingError(err); ok && o != nil {
		unknown, err = strictErr.Errors(), nil
	}
	if err == nil {
		o, gvk = current(o, gvk)
	}
	switch {
	case err != nil:
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v", c.GVK.Kind, err))
	case *gvk != c.GVK:
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("the kind in the data (%s) does not match the expected kind (%s)", gvk, c.GVK))
	}
	o.GetObjectKind().SetGroupVersionKind(c.GVK)
	return o, unknown, nil
}

// current is an Eviction of policy/v1beta1 as one of policy/v1, which has the same fields.
// Upstream takes both where pods are evicted, and no other kind of those here in two versions.
func current(o runtime.Object, gvk *schema.GroupVersionKind) (runtime.Object, *schema.GroupVersionKind) {
	old, ok := o.(*policyv1beta1.Eviction)
	if !ok {
		return o, gvk
	}
	kind := policyv1.SchemeGroupVersion.WithKind("Eviction")
	return &policyv1.Eviction{ObjectMeta: old.ObjectMeta, DeleteOptions: old.DeleteOptions}, &kind
}

// Default implements object.Codec. Whatever answers such an object knows its defaults.
func (c Codec) Default(runtime.Object) {}

// Internal implements object.Codec.
func (c Codec) Internal(o runtime.Object) (runtime.Object, error) { return o, nil }

// Versioned implements object.Codec.
func (c Codec) Versioned(o runtime.Object) (runtime.Object, error) { return o, nil }

// Encode implements object.Codec.
func (c Codec) Encode(o runtime.Object, mediaType string) ([]byte, error) {
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		return nil, fmt.Errorf("a %s cannot be written as %q", c.GVK.Kind, mediaType)
	}
	return runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, c.GVK.GroupVersion()), o)
}

// FromTree implements object.Codec.
func (c Codec) FromTree(tree map[string]any) (runtime.Object, error) {
	o, err := scheme.Scheme.New(c.GVK)
	if err != nil {
		return nil, err
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(tree, o)
	o.GetObjectKind().SetGroupVersionKind(c.GVK)
	return o, err
}

// ToTree implements object.Codec.
func (c Codec) ToTree(o runtime.Object) (map[string]any, error) {
	return runtime.DefaultUnstructuredConverter.ToUnstructured(o)
}
