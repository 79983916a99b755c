// SPDX-License-Identifier: Apache-2.0

package wanted

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/api/decodedsize"
	"github.com/wasmplane/wasmplane/core/api/ownership"
	"github.com/wasmplane/wasmplane/core/api/strategic"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/transient"
)

// Sent is a body where it is an object of a kind that is sent and never stored. It has
// no strategy: whoever answers it validates it. The body's resource is the one that the request names.
type Sent struct {
	*Body
	Kind transient.Codec
}

// Decode decodes the request's body, checking fields as its options say.
func (s Sent) Decode(ctx context.Context) (runtime.Object, error) {
	if err := decodedsize.NeedDecoded(ctx, decodedsize.Decoded, s.Kind.Size(s.Data, s.MediaType), s.MediaType); err != nil {
		return nil, err
	}
	o, strict, err := s.Kind.DecodeStrict(s.Data, s.MediaType, s.checksFields())
	if err != nil {
		return nil, err
	}
	if len(strict) > 0 && s.Options.Validation == metav1.FieldValidationStrict {
		kind := s.Kind.GVK
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", kind.Kind, kind.Version, kind.Kind,
			runtime.NewStrictDecodingError(strict)))
	}
	warnStrict(ctx, strict)
	return o, nil
}

// Patch applies the request's patch, of whatever type, to now, and writes into the
// managed fields of what it returns who changed what.
func (s Sent) Patch(ctx context.Context, owners ownership.Upstream, now runtime.Object) (runtime.Object, error) {
	if err := s.needPatch(ctx, s.patchMediaType()); err != nil {
		return nil, err
	}
	if s.IsApply() {
		return s.applyWith(ctx, owners, now, nil)
	}
	if err := s.patch().Check(); err != nil {
		return nil, err
	}
	before, err := json.Marshal(now)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	var after []byte
	var strict []error
	if s.PatchType == types.StrategicMergePatchType {
		if after, err = strategic.MergeJSON(before, s.Data, now); err != nil {
			err = Refusal(err)
		}
	} else {
		after, strict, err = s.patchJSON(before)
	}
	if err != nil {
		return nil, err
	}
	if err := decodedsize.NeedDecoded(ctx, decodedsize.Result, s.Kind.Size(after, object.JSON), object.JSON); err != nil {
		return nil, err
	}
	next, unknown, err := s.Kind.DecodeStrict(after, object.JSON, s.checksFields())
	if err != nil {
		return nil, undecodable(after, err)
	}
	if err := s.strictness(ctx, append(strict, unknown...), string(after)); err != nil {
		return nil, err
	}
	return owners.UpdateNoErrors(now, next, s.Manager), nil
}
