// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/judging"
	"github.com/wasmplane/wasmplane/core/registry/optimistic"
	"github.com/wasmplane/wasmplane/core/store"
)

// Create makes an object of the request's body.
func (r *Registry) Create(ctx context.Context, req *Request) (Result, error) {
	ctx = r.Context(ctx, req)
	w, err := r.newWrite(req)
	if err != nil {
		return Result{}, err
	}
	o, err := w.Decode(ctx)
	if err != nil {
		return Result{}, err
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return Result{}, apierrors.NewInternalError(err)
	}
	if r.res.Group == "" && r.res.GroupResource.Resource == "namespaces" && req.Namespace == "" {
		// A namespace is its own namespace, for authorization as for admission.
		req.Namespace = m.GetName()
		ctx = r.Context(ctx, req)
	}
	w.creates = true
	w.change = func(ctx context.Context, _ *object.Object) (*object.Object, error) {
		mine := o
		if o = nil; mine == nil { // it is judged again, and those who judged it have changed it
			if mine, err = w.Decode(ctx); err != nil {
				return nil, err
			}
		}
		return w.Owned(ctx, nil, mine)
	}
	return judging.Again(ctx, r.cfg.Store, r.set.turns, r.res.Group, w.create)
}

// Update replaces an object, or that part of it that a subresource stands for,
// by the request's body.
func (r *Registry) Update(ctx context.Context, req *Request) (Result, error) {
	ctx = r.Context(ctx, req)
	w, err := r.newWrite(req)
	if err != nil {
		return Result{}, err
	}
	o, err := w.Decode(ctx)
	if err != nil {
		return Result{}, err
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return Result{}, apierrors.NewInternalError(err)
	}
	if m.GetName() == "" {
		return Result{}, nameless(req.Name)
	}
	uid := m.GetUID()
	w.creates = req.Subresource == "" && w.strategy.AllowCreateOnUpdate(ctx)
	w.change = func(ctx context.Context, current *object.Object) (*object.Object, error) {
		if err := w.checkUID(uid, current); err != nil {
			return nil, err
		}
		mine := o
		o = nil          // Owned changes what it is given
		if mine == nil { // so another attempt decodes it again
			if mine, err = w.Decode(ctx); err != nil {
				return nil, err
			}
		}
		return w.Owned(ctx, current, mine)
	}
	return w.run(ctx)
}

// Patch changes an object as the request's patch says; an apply patch creates it
// where it does not exist.
func (r *Registry) Patch(ctx context.Context, req *Request) (Result, error) {
	ctx = r.Context(ctx, req)
	w, err := r.newWrite(req)
	if err != nil {
		return Result{}, err
	}
	w.creates = w.IsApply() && req.Subresource == ""
	w.change = w.Body.Patch
	return w.run(ctx)
}

func (r *Registry) newWrite(req *Request) (*write, error) {
	w := &write{r: r, req: req, Body: r.body(req, r.res.Codec(req.Version))}
	if w.Codec == nil {
		return nil, apierrors.NewNotFound(r.res.GroupResource, req.Name)
	}
	if req.Subresource != "" && !r.res.WritesThrough(req.Version, req.Subresource) {
		return nil, apierrors.NewMethodNotSupported(r.res.GroupResource, "update "+req.Subresource)
	}
	var err error
	if w.strategy, err = r.res.Writer(req.Version, req.Subresource); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return w, nil
}

// run carries the write out on the current object.
func (w *write) run(ctx context.Context) (Result, error) {
	var err error
	if w.key, err = w.r.reads.Key(w.req.Namespace, w.req.Name); err != nil {
		return Result{}, err
	}
	return w.r.onNewest(ctx, w.key, w.apply)
}

// checkUID refuses an update that was meant for another object of this name.
func (w *write) checkUID(uid types.UID, current *object.Object) error {
	if uid == "" {
		return nil
	}
	if current == nil {
		return w.r.reads.Conflict(w.req.Name, fmt.Sprintf("Precondition failed: UID in precondition: %v, UID in object meta: ", uid))
	}
	m, err := current.Meta()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if m.GetUID() != uid {
		return w.r.reads.Conflict(w.req.Name, fmt.Sprintf("Precondition failed: UID in precondition: %v, UID in object meta: %v", uid,
			m.GetUID()))
	}
	return nil
}

// finalized says whether the write takes the last thing away that a deletion
// waits for, so that it deletes instead of storing.
func (w *write) finalized(obj, old *object.Object) (bool, error) {
	next, err := obj.Meta()
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	was, err := old.Meta()
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	if len(next.GetFinalizers()) > 0 || was.GetDeletionTimestamp() == nil {
		return false, nil
	}
	if grace := was.GetDeletionGracePeriodSeconds(); grace != nil && *grace > 0 {
		return false, nil
	}
	return !w.r.heldByNamespace(obj), nil
}

// remove deletes the object whose last finalizer the write took away.
func (w *write) remove(ctx context.Context, obj *object.Object, at optimistic.Snapshot) (Result, error) {
	if !w.Options.IsDryRun() {
		_, err := store.DeleteFenced(ctx, w.r.cfg.Store, w.key, at.Item.Revision, judging.Fences(ctx, w.r.res.Group))
		if err := w.r.reads.StoreError(err, "delete", w.req.Name); err != nil && !apierrors.IsNotFound(err) {
			return Result{}, err
		}
		w.r.released(ctx, at.Item)
	}
	return Result{Object: obj, Deleted: true}, nil
}
