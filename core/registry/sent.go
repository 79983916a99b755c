// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/options"
	"github.com/wasmplane/wasmplane/core/registry/transient"
	"github.com/wasmplane/wasmplane/core/registry/wanted"
)

// Sent is what a request brings where that is an object of a kind that is sent and
// never stored. It has no strategy: whoever answers it validates it.
type Sent struct {
	wanted.Sent
	w *write
}

// Sent reads the body or the patch of a request as an object of a kind.
func (r *Registry) Sent(req *Request, kind schema.GroupVersionKind) *Sent {
	codec := transient.Codec{GVK: kind}
	w := &write{r: r, req: req, Body: r.body(req, codec)}
	return &Sent{Sent: wanted.Sent{Body: &w.Body, Kind: codec}, w: w}
}

// CheckIdentity holds an object against the name and namespace of the request.
func (s *Sent) CheckIdentity(o runtime.Object) error {
	return s.w.checkIdentity(object.FromVersioned(s.Kind, o), nil)
}

// Admit asks admission about o, which a request with the operation brings, and
// returns what admission left. old is nil for a create.
func (s *Sent) Admit(ctx context.Context, op admission.Operation, o, old runtime.Object) (runtime.Object, error) {
	obj := object.FromVersioned(s.Kind, o)
	var was *object.Object
	if old != nil {
		was = object.FromVersioned(s.Kind, old)
	}
	var how runtime.Object = options.Create(s.w.req.Options)
	if op == admission.Update {
		how = options.Update(s.w.req.Options)
	}
	question := s.w.admission(op, how, obj, was)
	if err := s.w.mutate(ctx, question); err != nil {
		return nil, err
	}
	if err := s.w.validate(ctx, question); err != nil {
		return nil, err
	}
	out, err := obj.Versioned()
	if err != nil {
		return nil, wanted.Refusal(err)
	}
	return out, nil
}

// body is what a request sends, as wanted reads it.
func (r *Registry) body(req *Request, codec object.Codec) wanted.Body {
	return wanted.Body{
		Contract: r.cfg.Contract, Resource: r.res, Codec: codec, Version: req.Version, Subresource: req.Subresource, Name: req.Name,
		Manager: req.Manager, Options: options.Of(req.Options), Data: req.Body, MediaType: req.MediaType, PatchType: req.PatchType,
	}
}
