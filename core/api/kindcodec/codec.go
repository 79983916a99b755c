// SPDX-License-Identifier: Apache-2.0

// Package kindcodec converts the objects of one version of one kind of a scheme: it reads and
// writes them in every media type, defaults them, and turns them into the internal form and back.
package kindcodec

import (
	"bytes"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/recognizer"
	kjson "sigs.k8s.io/json"

	"github.com/wasmplane/wasmplane/core/api/decodedsize"
	"github.com/wasmplane/wasmplane/core/api/envelope"
	"github.com/wasmplane/wasmplane/core/object"
)

// Codec implements object.Codec for one version of one kind. It is immutable, and safe for
// concurrent use.
type Codec struct {
	scheme *runtime.Scheme
	gvk    schema.GroupVersionKind
	goType reflect.Type
	wire   map[string]wire
}

// wire is what a media type needs.
type wire struct{ lenient, strict runtime.Serializer }

// New makes the codec of a kind that the scheme has.
func New(s *runtime.Scheme, gvk schema.GroupVersionKind) (*Codec, error) {
	if !s.Recognizes(gvk) {
		return nil, fmt.Errorf("no type is registered for %s", gvk)
	}
	o, err := s.New(gvk)
	if err != nil {
		return nil, err
	}
	return &Codec{scheme: s, gvk: gvk, goType: reflect.TypeOf(o).Elem(), wire: wires(s)}, nil
}

func wires(s *runtime.Scheme) map[string]wire {
	text := func(o json.SerializerOptions) runtime.Serializer {
		return json.NewSerializerWithOptions(json.DefaultMetaFactory, s, s, o)
	}
	proto := protobuf.NewSerializer(s, s)
	return map[string]wire{
		object.JSON:     {text(json.SerializerOptions{}), text(json.SerializerOptions{Strict: true})},
		object.YAML:     {text(json.SerializerOptions{Yaml: true}), text(json.SerializerOptions{Yaml: true, Strict: true})},
		object.Protobuf: {proto, proto},
		object.CBOR:     {cbor.NewSerializer(s, s), cbor.NewSerializer(s, s, cbor.Strict(true))},
	}
}

func (c *Codec) serializer(mediaType string, strict bool) (runtime.Serializer, error) {
	w, ok := c.wire[mediaType]
	if !ok {
		return nil, fmt.Errorf("media type %q: expected %s, %s, %s or %s", mediaType, object.JSON, object.YAML, object.Protobuf, object.CBOR)
	}
	if strict {
		return w.strict, nil
	}
	return w.lenient, nil
}

// Kind implements object.Codec.
func (c *Codec) Kind() schema.GroupVersionKind { return c.gvk }

// Type is that of the kind's objects: a struct.
func (c *Codec) Type() reflect.Type { return c.goType }

// Empty makes an object that has nothing, not even its kind.
func (c *Codec) Empty() runtime.Object { return reflect.New(c.goType).Interface().(runtime.Object) }

// Decode implements object.Codec. Unknown fields are ignored. What would take more than decodedsize.Max is refused.
func (c *Codec) Decode(data []byte, mediaType string) (runtime.Object, error) {
	if err := c.Bound(data, mediaType); err != nil {
		return nil, err
	}
	var quick runtime.Object
	switch mediaType {
	case object.JSON:
		quick = c.quick(data)
	case object.Protobuf:
		quick = c.quickProto(data)
	}
	if quick != nil {
		return quick, nil
	}
	s, err := c.serializer(mediaType, false)
	if err != nil {
		return nil, err
	}
	o, _, err := c.decode(s, data)
	return o, err
}

// quick reads JSON of exactly the expected kind in one pass; nil says that the
// general way, which looks at the kind first, has to judge.
func (c *Codec) quick(data []byte) runtime.Object {
	o := c.Empty()
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, o); err != nil {
		return nil
	}
	if !c.accepts(o) {
		return nil
	}
	return o
}

// quickProto reads protobuf of exactly the expected kind without copying the
// message out of its envelope first; nil as quick.
func (c *Codec) quickProto(data []byte) runtime.Object {
	e, ok := envelope.Open(data)
	if !ok || string(e.APIVersion) != c.gvk.GroupVersion().String() || string(e.Kind) != c.gvk.Kind {
		return nil
	}
	o := c.Empty()
	m, ok := o.(interface{ Unmarshal(data []byte) error })
	if !ok || m.Unmarshal(e.Raw) != nil {
		return nil
	}
	o.GetObjectKind().SetGroupVersionKind(c.gvk)
	fill(o)
	return o
}

// quickStrict is quick with the unknown and duplicate fields found.
func (c *Codec) quickStrict(data []byte) (runtime.Object, []error) {
	o := c.Empty()
	unknown, err := kjson.UnmarshalStrict(data, o)
	if err != nil || !c.accepts(o) {
		return nil, nil
	}
	return o, unknown
}

// accepts says whether o is of c's kind. What names no kind is taken for it, as
// the path of the request names one.
func (c *Codec) accepts(o runtime.Object) bool {
	k := o.GetObjectKind().GroupVersionKind()
	if k.Empty() {
		o.GetObjectKind().SetGroupVersionKind(c.gvk)
		return true
	}
	return k == c.gvk
}

// decode reads data as whatever kind it says, and fails where that is not c's.
// The strict serializers answer both an object and a strict decoding error.
func (c *Codec) decode(s runtime.Serializer, data []byte) (runtime.Object, []error, error) {
	o, got, err := s.Decode(data, &c.gvk, c.Empty())
	var unknown []error
	if strict, ok := runtime.AsStrictDecodingError(err); ok && o != nil {
		unknown, err = strict.Errors(), nil
	}
	if err != nil {
		return nil, nil, c.refuse(got, data, err)
	}
	if err := c.expected(o, got, data); err != nil {
		return nil, nil, err
	}
	fill(o)
	o.GetObjectKind().SetGroupVersionKind(c.gvk)
	return o, unknown, nil
}

// expected refuses another version or kind in upstream's words. Upstream finds
// another kind when it fails to convert, hence the words about conversion.
func (c *Codec) expected(o runtime.Object, got *schema.GroupVersionKind, data []byte) error {
	if *got == c.gvk {
		return nil
	}
	if got.Kind != c.gvk.Kind {
		internal := reflect.TypeOf(c.internalObject()).Elem()
		return c.refuse(got, data, fmt.Errorf("converting (%s) to (%s): unknown conversion", reflect.TypeOf(o).Elem(), internal))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)",
		got.GroupVersion(), c.gvk.GroupVersion()))
}

func (c *Codec) internalObject() runtime.Object {
	o, err := c.scheme.New(schema.GroupVersionKind{Group: c.gvk.Group, Version: runtime.APIVersionInternal, Kind: c.gvk.Kind})
	if err != nil {
		return c.Empty()
	}
	return o
}

// refuse words a decoding failure as upstream's handlers do.
func (c *Codec) refuse(got *schema.GroupVersionKind, data []byte, err error) error {
	return Refusal(c.gvk, got, data, err)
}

// Refusal words a body that could not be read as upstream's handlers do. got is what kind
// the body says it is; nil = that could not be told.
func Refusal(want schema.GroupVersionKind, got *schema.GroupVersionKind, data []byte, err error) error {
	if got != nil && got.Kind != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", got.Kind, got.Version, want.Kind, err))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)",
		want.Kind, err, summary(data)))
}

// summary shows the beginning of data that could not be read.
func summary(data []byte) string {
	const most = 30
	if len(data) == 0 {
		return "<empty>"
	}
	if data[0] == '{' {
		if len(data) > most {
			return string(data[:most]) + " ..."
		}
		return string(data)
	}
	if len(data) > most {
		return fmt.Sprintf("%x ...", data[:most])
	}
	return fmt.Sprintf("%x", data)
}

// Default implements object.Codec.
func (c *Codec) Default(versioned runtime.Object) { c.scheme.Default(versioned) }

// Internal implements object.Codec. The result shares memory with versioned
// where the two have the same layout: whoever changes one outdates the other.
func (c *Codec) Internal(versioned runtime.Object) (runtime.Object, error) {
	return c.scheme.UnsafeConvertToVersion(versioned, schema.GroupVersion{Group: c.gvk.Group, Version: runtime.APIVersionInternal})
}

// Versioned implements object.Codec. It takes internal objects and those of
// other versions; the result shares memory with what was given.
func (c *Codec) Versioned(o runtime.Object) (runtime.Object, error) {
	if t := reflect.TypeOf(o); t.Kind() == reflect.Pointer && t.Elem() == c.goType {
		return c.Named(o), nil
	}
	if k := o.GetObjectKind().GroupVersionKind(); k.Version != "" && k.Version != runtime.APIVersionInternal && k != c.gvk {
		internal, err := c.Internal(o)
		if err != nil {
			return nil, err
		}
		o = internal
	}
	return c.scheme.UnsafeConvertToVersion(o, c.gvk.GroupVersion())
}

// Named answers o with its kind set, without touching an object that others may be reading.
func (c *Codec) Named(o runtime.Object) runtime.Object {
	if o.GetObjectKind().GroupVersionKind() == c.gvk {
		return o
	}
	shallow := reflect.New(c.goType)
	shallow.Elem().Set(reflect.ValueOf(o).Elem())
	out := shallow.Interface().(runtime.Object)
	out.GetObjectKind().SetGroupVersionKind(c.gvk)
	return out
}

// Encode implements object.Codec.
func (c *Codec) Encode(versioned runtime.Object, mediaType string) ([]byte, error) {
	s, err := c.serializer(mediaType, false)
	if err != nil {
		return nil, err
	}
	if reflect.TypeOf(versioned) == reflect.PointerTo(c.goType) {
		versioned = c.Named(versioned)
	}
	var b bytes.Buffer
	if frugal, ok := s.(runtime.EncoderWithAllocator); ok {
		room, pooled := runtime.AllocatorPool.Get().(*runtime.Allocator)
		if pooled { // what is written is copied once more, into as many bytes as it is
			defer runtime.AllocatorPool.Put(room)
			if err := frugal.EncodeWithAllocator(versioned, &b, room); err != nil {
				return nil, err
			}
			return b.Bytes(), nil
		}
	}
	if err := s.Encode(versioned, &b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// FromTree implements object.Codec.
func (c *Codec) FromTree(tree map[string]any) (runtime.Object, error) {
	if err := c.BoundTree(tree); err != nil {
		return nil, err
	}
	o := c.Empty()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(tree, o); err != nil {
		return nil, err
	}
	return c.Named(o), nil
}

// Bound refuses the text of an object, or of a patch that has its shape, which would take more than an object may once it is decoded.
func (c *Codec) Bound(data []byte, mediaType string) error {
	return decodedsize.Check(c.goType, data, mediaType)
}

// Size implements decodedsize.Sizing.
func (c *Codec) Size(data []byte, mediaType string) int64 {
	return decodedsize.Size(c.goType, data, mediaType)
}

// BoundTree is Bound of a tree.
func (c *Codec) BoundTree(tree map[string]any) error { return decodedsize.Of(c.goType).Tree(tree) }

// ToTree implements object.Codec.
func (c *Codec) ToTree(versioned runtime.Object) (map[string]any, error) {
	return runtime.DefaultUnstructuredConverter.ToUnstructured(c.Named(versioned))
}

// DecodeStrict reads a request body. unknown lists unknown and duplicate fields, in upstream's
// words, for the caller to ignore, warn of or refuse as fieldValidation says; err is an API
// status. The object is not defaulted.
func (c *Codec) DecodeStrict(data []byte, mediaType string) (o runtime.Object, unknown []error, err error) {
	if err := c.Bound(data, mediaType); err != nil {
		return nil, nil, err
	}
	if mediaType == object.JSON {
		if o, unknown := c.quickStrict(data); o != nil {
			return o, unknown, nil
		}
	}
	s, err := c.serializer(mediaType, true)
	if err != nil {
		return nil, nil, err
	}
	return c.decode(s, data)
}

// DecodeStored reads a stored value: protobuf, JSON or CBOR, of any version that the scheme
// has. The answer is of the version that gvk says, and is defaulted.
func (c *Codec) DecodeStored(data []byte) (o runtime.Object, gvk schema.GroupVersionKind, err error) {
	media := object.JSON
	if bytes.HasPrefix(data, []byte(envelope.Prefix)) {
		media = object.Protobuf
		if o := c.quickProto(data); o != nil {
			c.scheme.Default(o)
			return o, c.gvk, nil
		}
	}
	s := c.wire[media].lenient
	if d, ok := c.wire[object.CBOR].lenient.(recognizer.RecognizingDecoder); ok && media == object.JSON {
		if yes, _, _ := d.RecognizesData(data); yes {
			s = c.wire[object.CBOR].lenient
		}
	}
	o, got, err := s.Decode(data, &c.gvk, c.Empty())
	if err != nil {
		return nil, gvk, fmt.Errorf("decode a stored %s: %w", c.gvk.Kind, err)
	}
	c.scheme.Default(o)
	if *got == c.gvk {
		o.GetObjectKind().SetGroupVersionKind(c.gvk)
	}
	return o, *got, nil
}
