package registry

import (
	"context"
	"encoding/json"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/wasmplane/wasmplane/core/object"
)

func scaleCodec() plain { return plain{autoscalingv1.SchemeGroupVersion.WithKind("Scale")} }

// getScale reads an object's scale.
func (r *Registry) getScale(ctx context.Context, req *Request) (runtime.Object, error) {
	key, err := r.key(req.Namespace, req.Name)
	if err != nil {
		return nil, err
	}
	item, err := r.stored(ctx, key)
	if err != nil {
		return nil, err
	}
	if item == nil {
		return nil, apierrors.NewNotFound(r.res.GroupResource, req.Name)
	}
	live, err := r.view(ctx, item, req.Version)
	if err != nil {
		return nil, err
	}
	return r.answeredScale(live, req.Version)
}

// answeredScale is the scale as clients see it. That of a built-in kind shows no
// managed fields: they are the object's, where they can be read and written.
func (r *Registry) answeredScale(o *object.Object, version string) (*autoscalingv1.Scale, error) {
	scale, err := r.scaleOf(o, version, false)
	if err == nil && r.res.Custom == nil {
		scale.ManagedFields = nil
	}
	return scale, err
}

func (r *Registry) scaleOf(o *object.Object, version string, forUpdate bool) (*autoscalingv1.Scale, error) {
	internal, err := Internal(o)
	if err != nil {
		return nil, err
	}
	scale, err := r.cfg.Contract.ScaleFrom(r.res, version, internal, forUpdate)
	if err != nil {
		return nil, badConversion(err)
	}
	return scale, nil
}

// putScale changes how many replicas an object wants. next makes the wanted
// scale of the present one; the object itself goes through its own strategy.
func (r *Registry) putScale(ctx context.Context, req *Request, next func(ctx context.Context, w *write, now *autoscalingv1.Scale) (*autoscalingv1.Scale, error)) (runtime.Object, error) {
	own := *req
	own.Subresource = ""
	w, err := r.newWrite(&own)
	if err != nil {
		return nil, err
	}
	said := &write{r: r, req: req, opts: w.opts, codec: scaleCodec()}
	w.change = func(ctx context.Context, live *object.Object) (*object.Object, error) {
		now, err := r.scaleOf(live, req.Version, true)
		if err != nil {
			return nil, err
		}
		scale, err := next(ctx, said, now.DeepCopy())
		if err != nil {
			return nil, err
		}
		if scale, err = r.admitScale(ctx, said, scale, now); err != nil {
			return nil, err
		}
		internal, err := Internal(live)
		if err != nil {
			return nil, err
		}
		changed, err := r.cfg.Contract.ApplyScale(r.res, req.Version, internal, scale)
		if err != nil {
			return nil, err
		}
		return object.FromInternal(w.codec, changed), nil
	}
	w.unasked = true
	result, err := w.run(ctx)
	if err != nil {
		return nil, err
	}
	return r.answeredScale(result.Object, req.Version)
}

// admitScale lets plugins judge the scale, which is what was asked for, and not
// the object behind it.
func (r *Registry) admitScale(ctx context.Context, said *write, scale, now *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	switch {
	case scale.Name == "":
		return nil, nameless(said.req.Name)
	case scale.Namespace != "" && scale.Namespace != now.Namespace:
		return nil, apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	case scale.Name != said.req.Name:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", scale.Name, said.req.Name))
	}
	scale.Name, scale.Namespace = now.Name, now.Namespace
	obj := object.FromVersioned(said.codec, scale)
	asked := said.admission("UPDATE", updateOptions(said.req.Options), obj, object.FromVersioned(said.codec, now))
	if err := said.mutate(ctx, asked); err != nil {
		return nil, err
	}
	if err := said.validate(ctx, asked); err != nil {
		return nil, err
	}
	o, err := obj.Versioned()
	if err != nil {
		return nil, badObject(err)
	}
	out, ok := o.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("admission turned a Scale into a %T", o))
	}
	return out, nil
}

func (r *Registry) updateScale(ctx context.Context, req *Request) (runtime.Object, error) {
	body, err := said(ctx, scaleCodec(), req)
	if err != nil {
		return nil, err
	}
	o, err := body.Versioned()
	if err != nil {
		return nil, badObject(err)
	}
	scale, ok := o.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Scale object: %T", o))
	}
	return r.putScale(ctx, req, func(_ context.Context, w *write, now *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
		return w.ownScale(now, scale.DeepCopy())
	})
}

func (r *Registry) patchScale(ctx context.Context, req *Request) (runtime.Object, error) {
	return r.putScale(ctx, req, func(ctx context.Context, w *write, now *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
		return w.patchedScale(ctx, now)
	})
}

// ownScale writes into next's managed fields who set the replicas.
func (w *write) ownScale(now, next *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	fm, err := w.r.cfg.Contract.ScaleFieldManager()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return w.asScale(fm.UpdateNoErrors(now, next, w.req.Manager))
}

func (w *write) asScale(o runtime.Object) (*autoscalingv1.Scale, error) {
	scale, err := w.r.cfg.Contract.ScaleOf(o)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return scale, nil
}

// patchedScale applies the request's patch to the present scale.
func (w *write) patchedScale(ctx context.Context, now *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	if w.req.PatchType == types.ApplyYAMLPatchType || w.req.PatchType == types.ApplyCBORPatchType {
		return w.appliedScale(ctx, now)
	}
	if !json.Valid(w.req.Body) {
		return nil, apierrors.NewBadRequest("invalid JSON patch")
	}
	before, err := json.Marshal(now)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	var after []byte
	var strict []error
	switch w.req.PatchType {
	case types.JSONPatchType:
		after, strict, err = w.jsonPatch(before)
	case types.MergePatchType:
		after, strict, err = w.mergePatch(before)
	default:
		if after, err = strategicpatch.StrategicMergePatch(before, w.req.Body, autoscalingv1.Scale{}); err != nil {
			err = apierrors.NewBadRequest(err.Error())
		}
	}
	if err != nil {
		return nil, err
	}
	o, unknown, err := scaleCodec().decode(after, object.JSON, w.checksFields())
	if err != nil {
		return nil, invalid(schema.GroupKind{}, "", field.Invalid(field.NewPath("patch"), string(after), err.Error()))
	}
	if err := w.strictness(ctx, append(strict, unknown...), string(after)); err != nil {
		return nil, err
	}
	next, ok := o.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Scale object: %T", o))
	}
	return w.ownScale(now, next)
}

func (w *write) appliedScale(ctx context.Context, now *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	fm, err := w.r.cfg.Contract.ScaleFieldManager()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	next, err := w.applyWith(ctx, fm, now)
	if err != nil {
		return nil, err
	}
	return w.asScale(next)
}
