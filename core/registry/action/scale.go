// SPDX-License-Identifier: Apache-2.0

package action

import (
	"context"
	"errors"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry"
)

// getScale reads how many replicas an object wants and has.
type getScale struct{ contract *api.Contract }

// Do implements Action.
func (s getScale) Do(ctx context.Context, r *registry.Registry, req *registry.Request) (runtime.Object, error) {
	current, err := r.Get(ctx, req, "")
	if err != nil {
		return nil, err
	}
	return scaling{s.contract, r, req}.answer(current)
}

// updateScale replaces an object's scale by the request's body.
type updateScale struct{ contract *api.Contract }

// Do implements Action.
func (s updateScale) Do(ctx context.Context, r *registry.Registry, req *registry.Request) (runtime.Object, error) {
	o, err := r.Sent(req, scaleKind()).Decode(ctx)
	if err != nil {
		return nil, err
	}
	scale, ok := o.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Scale object: %T", o))
	}
	c := scaling{s.contract, r, req}
	return c.put(ctx, func(_ context.Context, _ *registry.Sent, now *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
		return c.own(now, scale.DeepCopy())
	})
}

// patchScale changes an object's scale as the request's patch says.
type patchScale struct{ contract *api.Contract }

// Do implements Action.
func (s patchScale) Do(ctx context.Context, r *registry.Registry, req *registry.Request) (runtime.Object, error) {
	c := scaling{s.contract, r, req}
	return c.put(ctx, c.patch)
}

// scaling is one request for a scale.
type scaling struct {
	contract *api.Contract
	registry *registry.Registry
	req      *registry.Request
}

// answer is the scale as clients see it. That of a built-in kind shows no managed
// fields: they are the object's, where they can be read and written.
func (c scaling) answer(o *object.Object) (*autoscalingv1.Scale, error) {
	scale, err := c.of(o, false)
	if err == nil && c.registry.Resource().Custom == nil {
		scale.ManagedFields = nil
	}
	return scale, err
}

// of is an object's scale. withOwners adds who owns its fields, which a write needs.
func (c scaling) of(o *object.Object, withOwners bool) (*autoscalingv1.Scale, error) {
	internal, err := registry.Internal(o)
	if err != nil {
		return nil, err
	}
	scale, err := c.contract.ScaleFrom(c.registry.Resource(), c.req.Version, internal, withOwners)
	if err != nil {
		return nil, badConversion(err)
	}
	return scale, nil
}

// put changes how many replicas an object wants. next makes the wanted scale of
// the present one; the object itself goes through its own strategy. Admission is
// asked about the scale, which is what the client sent, and not about the object.
func (c scaling) put(ctx context.Context,
	next func(ctx context.Context, sent *registry.Sent, now *autoscalingv1.Scale) (*autoscalingv1.Scale, error),
) (runtime.Object, error) {
	own := *c.req
	own.Subresource, own.Admitted = "", true
	result, err := c.registry.Rewrite(ctx, &own, func(ctx context.Context, current *object.Object) (*object.Object, error) {
		now, err := c.of(current, true)
		if err != nil {
			return nil, err
		}
		sent := c.registry.Sent(c.req, scaleKind())
		scale, err := next(ctx, sent, now.DeepCopy())
		if err != nil {
			return nil, err
		}
		if scale, err = c.admit(ctx, sent, scale, now); err != nil {
			return nil, err
		}
		internal, err := registry.Internal(current)
		if err != nil {
			return nil, err
		}
		changed, err := c.contract.ApplyScale(c.registry.Resource(), c.req.Version, internal, scale)
		if err != nil {
			return nil, err
		}
		return object.FromInternal(c.registry.Resource().Codec(c.req.Version), changed), nil
	})
	if err != nil {
		return nil, err
	}
	return c.answer(result.Object)
}

func (c scaling) admit(ctx context.Context, sent *registry.Sent, scale, now *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	if err := sent.CheckIdentity(scale); err != nil {
		return nil, err
	}
	scale.Name, scale.Namespace = now.Name, now.Namespace
	o, err := sent.Admit(ctx, admission.Update, scale, now)
	if err != nil {
		return nil, err
	}
	out, ok := o.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("admission turned a Scale into a %T", o))
	}
	return out, nil
}

// patch applies the request's patch to the present scale.
func (c scaling) patch(ctx context.Context, sent *registry.Sent, now *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	owners, err := c.contract.ScaleFieldManager()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	o, err := sent.Patch(ctx, owners, now)
	if err != nil {
		return nil, err
	}
	return c.asScale(o)
}

// own writes into next's managed fields who set the replicas.
func (c scaling) own(now, next *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	owners, err := c.contract.ScaleFieldManager()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return c.asScale(owners.UpdateNoErrors(now, next, c.req.Manager))
}

func (c scaling) asScale(o runtime.Object) (*autoscalingv1.Scale, error) {
	scale, err := c.contract.ScaleOf(o)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return scale, nil
}

func scaleKind() schema.GroupVersionKind { return autoscalingv1.SchemeGroupVersion.WithKind("Scale") }

// badConversion is an error of converting to or from the storage version, which
// may be an API status of whoever converts.
func badConversion(err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return err
	}
	return apierrors.NewInternalError(err)
}
