// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/judging"
	"github.com/wasmplane/wasmplane/core/registry/optimistic"
	"github.com/wasmplane/wasmplane/core/registry/options"
	"github.com/wasmplane/wasmplane/core/registry/wanted"
)

// Change is a write of the server's own, without strategy or admission: f
// changes a copy of the newest state, in the storage version, and is called
// again where somebody else was faster. It answers what was stored, in that version.
// dryRun is that of the options of the request behind it.
func (r *Registry) Change(ctx context.Context, namespace, name string, dryRun []string,
	f func(o runtime.Object) error,
) (*object.Object, error) {
	return r.ChangeJudged(ctx, namespace, name, dryRun, nil, f)
}

// ChangeJudged is Change, held against what judge looks at: each attempt asks it before it writes. nil = nothing.
func (r *Registry) ChangeJudged(ctx context.Context, namespace, name string, dryRun []string,
	judge func(ctx context.Context) error, f func(o runtime.Object) error,
) (*object.Object, error) {
	key, err := r.reads.Key(namespace, name)
	if err != nil {
		return nil, err
	}
	result, err := r.onNewest(ctx, key, func(ctx context.Context, at optimistic.Snapshot) (Result, error) {
		if at.Item == nil {
			return Result{}, apierrors.NewNotFound(r.res.GroupResource, name)
		}
		versioned, err := at.Item.Object.Versioned()
		if err != nil {
			return Result{}, apierrors.NewInternalError(err)
		}
		next := versioned.DeepCopyObject()
		if err := f(next); err != nil {
			return Result{}, err
		}
		if judge != nil {
			ctx = judging.Begin(ctx, r.cfg.Store)
			if err := judge(ctx); err != nil {
				return Result{}, err
			}
		}
		w := &write{r: r, key: key, Body: wanted.Body{Codec: r.res.StorageCodec(), Options: options.Options{DryRun: dryRun}}}
		return w.store(ctx, object.FromVersioned(w.Codec, next), at.Item)
	})
	return result.Object, err
}

// Rewrite replaces an object by what change makes of its newest state, in the
// version of the request. The strategy judges it, and admission too unless the
// request is Admitted. change is called again where somebody else was faster; what
// it returns is its own.
func (r *Registry) Rewrite(ctx context.Context, req *Request,
	change func(ctx context.Context, current *object.Object) (*object.Object, error),
) (Result, error) {
	w, err := r.newWrite(req)
	if err != nil {
		return Result{}, err
	}
	w.change = change
	return w.run(ctx)
}

// CheckPreconditions holds an object against what a client demands of it.
func (r *Registry) CheckPreconditions(m metav1.Object, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	if p.UID != nil && *p.UID != "" && *p.UID != m.GetUID() {
		return r.reads.Conflict(m.GetName(),
			"Precondition failed: UID in precondition: "+string(*p.UID)+", UID in object meta: "+string(m.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != "" && *p.ResourceVersion != m.GetResourceVersion() {
		return r.reads.Conflict(m.GetName(),
			"Precondition failed: ResourceVersion in precondition: "+*p.ResourceVersion+", ResourceVersion in object meta: "+m.GetResourceVersion())
	}
	return nil
}
