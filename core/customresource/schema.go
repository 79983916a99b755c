// SPDX-License-Identifier: Apache-2.0

package customresource

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/kindcodec"
	"github.com/wasmplane/wasmplane/core/customresource/schemacheck"
	"github.com/wasmplane/wasmplane/core/object"
)

// internalSchema is a version's schema in the form that upstream's validation
// reads; nil where the version has none.
func internalSchema(v *apiextensionsv1.CustomResourceDefinitionVersion) (*apiextensions.CustomResourceValidation, error) {
	if v.Schema == nil {
		return nil, nil
	}
	out := &apiextensions.CustomResourceValidation{}
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema, out, nil); err != nil {
		return nil, fmt.Errorf("convert the schema of version %s: %w", v.Name, err)
	}
	return out, nil
}

// makeStructural compiles the structural schema by which objects are pruned,
// defaulted and coerced.
func (v *customVersion) makeStructural() (*structuralschema.Structural, error) {
	internal, err := internalSchema(v.spec)
	if err != nil || internal == nil {
		return nil, err
	}
	preserve := v.def.crd.Spec.PreserveUnknownFields
	s, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
	switch {
	case preserve && err != nil:
		return nil, nil //nolint:nilerr,nilnil // old definitions may have any schema, and are then not pruned
	case err != nil:
		return nil, fmt.Errorf("the server could not properly serve the CR schema of %s in version %s: %w", v.def.gr, v.spec.Name, err)
	case preserve:
		return s, nil
	}
	s = s.DeepCopy() // pruning its defaults must not reach into the definition
	if err := defaulting.PruneDefaults(s); err != nil {
		return nil, fmt.Errorf("prune the defaults of %s in version %s: %w", v.def.gr, v.spec.Name, err)
	}
	return s, nil
}

// coercing says how an object is brought into shape.
type coercing struct {
	// stored: the object comes from the store. What an older server let through
	// in its metadata is dropped instead of refused.
	stored bool
	// unknown: the paths of unknown fields are wanted.
	unknown bool
}

// coerce does to an object what decoding into a Go struct does to a built-in
// one: metadata has its types, unknown fields are pruned, nulls go where the
// schema has no place for them. It changes u.
func (v *customVersion) coerce(u *unstructured.Unstructured, o coercing) (unknown []string, err error) {
	s, err := v.structural()
	if err != nil {
		return nil, err
	}
	kind, hasKind, err := unstructured.NestedString(u.Object, "kind")
	if err != nil {
		return nil, err
	}
	apiVersion, hasVersion, err := unstructured.NestedString(u.Object, "apiVersion")
	if err != nil {
		return nil, err
	}
	meta, hasMeta, unknown, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{
		DropMalformedFields: o.stored, ReturnUnknownFieldPaths: o.unknown,
	})
	if err != nil {
		return nil, err
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, err
	}
	if gv.Group == v.def.gr.Group && kind == v.def.kind {
		if !v.def.crd.Spec.PreserveUnknownFields {
			unknown = append(unknown,
				pruning.PruneWithOptions(u.Object, s, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: o.unknown})...)
			defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, s)
		}
		coerceErr, paths := objectmeta.CoerceWithOptions(nil, u.Object, s, false, objectmeta.CoerceOptions{
			DropInvalidFields: o.stored, ReturnUnknownFieldPaths: o.unknown,
		})
		if coerceErr != nil {
			return nil, coerceErr
		}
		unknown = append(unknown, paths...)
		if o.stored && meta.Generation == 0 {
			meta.Generation = 1 // objects of before there were generations
		}
	}
	if hasKind {
		u.SetKind(kind)
	}
	if hasVersion {
		u.SetAPIVersion(apiVersion)
	}
	if hasMeta {
		return unknown, objectmeta.SetObjectMeta(u.Object, meta)
	}
	return unknown, nil
}

// fill fills in the defaults of the version's schema. An object that would have too many of them, or would take too long, stays as it is:
// validation refuses it.
func (v *customVersion) fill(u *unstructured.Unstructured) {
	if u.GroupVersionKind() != v.codec.gvk {
		return
	}
	s, err := v.structural()
	if err != nil || s == nil || v.tooMuch(u.Object, s) != "" {
		return
	}
	defaulting.Default(u.Object, s)
}

// decode reads a body. strict are its unknown and duplicate fields in upstream's words.
func (v *customVersion) decode(data []byte, mediaType string, findUnknown bool) (_ runtime.Object, strict []error, err error) {
	s, err := serializer(mediaType, findUnknown)
	if err != nil {
		return nil, nil, err
	}
	u := &unstructured.Unstructured{}
	_, gvk, err := s.Decode(data, &v.codec.gvk, u)
	if duplicates, ok := runtime.AsStrictDecodingError(err); ok {
		strict, err = duplicates.Errors(), nil
	}
	if err != nil {
		return nil, nil, kindcodec.Refusal(v.codec.gvk, gvk, data, err)
	}
	if err := schemacheck.CheckPaths(u.Object); err != nil { // before those of unknown fields are listed
		return nil, nil, err
	}
	unknown, err := v.coerce(u, coercing{unknown: findUnknown})
	if err != nil {
		return nil, nil, kindcodec.Refusal(v.codec.gvk, gvk, data, err)
	}
	for _, path := range unknown {
		strict = append(strict, fmt.Errorf(`unknown field "%s"`, path)) //nolint:gocritic // upstream's words: a path may have quotes of its own
	}
	if got, want := u.GroupVersionKind().GroupVersion(), v.codec.gvk.GroupVersion(); got != want {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)",
			got, want))
	}
	return u, strict, nil
}

func serializer(mediaType string, strict bool) (runtime.Serializer, error) {
	if mediaType != object.JSON && mediaType != object.YAML {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("media type %q: custom resources are read from %s and %s", mediaType, object.JSON,
			object.YAML))
	}
	return json.NewSerializerWithOptions(json.DefaultMetaFactory, creator{}, crdserverscheme.NewUnstructuredObjectTyper(),
		json.SerializerOptions{Yaml: mediaType == object.YAML, Strict: strict}), nil
}

// creator makes empty custom resources.
type creator struct{}

// New implements runtime.ObjectCreater.
func (creator) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	return u, nil
}

// codec is one version's object.Codec.
type codec struct {
	gvk     schema.GroupVersionKind
	version *customVersion
}

// Kind implements object.Codec.
func (c *codec) Kind() schema.GroupVersionKind { return c.gvk }

// Decode implements object.Codec.
func (c *codec) Decode(data []byte, mediaType string) (runtime.Object, error) {
	o, _, err := c.version.decode(data, mediaType, false)
	return o, err
}

// Default implements object.Codec.
func (c *codec) Default(o runtime.Object) {
	if u, ok := o.(*unstructured.Unstructured); ok {
		c.version.fill(u)
	}
}

// Internal implements object.Codec: the version itself stands for it.
func (c *codec) Internal(o runtime.Object) (runtime.Object, error) { return o, nil }

// Versioned implements object.Codec. The registry converts by api.Custom's
// Convert, which is given a context; admission webhooks that match another
// version of a request's object come here.
func (c *codec) Versioned(o runtime.Object) (runtime.Object, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("a %T is no custom resource", o)
	}
	if u.GroupVersionKind().Version == c.gvk.Version {
		return u, nil
	}
	converted, err := c.version.def.convertTrees(c.version.def.base, []*unstructured.Unstructured{u}, c.version)
	if err != nil {
		return nil, err
	}
	return converted[0], nil
}

// Encode implements object.Codec.
func (c *codec) Encode(o runtime.Object, mediaType string) ([]byte, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("a %T is no custom resource", o)
	}
	switch mediaType {
	case object.JSON, object.CBOR: // CBOR is for the watch cache; no client is answered in it
		return api.PackCustom(u, mediaType)
	case object.YAML:
		return yaml.Marshal(u.Object)
	}
	return nil, fmt.Errorf("media type %q: custom resources are written as %s and %s", mediaType, object.JSON, object.YAML)
}

// Unpack implements object.Unpacker: what is packed has been pruned and defaulted.
func (c *codec) Unpack(data []byte, mediaType string) (runtime.Object, error) {
	return api.UnpackCustom(data, mediaType)
}

// FromTree implements object.Codec.
func (c *codec) FromTree(tree map[string]any) (runtime.Object, error) {
	return &unstructured.Unstructured{Object: tree}, nil
}

// ToTree implements object.Codec.
func (c *codec) ToTree(o runtime.Object) (map[string]any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("a %T is no custom resource", o)
	}
	return u.Object, nil
}
