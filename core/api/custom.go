// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	kjson "sigs.k8s.io/json"

	"github.com/wasmplane/wasmplane/core/api/kinds"
	"github.com/wasmplane/wasmplane/core/api/ownership"
	"github.com/wasmplane/wasmplane/core/object"
)

// Custom is the behaviour of a row whose kind is not built in. Its objects are
// *unstructured.Unstructured in every form: the version that a request names
// stands in for the internal one. core/customresource implements it.
type Custom interface { //nolint:interfacebloat // what a version looks like in OpenAPI is one question in three parts
	// Codec of one version, whether it is served or not; nil where there is no such version.
	Codec(version string) object.Codec
	// Version is everything that a write or a Table needs of one version. It is
	// made when first asked for: schemas are expensive to compile.
	Version(version string) (*CustomVersion, error)
	// Convert answers objects of any version in the one that is named, in the
	// same order: pruned and defaulted, all in one call of whoever converts.
	// What it answers is shared and remembered beside the given objects.
	Convert(ctx context.Context, objects []*object.Object, version string) ([]*object.Object, error)
	// EncodeStorage writes an object of any version as it is stored.
	EncodeStorage(ctx context.Context, o runtime.Object) ([]byte, error)
	// FieldManager of one version, "" or a subresource. Conversions that it does are bounded by ctx.
	FieldManager(ctx context.Context, version, subresource string) (ownership.Upstream, error)
	// Types knows the schemas of all versions.
	Types() (managedfields.TypeConverter, error)
	// OpenAPIV3 and OpenAPIV2 describe one version. Fingerprint changes whenever they do.
	OpenAPIV3(version string) (*spec3.OpenAPI, error)
	OpenAPIV2(version string) (*spec.Swagger, error)
	Fingerprint() string
}

// CustomVersion is one version of a custom resource.
type CustomVersion struct {
	Strategy Strategy
	Status   Strategy // of the status subresource; nil where there is none
	Scale    CustomScale
	Table    rest.TableConvertor
	// Attrs are the labels and selectable fields of an object of this version;
	// Selectable names the fields.
	Attrs      func(o runtime.Object) (labels.Set, fields.Set, error)
	Selectable []string
	// DecodeStrict is Contract.DecodeStrict for this version.
	DecodeStrict func(data []byte, mediaType string) (o runtime.Object, strict []error, err error)
}

// CustomScale reads and writes the replicas of an object where its definition
// says they are.
type CustomScale interface {
	// From is the object's Scale; with forUpdate an object that says nothing of
	// its replicas is no error yet: its Scale has a number that Apply refuses.
	From(o *unstructured.Unstructured, forUpdate bool) (*autoscalingv1.Scale, error)
	// Apply answers a changed copy of the object.
	Apply(o *unstructured.Unstructured, scale *autoscalingv1.Scale) (*unstructured.Unstructured, error)
}

// InVersion is what differs between the versions of a custom resource and is
// known without compiling anything.
type InVersion struct {
	Subresources map[string]*Subresource
	// Warnings are told to everybody who uses the version: it is deprecated.
	Warnings []string
}

// SubresourcesIn are the subresources of one version: of built-in rows all
// versions have the same.
func (r *Resource) SubresourcesIn(version string) map[string]*Subresource {
	if r.Custom != nil {
		return r.In[version].Subresources
	}
	return r.Subresources
}

// WritesThrough says whether a subresource of one version writes the object.
func (r *Resource) WritesThrough(version, subresource string) bool {
	s := r.SubresourcesIn(version)[subresource]
	return s != nil && s.WritesParent()
}

// Writer is the strategy of writes in one version: the resource's own for "",
// or that of a subresource that writes the object.
func (r *Resource) Writer(version, subresource string) (Strategy, error) {
	if r.Custom == nil {
		return r.writer(subresource)
	}
	v, err := r.Custom.Version(version)
	if err != nil {
		return nil, err
	}
	switch {
	case subresource == "":
		return v.Strategy, nil
	case subresource == "status" && v.Status != nil:
		return v.Status, nil
	}
	return nil, fmt.Errorf("%s/%s does not write the parent object", r.GroupResource, subresource)
}

// customSelector checks a field selector against the fields that a version names.
func (r *Resource) customSelector(version string, s fields.Selector) (fields.Selector, error) {
	v, err := r.Custom.Version(version)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	for _, q := range s.Requirements() {
		if !slices.Contains(v.Selectable, q.Field) {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", q.Field))
		}
	}
	return s, nil
}

// decodeCustom reads a stored custom resource as it is, in whatever version it
// was stored: its definition, which may change tomorrow, is applied when
// somebody reads it.
func (r *Resource) decodeCustom(value []byte) (*object.Object, *unstructured.Unstructured, error) {
	mediaType := object.JSON
	if bytes.HasPrefix(value, []byte{0xd9, 0xd9, 0xf7}) { // CBOR that says so
		mediaType = object.CBOR
	}
	u, err := UnpackCustom(value, mediaType)
	if err != nil {
		return nil, nil, fmt.Errorf("decode a stored %s: %w", r.Kind, err)
	}
	gvk := u.GroupVersionKind()
	if gvk.Group != r.Group || gvk.Version == "" {
		return nil, nil, fmt.Errorf("decode a stored %s: it says that it is a %s", r.Kind, gvk)
	}
	codec := r.asStored.Load()
	if codec == nil || codec.GVK != gvk { // nearly all objects of a resource share one
		codec = &asStored{object.Unstructured{GVK: gvk}}
		r.asStored.Store(codec)
	}
	return PackableCustom(codec, u), u, nil
}

// asStored is the codec of a custom resource of whose definition nothing is known.
type asStored struct{ object.Unstructured }

// Decode implements object.Codec.
func (*asStored) Decode(data []byte, mediaType string) (runtime.Object, error) {
	return UnpackCustom(data, mediaType)
}

// Encode implements object.Codec.
func (*asStored) Encode(o runtime.Object, mediaType string) ([]byte, error) {
	return PackCustom(o, mediaType)
}

// PackableCustom makes a carrier of a custom resource that packs it as JSON: nearly every
// reader wants these very bytes. One with a number that would come back from JSON as
// another type (1.0, which servers that store CBOR let through) is packed as CBOR.
func PackableCustom(c object.Codec, u *unstructured.Unstructured) *object.Object {
	mediaType := object.JSON
	if changesInJSON(u.Object) {
		mediaType = object.CBOR
	}
	return object.FromStored(c, u, mediaType)
}

// changesInJSON says whether a tree has a float that is written like a whole number.
func changesInJSON(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, member := range v {
			if changesInJSON(member) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, changesInJSON)
	case float64:
		return v == math.Trunc(v)
	}
	return false
}

// PackCustom writes a custom resource in a media type that UnpackCustom reads.
func PackCustom(o runtime.Object, mediaType string) ([]byte, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("a %T is no custom resource", o)
	}
	switch mediaType {
	case object.JSON:
		return EncodeCustom(u.Object)
	case object.CBOR:
		return cbor.Marshal(u.Object)
	}
	return nil, fmt.Errorf("media type %q: custom resources are packed as %s or %s", mediaType, object.JSON, object.CBOR)
}

// UnpackCustom reads a custom resource as it was written, and checks nothing.
func UnpackCustom(data []byte, mediaType string) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	if mediaType == object.CBOR {
		return u, cbor.Unmarshal(data, &u.Object)
	}
	return u, kjson.UnmarshalCaseSensitivePreserveInts(data, &u.Object)
}

// customDecoder is WatchDecoder for rows that are not built in. It knows nothing
// of their definition, so that a changed definition does not outdate the cache.
func (r *Resource) customDecoder() func(key string, value []byte, revision int64) (*object.Object, labels.Set, fields.Set, error) {
	attrs := kinds.MetaAttrs(r.Namespaced)
	return func(key string, value []byte, revision int64) (*object.Object, labels.Set, fields.Set, error) {
		o, u, err := r.decodeCustom(value)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("key %s: %w", key, err)
		}
		u.SetResourceVersion(revisionText(revision))
		l, f, err := attrs(u)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("key %s: labels and fields: %w", key, err)
		}
		return o, l, f, nil
	}
}
