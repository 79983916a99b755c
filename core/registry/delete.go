// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/compare"
	"github.com/wasmplane/wasmplane/core/registry/deletion"
	"github.com/wasmplane/wasmplane/core/registry/judging"
	"github.com/wasmplane/wasmplane/core/registry/optimistic"
	"github.com/wasmplane/wasmplane/core/registry/options"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// Delete removes an object, or marks it as being deleted where something has to
// happen before: a grace period, finalizers, dependents that go first.
func (r *Registry) Delete(ctx context.Context, req *Request) (Result, error) {
	ctx = r.Context(ctx, req)
	r.warnOfOrphans(ctx, req)
	return r.deleteOne(ctx, req)
}

func (r *Registry) deleteOne(ctx context.Context, req *Request) (Result, error) {
	key, err := r.reads.Key(req.Namespace, req.Name)
	if err != nil {
		return Result{}, err
	}
	return r.onNewest(ctx, key, func(ctx context.Context, at optimistic.Snapshot) (Result, error) {
		return r.delete(judging.Begin(ctx, r.cfg.Store), req, at)
	})
}

// warnOfOrphans tells whoever deletes jobs without saying what is to become of
// their pods that these stay, unlike those of any other workload.
func (r *Registry) warnOfOrphans(ctx context.Context, req *Request) {
	how := options.Delete(req.Options)
	if r.res.Group != batchv1.GroupName || r.res.GroupResource.Resource != "jobs" || how.PropagationPolicy != nil || how.OrphanDependents != nil { //nolint:staticcheck // deprecated, and still sent
		return
	}
	if s, ok := r.res.DeleteStrategy.(rest.GarbageCollectionDeleteStrategy); ok &&
		s.DefaultGarbageCollectionPolicy(ctx) == rest.OrphanDependents {
		warning.AddWarning(ctx, "", "child pods are preserved by default when jobs are deleted; "+
			"set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning")
	}
}

// delete is one attempt. Which of the cases it is, is decided on a copy of the
// current object by upstream's strategies; options change along the way.
func (r *Registry) delete(ctx context.Context, req *Request, at optimistic.Snapshot) (Result, error) {
	if at.Item == nil {
		return Result{}, apierrors.NewNotFound(r.res.GroupResource, req.Name)
	}
	how := options.Delete(req.Options)
	old, err := r.reads.InVersion(ctx, at.Item, req.Version)
	if err != nil {
		return Result{}, err
	}
	internal, m, err := r.existing(at.Item, old)
	if err != nil {
		return Result{}, err
	}
	if r.isNamespace() || r.res.BeginDelete != nil {
		// Upstream asks these before anything else, in words of its own.
		if err := r.CheckPreconditions(m, how.Preconditions); err != nil {
			return Result{}, err
		}
	}
	graceful, pending, err := rest.BeforeDelete(r.res.DeleteStrategy, ctx, internal, how)
	if err != nil {
		return Result{}, err
	}
	if err := r.admitDelete(ctx, req, old, how); err != nil {
		return Result{}, err
	}
	if pending {
		// The deletion goes on as it was ordered first.
		return Result{Object: old}, optimistic.ErrUnsure
	}
	begins := r.res.BeginDelete != nil && m.GetDeletionTimestamp() == nil
	if begins {
		r.res.BeginDelete(internal)
		now := metav1.NewTime(r.cfg.Now())
		m.SetDeletionTimestamp(&now)
	}
	if finalizers := deletion.Finalizers(ctx, r.res.DeleteStrategy, m, how); !slices.Equal(finalizers, m.GetFinalizers()) {
		m.SetFinalizers(finalizers)
	}
	waits := len(m.GetFinalizers()) > 0
	if !graceful && waits && !begins {
		deletion.Mark(m, r.cfg.Now())
	}
	if r.isNamespace() {
		if waits, err = r.terminate(&internal, waits); err != nil {
			return Result{}, err
		}
	}
	if waits || graceful && how.GracePeriodSeconds != nil && *how.GracePeriodSeconds > 0 {
		return r.mark(ctx, req, internal, old, at)
	}
	return r.remove(ctx, req, internal, at)
}

// mark stores the object with its deletion under way.
func (r *Registry) mark(
	ctx context.Context, req *Request, internal runtime.Object, old *object.Object, at optimistic.Snapshot,
) (Result, error) {
	w := &write{r: r, req: req, Body: r.body(req, r.res.Codec(req.Version)), key: at.Item.Key}
	obj := object.FromInternal(w.Codec, internal)
	if same, err := compare.Unchanged(obj, old); err != nil {
		return Result{}, err
	} else if same {
		return Result{Object: old}, optimistic.ErrUnsure
	}
	return w.store(ctx, obj, at.Item)
}

// remove takes the object out of the store.
func (r *Registry) remove(ctx context.Context, req *Request, internal runtime.Object, at optimistic.Snapshot) (Result, error) {
	revision := at.Item.Revision
	if !options.Of(req.Options).IsDryRun() {
		var err error
		fences := judging.Fences(ctx, r.res.Group)
		if revision, err = store.DeleteFenced(ctx, r.cfg.Store, at.Item.Key, at.Item.Revision, fences); err != nil {
			return Result{}, r.reads.StoreError(err, "delete", req.Name)
		}
		r.set.written.Drop(at.Item.Key)
		r.released(ctx, at.Item)
	}
	codec := r.res.Codec(req.Version)
	versioned, err := codec.Versioned(internal)
	if err != nil {
		return Result{}, apierrors.NewInternalError(err)
	}
	obj, err := r.withRevision(versioned, codec, revision)
	if err != nil {
		return Result{}, err
	}
	result := Result{Object: obj, Deleted: true}
	if !r.res.ReturnDeleted {
		result.Status, err = r.deletedStatus(obj)
	}
	return result, err
}

// deletedStatus lets a client see that exactly its object is gone.
func (r *Registry) deletedStatus(obj *object.Object) (*metav1.Status, error) {
	m, err := obj.Meta()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return &metav1.Status{
		Status:  metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: m.GetName(), Group: r.res.Group, Kind: r.res.GroupResource.Resource, UID: m.GetUID()},
	}, nil
}

func (r *Registry) admitDelete(ctx context.Context, req *Request, old *object.Object, options *metav1.DeleteOptions) error {
	if req.Admitted && req.Judge != nil {
		return req.Judge(ctx)
	}
	if req.Admitted {
		return nil
	}
	question := &admission.Request{
		UID:       newUID(),
		Operation: admission.Delete,
		Kind:      old.Kind(),
		Resource:  r.gvr(req),
		Namespace: req.Namespace,
		Name:      req.Name,
		User:      req.User,
		DryRun:    len(options.DryRun) > 0,
		Options:   options,
		OldObject: old,
	}
	defer judging.PassOn(ctx, question)
	if err := r.cfg.Admission.Mutate(ctx, question); err != nil {
		return err
	}
	return r.cfg.Admission.Validate(ctx, question)
}

func (r *Registry) isNamespace() bool {
	return r.res.Group == "" && r.res.GroupResource.Resource == "namespaces"
}

// terminate marks a namespace as Terminating: it is emptied by the namespace
// controller, which then takes its name out of spec.finalizers. It says whether
// somebody has still to do so.
func (r *Registry) terminate(internal *runtime.Object, waits bool) (bool, error) {
	codec := r.res.Codec("v1")
	versioned, err := codec.Versioned(*internal)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	ns, ok := versioned.(*corev1.Namespace)
	if !ok {
		return false, apierrors.NewInternalError(errors.New("the namespaces resource does not serve v1.Namespace"))
	}
	if len(ns.Spec.Finalizers) == 0 {
		return waits, nil
	}
	deletion.Terminate(ns, r.cfg.Now())
	*internal, err = codec.Internal(ns)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	return true, nil
}

// heldByNamespace: a namespace with finalizers in its spec is not gone yet.
func (r *Registry) heldByNamespace(obj *object.Object) bool {
	if !r.isNamespace() {
		return false
	}
	versioned, err := obj.Versioned()
	if err != nil {
		return true
	}
	ns, ok := versioned.(*corev1.Namespace)
	return !ok || len(ns.Spec.Finalizers) > 0
}

// deletePage is how many objects DeleteCollection reads at a time.
const deletePage = 500

// DeleteCollection deletes what a list with the same options would return, one
// object after the other. It is not atomic; what has gone meanwhile is no error.
func (r *Registry) DeleteCollection(ctx context.Context, req *Request, list ListOptions) (ListResult, error) {
	r.warnOfOrphans(r.Context(ctx, req), req)
	var all ListResult
	limit := list.Limit
	if limit == 0 {
		list.Limit = deletePage
	}
	for {
		page, err := r.List(ctx, req, list)
		if err != nil {
			return all, err
		}
		all.Revision, all.Continue, all.Remaining = page.Revision, page.Continue, page.Remaining
		for _, item := range page.Items {
			if err := ctx.Err(); err != nil {
				return all, r.reads.StoreError(err, "delete collection", "")
			}
			if err := r.deleteListed(ctx, req, item); err != nil {
				return all, err
			}
			all.Items = append(all.Items, item)
		}
		if page.Continue == "" || limit > 0 {
			return all, nil
		}
		// Deleting has moved the state on, so that the pages' revision is of no
		// worth: what was there is what the first page's revision says.
		list.Continue = page.Continue
		list.ResourceVersion, list.ResourceVersionMatch = "", ""
	}
}

// Purge deletes every object as DeleteCollection does, without asking admission:
// the definition of a custom resource is being deleted, and nobody can be asked
// to agree with each of its objects. Finalizers are still waited for. It answers
// how many objects are left.
func (r *Registry) Purge(ctx context.Context, who user.Info) (int, error) {
	version := r.res.StorageVersion.Version
	req := &Request{Version: version, User: who, Options: &metav1.DeleteOptions{}, Admitted: true}
	if _, err := r.DeleteCollection(r.Context(ctx, req), req, ListOptions{}); err != nil {
		return 0, err
	}
	left, err := r.List(ctx, req, ListOptions{})
	return len(left.Items), err
}

func (r *Registry) deleteListed(ctx context.Context, req *Request, item *watchcache.Item) error {
	m, err := item.Object.Meta()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	one := *req
	one.Namespace, one.Name = m.GetNamespace(), m.GetName()
	if _, err := r.deleteOne(r.Context(ctx, &one), &one); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}
