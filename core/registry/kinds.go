package registry

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/wasmplane/wasmplane/core/object"
)

// plain is the codec of kinds that are only ever said and never stored, and so
// have no internal form here: Binding, Eviction, Scale, TokenRequest, reviews.
type plain struct{ gvk schema.GroupVersionKind }

// Kind implements object.Codec.
func (p plain) Kind() schema.GroupVersionKind { return p.gvk }

// Decode implements object.Codec.
func (p plain) Decode(data []byte, mediaType string) (runtime.Object, error) {
	o, _, err := p.decode(data, mediaType, false)
	return o, err
}

func (p plain) decode(data []byte, mediaType string, strict bool) (runtime.Object, []error, error) {
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("a %s cannot be read from %q", p.gvk.Kind, mediaType))
	}
	s := info.Serializer
	if strict {
		s = info.StrictSerializer
	}
	o, gvk, err := s.Decode(data, &p.gvk, nil)
	var unknown []error
	if strictErr, ok := runtime.AsStrictDecodingError(err); ok && o != nil {
		unknown, err = strictErr.Errors(), nil
	}
	switch {
	case err != nil:
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v", p.gvk.Kind, err))
	case *gvk != p.gvk:
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("the kind in the data (%s) does not match the expected kind (%s)", gvk, p.gvk))
	}
	o.GetObjectKind().SetGroupVersionKind(p.gvk)
	return o, unknown, nil
}

// Default implements object.Codec: who answers a question knows its defaults.
func (p plain) Default(runtime.Object) {}

// Internal implements object.Codec.
func (p plain) Internal(o runtime.Object) (runtime.Object, error) { return o, nil }

// Versioned implements object.Codec.
func (p plain) Versioned(o runtime.Object) (runtime.Object, error) { return o, nil }

// Encode implements object.Codec.
func (p plain) Encode(o runtime.Object, mediaType string) ([]byte, error) {
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		return nil, fmt.Errorf("a %s cannot be written as %q", p.gvk.Kind, mediaType)
	}
	return runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, p.gvk.GroupVersion()), o)
}

// FromTree implements object.Codec.
func (p plain) FromTree(tree map[string]any) (runtime.Object, error) {
	o, err := scheme.Scheme.New(p.gvk)
	if err != nil {
		return nil, err
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(tree, o)
	o.GetObjectKind().SetGroupVersionKind(p.gvk)
	return o, err
}

// ToTree implements object.Codec.
func (p plain) ToTree(o runtime.Object) (map[string]any, error) {
	return runtime.DefaultUnstructuredConverter.ToUnstructured(o)
}

// said decodes the body of a request in the codec's kind, checking fields as
// its options say.
func said(ctx context.Context, c plain, req *Request) (*object.Object, error) {
	validation := optionsOf(req.Options).validation
	o, strict, err := c.decode(req.Body, req.MediaType, validation == metav1.FieldValidationStrict || validation == metav1.FieldValidationWarn)
	if err != nil {
		return nil, err
	}
	if len(strict) > 0 && validation == metav1.FieldValidationStrict {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", c.gvk.Kind, c.gvk.Version, c.gvk.Kind, runtime.NewStrictDecodingError(strict)))
	}
	warnStrict(ctx, strict)
	return object.FromVersioned(c, o), nil
}

// spoken decodes, asks admission, and returns what admission left.
func (r *Registry) spoken(ctx context.Context, c plain, req *Request) (runtime.Object, error) {
	obj, err := said(ctx, c, req)
	if err != nil {
		return nil, err
	}
	w := &write{r: r, req: req, opts: optionsOf(req.Options), codec: c}
	asked := w.admission("CREATE", createOptions(req.Options), obj, nil)
	if err := w.mutate(ctx, asked); err != nil {
		return nil, err
	}
	if err := w.validate(ctx, asked); err != nil {
		return nil, err
	}
	return obj.Versioned()
}
