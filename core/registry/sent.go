package registry

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/api/ownership"
	"github.com/wasmplane/wasmplane/core/object"
)

// sentCodec is the codec of kinds that are sent and never stored, and so have no
// internal form here: Binding, Eviction, Scale, TokenRequest, reviews, options of
// connections.
type sentCodec struct{ gvk schema.GroupVersionKind }

// Kind implements object.Codec.
func (p sentCodec) Kind() schema.GroupVersionKind { return p.gvk }

// Decode implements object.Codec.
func (p sentCodec) Decode(data []byte, mediaType string) (runtime.Object, error) {
	o, _, err := p.decode(data, mediaType, false)
	return o, err
}

func (p sentCodec) decode(data []byte, mediaType string, strict bool) (runtime.Object, []error, error) {
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

// Default implements object.Codec. Whatever answers such an object knows its defaults.
func (p sentCodec) Default(runtime.Object) {}

// Internal implements object.Codec.
func (p sentCodec) Internal(o runtime.Object) (runtime.Object, error) { return o, nil }

// Versioned implements object.Codec.
func (p sentCodec) Versioned(o runtime.Object) (runtime.Object, error) { return o, nil }

// Encode implements object.Codec.
func (p sentCodec) Encode(o runtime.Object, mediaType string) ([]byte, error) {
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		return nil, fmt.Errorf("a %s cannot be written as %q", p.gvk.Kind, mediaType)
	}
	return runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, p.gvk.GroupVersion()), o)
}

// FromTree implements object.Codec.
func (p sentCodec) FromTree(tree map[string]any) (runtime.Object, error) {
	o, err := scheme.Scheme.New(p.gvk)
	if err != nil {
		return nil, err
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(tree, o)
	o.GetObjectKind().SetGroupVersionKind(p.gvk)
	return o, err
}

// ToTree implements object.Codec.
func (p sentCodec) ToTree(o runtime.Object) (map[string]any, error) {
	return runtime.DefaultUnstructuredConverter.ToUnstructured(o)
}

// Sent is what a request brings where that is an object of a kind that is sent and
// never stored. It has no strategy: whoever answers it validates it.
type Sent struct {
	w     *write
	codec sentCodec
}

// Sent reads the body or the patch of a request as an object of a kind.
func (r *Registry) Sent(req *Request, kind schema.GroupVersionKind) *Sent {
	codec := sentCodec{kind}
	return &Sent{w: &write{r: r, req: req, opts: optionsOf(req.Options), codec: codec}, codec: codec}
}

// Decode decodes the request's body, checking fields as its options say.
func (s *Sent) Decode(ctx context.Context) (runtime.Object, error) {
	o, strict, err := s.codec.decode(s.w.req.Body, s.w.req.MediaType, s.w.checksFields())
	if err != nil {
		return nil, err
	}
	if len(strict) > 0 && s.w.opts.validation == metav1.FieldValidationStrict {
		kind := s.codec.gvk
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", kind.Kind, kind.Version, kind.Kind, runtime.NewStrictDecodingError(strict)))
	}
	warnStrict(ctx, strict)
	return o, nil
}

// Patch applies the request's patch, of whatever type, to now, and writes into the
// managed fields of what it returns who changed what.
func (s *Sent) Patch(ctx context.Context, owners ownership.Upstream, now runtime.Object) (runtime.Object, error) {
	w := s.w
	if w.isApply() {
		return w.applyWith(ctx, owners, now)
	}
	if !json.Valid(w.req.Body) {
		return nil, errInvalidPatch()
	}
	before, err := json.Marshal(now)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	var after []byte
	var strict []error
	if w.req.PatchType == types.StrategicMergePatchType {
		if after, err = strategicpatch.StrategicMergePatch(before, w.req.Body, now); err != nil {
			err = apierrors.NewBadRequest(err.Error())
		}
	} else {
		after, strict, err = w.patchJSON(before)
	}
	if err != nil {
		return nil, err
	}
	next, unknown, err := s.codec.decode(after, object.JSON, w.checksFields())
	if err != nil {
		return nil, undecodable(after, err)
	}
	if err := w.strictness(ctx, append(strict, unknown...), string(after)); err != nil {
		return nil, err
	}
	return owners.UpdateNoErrors(now, next, w.req.Manager), nil
}

// CheckIdentity holds an object against the name and namespace of the request.
func (s *Sent) CheckIdentity(o runtime.Object) error {
	return s.w.checkIdentity(object.FromVersioned(s.codec, o))
}

// Admit asks admission about o, which a request with the operation brings, and
// returns what admission left. old is nil for a create.
func (s *Sent) Admit(ctx context.Context, op admission.Operation, o, old runtime.Object) (runtime.Object, error) {
	obj := object.FromVersioned(s.codec, o)
	var was *object.Object
	if old != nil {
		was = object.FromVersioned(s.codec, old)
	}
	var options runtime.Object = createOptions(s.w.req.Options)
	if op == admission.Update {
		options = updateOptions(s.w.req.Options)
	}
	question := s.w.admission(op, options, obj, was)
	if err := s.w.mutate(ctx, question); err != nil {
		return nil, err
	}
	if err := s.w.validate(ctx, question); err != nil {
		return nil, err
	}
	out, err := obj.Versioned()
	if err != nil {
		return nil, badObject(err)
	}
	return out, nil
}
