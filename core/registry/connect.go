// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/judging"
	"github.com/wasmplane/wasmplane/core/registry/transient"
)

// AdmitConnect asks admission about a connection to an object: exec, attach,
// port-forward, proxy. options are those of the connection, of kind.
func (r *Registry) AdmitConnect(ctx context.Context, req *Request, kind schema.GroupVersionKind, options runtime.Object) error {
	question := &admission.Request{
		UID:         newUID(),
		Operation:   admission.Connect,
		Kind:        kind,
		Resource:    r.gvr(req),
		Subresource: req.Subresource,
		Namespace:   req.Namespace,
		Name:        req.Name,
		User:        req.User,
		Object:      object.FromVersioned(transient.Codec{GVK: kind}, options),
	}
	defer judging.PassOn(ctx, question)
	if err := r.cfg.Admission.Mutate(ctx, question); err != nil {
		return err
	}
	return r.cfg.Admission.Validate(ctx, question)
}

// Read gets one built-in object in its v1 form, as fresh as can be. It is shared.
func Read[T runtime.Object](ctx context.Context, s *Set, gr schema.GroupResource, namespace, name string) (T, error) {
	var none T
	r, err := s.Builtin(gr)
	if err != nil {
		return none, err
	}
	o, err := r.Get(ctx, &Request{Version: "v1", Namespace: namespace, Name: name}, "")
	if err != nil {
		return none, err
	}
	versioned, err := o.Versioned()
	if err != nil {
		return none, apierrors.NewInternalError(err)
	}
	typed, ok := versioned.(T)
	if !ok {
		return none, apierrors.NewNotFound(gr, name)
	}
	return typed, nil
}

// ReadNode and ReadPod are what connections need.
func (s *Set) ReadNode(ctx context.Context, name string) (*corev1.Node, error) {
	return Read[*corev1.Node](ctx, s, schema.GroupResource{Resource: "nodes"}, "", name)
}

// ReadPod reads one pod, as fresh as can be. It is shared.
func (s *Set) ReadPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return Read[*corev1.Pod](ctx, s, schema.GroupResource{Resource: "pods"}, namespace, name)
}

// Builtin finds a built-in resource that another one depends on.
func (s *Set) Builtin(gr schema.GroupResource) (*Registry, error) {
	if r, ok := s.For(gr); ok {
		return r, nil
	}
	return nil, apierrors.NewInternalError(errors.New("this server does not serve " + gr.String()))
}
