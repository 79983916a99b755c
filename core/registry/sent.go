// SPDX-License-Identifier: Apache-2.0

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

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/api/ownership"
	"github.com/wasmplane/wasmplane/core/api/strategic"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/options"
	"github.com/wasmplane/wasmplane/core/registry/transient"
)

// Sent is what a request brings where that is an object of a kind that is sent and
// never stored. It has no strategy: whoever answers it validates it.
type Sent struct {
	w     *write
	codec transient.Codec
}

// Sent reads the body or the patch of a request as an object of a kind.
func (r *Registry) Sent(req *Request, kind schema.GroupVersionKind) *Sent {
	codec := transient.Codec{GVK: kind}
	return &Sent{w: &write{r: r, req: req, opts: options.Of(req.Options), codec: codec}, codec: codec}
}

// Decode decodes the request's body, checking fields as its options say.
func (s *Sent) Decode(ctx context.Context) (runtime.Object, error) {
	o, strict, err := s.codec.DecodeStrict(s.w.req.Body, s.w.req.MediaType, s.w.checksFields())
	if err != nil {
		return nil, err
	}
	if len(strict) > 0 && s.w.opts.Validation == metav1.FieldValidationStrict {
		kind := s.codec.GVK
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", kind.Kind, kind.Version, kind.Kind,
			runtime.NewStrictDecodingError(strict)))
	}
	warnStrict(ctx, strict)
	return o, nil
}

// Patch applies the request's patch, of whatever type, to now, and writes into the
// managed fields of what it returns who changed what.
func (s *Sent) Patch(ctx context.Context, owners ownership.Upstream, now runtime.Object) (runtime.Object, error) {
	w := s.w
	if w.isApply() {
		return w.applyWith(ctx, owners, now, nil)
	}
	if err := w.patch().Check(); err != nil {
		return nil, err
	}
	before, err := json.Marshal(now)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	var after []byte
	var strict []error
	if w.req.PatchType == types.StrategicMergePatchType {
		patch := map[string]any{}
		if json.Unmarshal(w.req.Body, &patch) == nil { // else the merge says what is wrong with it
			if err := strategic.Bound(nil, patch); err != nil { // these kinds have no lists of their own
				return nil, err
			}
		}
		if after, err = strategicpatch.StrategicMergePatch(before, w.req.Body, now); err != nil {
			err = apierrors.NewBadRequest(err.Error())
		}
	} else {
		after, strict, err = w.patchJSON(before)
	}
	if err != nil {
		return nil, err
	}
	next, unknown, err := s.codec.DecodeStrict(after, object.JSON, w.checksFields())
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
	return s.w.checkIdentity(object.FromVersioned(s.codec, o), nil)
}

// Admit asks admission about o, which a request with the operation brings, and
// returns what admission left. old is nil for a create.
func (s *Sent) Admit(ctx context.Context, op admission.Operation, o, old runtime.Object) (runtime.Object, error) {
	obj := object.FromVersioned(s.codec, o)
	var was *object.Object
	if old != nil {
		was = object.FromVersioned(s.codec, old)
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
		return nil, badObject(err)
	}
	return out, nil
}
