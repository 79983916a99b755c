// SPDX-License-Identifier: Apache-2.0

package admissiontest

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
)

// Someone is an ordinary user.
func Someone() user.Info {
	return &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}}
}

// Option changes a request that is being made.
type Option func(*admission.Request)

// By sets who asks.
func By(u user.Info) Option { return func(r *admission.Request) { r.User = u } }

// Subresource sets the subresource.
func Subresource(name string) Option { return func(r *admission.Request) { r.Subresource = name } }

// Creating is the creation of o, an object of k8s.io/api.
func Creating(resource string, o runtime.Object, opts ...Option) *admission.Request {
	return request(admission.Create, resource, o, nil, &metav1.CreateOptions{}, opts)
}

// Updating is the update of old to o.
func Updating(resource string, old, o runtime.Object, opts ...Option) *admission.Request {
	return request(admission.Update, resource, o, old, &metav1.UpdateOptions{}, opts)
}

// Deleting is the deletion of old.
func Deleting(resource string, old runtime.Object, opts ...Option) *admission.Request {
	return request(admission.Delete, resource, nil, old, &metav1.DeleteOptions{}, opts)
}

func request(op admission.Operation, resource string, o, old runtime.Object, options runtime.Object, opts []Option) *admission.Request {
	some := o
	if some == nil {
		some = old
	}
	codec := Codec(some)
	m, err := meta.Accessor(some)
	if err != nil {
		m = &metav1.ObjectMeta{}
	}
	r := &admission.Request{
		UID: "req", Operation: op, Kind: codec.Kind(), Resource: codec.Kind().GroupVersion().WithResource(resource),
		Namespace: m.GetNamespace(), Name: m.GetName(), User: Someone(), Options: options,
	}
	if o != nil {
		r.Object = object.FromVersioned(codec, o.DeepCopyObject())
	}
	if old != nil {
		r.OldObject = object.FromVersioned(codec, old.DeepCopyObject())
	}
	for _, f := range opts {
		f(r)
	}
	return r
}

// Codec is a codec for objects of k8s.io/api: the versioned form is all that
// there is, and nothing is defaulted.
func Codec(o runtime.Object) object.Codec {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return object.Unstructured{GVK: o.GetObjectKind().GroupVersionKind()}
	}
	return typed{kinds[0]}
}

type typed struct{ gvk schema.GroupVersionKind }

func (c typed) Kind() schema.GroupVersionKind { return c.gvk }

func (c typed) Decode(data []byte, mediaType string) (runtime.Object, error) {
	if mediaType != object.JSON {
		return nil, fmt.Errorf("media type %q: the suite's codec reads %s only", mediaType, object.JSON)
	}
	codecs := serializer.NewCodecFactory(scheme.Scheme)
	o, _, err := codecs.UniversalDeserializer().Decode(data, &c.gvk, nil)
	return o, err
}

func (c typed) Default(runtime.Object) {}

func (c typed) Internal(o runtime.Object) (runtime.Object, error)  { return o, nil }
func (c typed) Versioned(o runtime.Object) (runtime.Object, error) { return o, nil }

func (c typed) Encode(o runtime.Object, mediaType string) ([]byte, error) {
	info, ok := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(scheme.Scheme).SupportedMediaTypes(), mediaType)
	if !ok {
		return nil, fmt.Errorf("media type %q is not known", mediaType)
	}
	return runtime.Encode(serializer.NewCodecFactory(scheme.Scheme).EncoderForVersion(info.Serializer, c.gvk.GroupVersion()), o)
}

func (c typed) FromTree(tree map[string]any) (runtime.Object, error) {
	o, err := scheme.Scheme.New(c.gvk)
	if err != nil {
		return nil, err
	}
	return o, runtime.DefaultUnstructuredConverter.FromUnstructured(tree, o)
}

func (c typed) ToTree(o runtime.Object) (map[string]any, error) {
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err == nil {
		tree["apiVersion"], tree["kind"] = c.gvk.ToAPIVersionAndKind()
	}
	return tree, err
}

// Mutating is a Mutator made of a function, for tests of chains.
func Mutating(name string, f func(ctx context.Context, r *admission.Request) error) admission.Mutator {
	return mutating{named(name), f}
}

// Validating is a Validator made of a function.
func Validating(name string, f func(ctx context.Context, r *admission.Request) error) admission.Validator {
	return validating{named(name), f}
}

type named string

func (n named) Name() string                    { return string(n) }
func (n named) Handles(*admission.Request) bool { return true }

type mutating struct {
	named
	f func(ctx context.Context, r *admission.Request) error
}

func (m mutating) Mutate(ctx context.Context, r *admission.Request) error { return m.f(ctx, r) }

type validating struct {
	named
	f func(ctx context.Context, r *admission.Request) error
}

func (v validating) Validate(ctx context.Context, r *admission.Request) error { return v.f(ctx, r) }
