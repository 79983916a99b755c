// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/allocation"
	"github.com/wasmplane/wasmplane/core/registry/bounded"
	"github.com/wasmplane/wasmplane/core/registry/compare"
	"github.com/wasmplane/wasmplane/core/registry/ended"
	"github.com/wasmplane/wasmplane/core/registry/judging"
	"github.com/wasmplane/wasmplane/core/registry/objectmeta"
	"github.com/wasmplane/wasmplane/core/registry/optimistic"
	"github.com/wasmplane/wasmplane/core/registry/options"
	"github.com/wasmplane/wasmplane/core/registry/reader"
	"github.com/wasmplane/wasmplane/core/registry/wanted"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// nameAttempts is how often a taken generated name is replaced by another one.
const nameAttempts = 8

// write is one write under way: what the request wants, in the forms that the
// steps need.
type write struct {
	wanted.Body // what the request sends
	r           *Registry
	req         *Request
	strategy    api.Strategy // of the resource or the subresource
	key         string

	// change makes the wanted object of the current one (nil: there is none). What
	// it returns is defaulted, field managed and owned by the write.
	change func(ctx context.Context, current *object.Object) (*object.Object, error)
	// creates: the write may make an object that does not exist.
	creates bool
}

// apply tells the story of a write on the state l: make the object, let
// admission change it, let the strategy prepare and validate it, let admission
// judge it, put it in place of exactly that state.
func (w *write) apply(ctx context.Context, at optimistic.Snapshot) (Result, error) {
	ctx = judging.Begin(ctx, w.r.cfg.Store)
	if at.Item == nil {
		if !w.creates {
			return Result{}, apierrors.NewNotFound(w.r.res.GroupResource, w.req.Name)
		}
		if err := w.mayCreate(ctx); err != nil {
			return Result{}, err
		}
		return w.create(ctx)
	}
	old, err := w.r.reads.InVersion(ctx, at.Item, w.req.Version)
	if err != nil {
		return Result{}, err
	}
	obj, err := w.change(ctx, old)
	if err != nil {
		return Result{}, err
	}
	if err := w.checkIdentity(obj, old); err != nil {
		return Result{}, err
	}
	if err := w.checkSeen(ctx, obj, at); err != nil {
		return Result{}, err
	}
	question := w.admission(admission.Update, options.Update(w.req.Options), obj, old)
	if err := w.mutate(ctx, question); err != nil {
		return Result{}, err
	}
	claims, err := w.prepareUpdate(ctx, obj, old, at)
	defer claims.End(ctx)
	if err != nil {
		return Result{}, err
	}
	if err := w.guard(ctx, obj, old); err != nil {
		return Result{}, err
	}
	if err := w.validate(ctx, question); err != nil {
		return Result{}, err
	}
	if gone, err := w.finalized(obj, old); err != nil {
		return Result{}, err
	} else if gone {
		return w.remove(ctx, obj, at)
	}
	if same, err := compare.Unchanged(obj, old); err != nil {
		return Result{}, err
	} else if same {
		// An update that changes nothing still writes a value that was encrypted with
		// an old key, or not at all, or encoded in another version than it is now: this
		// is how clients have values encrypted and encoded anew.
		stale := w.r.res.Outdated(at.Item.Object)
		if !stale {
			stale, err = store.Stale(ctx, w.r.cfg.Store, w.key)
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return Result{}, w.r.reads.StoreError(err, "update", w.req.Name)
		}
		if !stale || w.Options.IsDryRun() {
			return Result{Object: old}, optimistic.ErrUnsure
		}
	}
	result, err := w.store(ctx, obj, at.Item)
	if err == nil && !w.Options.IsDryRun() {
		claims.Keep()
	}
	return result, err
}

// mayCreate: the user was authorized for an update or a patch, and that turns
// out to create.
func (w *write) mayCreate(ctx context.Context) error {
	question := authorizer.AttributesRecord{
		User: w.req.User, Verb: "create", Namespace: w.req.Namespace, APIGroup: w.r.res.Group, APIVersion: w.req.Version,
		Resource: w.r.res.GroupResource.Resource, Subresource: w.req.Subresource, Name: w.req.Name, ResourceRequest: true,
	}
	if w.r.cfg.Authorizer == nil {
		return authz.Forbidden(question, "no authorizer can say whether it may create")
	}
	decision, reason, err := w.r.cfg.Authorizer.Authorize(ctx, question)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	return authz.Refused(question, reason, err)
}

// create is apply where nothing exists yet.
func (w *write) create(ctx context.Context) (Result, error) {
	obj, err := w.change(ctx, nil)
	if err != nil {
		return Result{}, err
	}
	if err := w.checkIdentity(obj, nil); err != nil {
		return Result{}, err
	}
	if w.r.res.Terminating {
		return Result{}, w.terminating(obj)
	}
	question := w.admission(admission.Create, options.Create(w.req.Options), obj, nil)
	if err := w.mutate(ctx, question); err != nil {
		return Result{}, err
	}
	admitted, err := obj.Internal()
	if err != nil {
		return Result{}, wanted.Refusal(err)
	}
	for n := 1; ; n++ {
		// Each name is tried on the object as admission left it: the strategy
		// and the allocations may depend on the name.
		internal := admitted
		if generated, m := objectmeta.NeedsName(admitted); generated {
			if n < nameAttempts {
				internal = admitted.DeepCopyObject()
				m, _ = meta.Accessor(internal)
			}
			m.SetName(w.strategy.GenerateName(m.GetGenerateName()))
		}
		result, err := w.createNamed(ctx, obj, internal, question)
		if err == nil {
			return result, nil
		}
		if !apierrors.IsAlreadyExists(err) || internal == admitted {
			return Result{}, err
		}
	}
}

// createNamed is the rest of create, once the object has a name.
func (w *write) createNamed(ctx context.Context, obj *object.Object, internal runtime.Object, question *admission.Request) (Result, error) {
	m, err := meta.Accessor(internal)
	if err != nil {
		return Result{}, apierrors.NewInternalError(err)
	}
	rest.FillObjectMetaSystemFields(m)
	claims, err := w.claim(ctx, internal, nil)
	if err != nil {
		return Result{}, err
	}
	defer claims.End(ctx)
	if err := bounded.BeforeCreate(ctx, w.strategy, w.r.res.BoundOf(w.req.Subresource), internal); err != nil {
		return Result{}, err
	}
	obj.SetInternal(internal)
	question.Name = m.GetName()
	if err := w.guard(ctx, obj, nil); err != nil {
		return Result{}, err
	}
	if err := w.validate(ctx, question); err != nil {
		return Result{}, err
	}
	if version := m.GetResourceVersion(); version != "" && version != "0" && w.req.Name == "" && !w.Options.IsDryRun() {
		// A create must not carry a resourceVersion: a client that sends an object
		// which it has read wants to change that one and not to make another.
		return Result{}, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
			Message: "resourceVersion should not be set on objects to be created",
		}}
	}
	if w.key, err = w.r.reads.Key(w.namespace(), m.GetName()); err != nil {
		return Result{}, err
	}
	result, err := w.store(ctx, obj, nil)
	var conflict *store.ConflictError
	if errors.As(err, &conflict) && w.req.Name != "" {
		return Result{}, err // an update that was going to create has something to update now
	}
	if errors.As(err, &conflict) {
		return Result{}, w.taken(ctx, conflict, internal, m.GetName())
	}
	result.Created = err == nil
	if err == nil && !w.Options.IsDryRun() {
		claims.Keep()
	}
	return result, err
}

// terminating refuses a create whose definition is being deleted: whoever
// deletes the objects that there are would never be done.
func (w *write) terminating(obj *object.Object) error {
	name := w.req.Name
	if m, err := obj.Meta(); err == nil && name == "" {
		name = m.GetName()
	}
	return apierrors.NewForbidden(w.r.res.GroupResource, name,
		errors.New("create not allowed while custom resource definition is terminating"))
}

// taken is the error of a create whose name is in use.
func (w *write) taken(ctx context.Context, c *store.ConflictError, internal runtime.Object, name string) error {
	err := rest.CheckGeneratedNameError(ctx, w.strategy, apierrors.NewAlreadyExists(w.r.res.GroupResource, name), internal)
	if item, itemErr := w.r.reads.Item(c.Current); itemErr == nil {
		var status *apierrors.StatusError
		if m, metaErr := item.Object.Meta(); metaErr == nil && m.GetDeletionTimestamp() != nil && errors.As(err, &status) {
			status.ErrStatus.Message = "object is being deleted: " + status.ErrStatus.Message
		}
	}
	return err
}

// admission is the request that the plugins are asked about. Mutators change obj itself.
func (w *write) admission(op admission.Operation, options runtime.Object, obj, old *object.Object) *admission.Request {
	name := w.req.Name
	if m, err := obj.Meta(); err == nil && name == "" {
		name = m.GetName()
	}
	return &admission.Request{
		UID:         newUID(),
		Operation:   op,
		Kind:        w.Codec.Kind(),
		Resource:    w.r.gvr(w.req),
		Subresource: w.req.Subresource,
		Namespace:   w.namespace(),
		Name:        name,
		User:        w.req.User,
		DryRun:      w.Options.IsDryRun(),
		Options:     options,
		Object:      obj,
		OldObject:   old,
	}
}

// namespace of the object, where it has one. A namespace object is "in" itself
// as far as admission is concerned, which is what NamespaceLifecycle reads.
func (w *write) namespace() string {
	return w.req.Namespace
}

func (w *write) mutate(ctx context.Context, question *admission.Request) error {
	if err := ended.Check(ctx); err != nil {
		return err
	}
	if w.req.Admitted {
		return nil
	}
	before, err := question.Object.Versioned()
	if err != nil {
		return wanted.Refusal(err)
	}
	if err := w.r.cfg.Admission.Mutate(ctx, question); err != nil {
		judging.PassOn(ctx, question)
		return err
	}
	after, err := question.Object.Versioned()
	if err != nil {
		return wanted.Refusal(err)
	}
	if after != before {
		kept := objectmeta.KeepManagers(ctx, before, after)
		// The chain has defaulted what plugins added.
		if objectmeta.UniqueOwners(ctx, after, objectmeta.DuplicateOwnersAfter) || kept {
			question.Object.SetVersioned(after)
		}
	}
	return nil
}

func (w *write) validate(ctx context.Context, question *admission.Request) error {
	if err := ended.Check(ctx); err != nil {
		return err
	}
	if w.req.Admitted {
		return nil
	}
	err := w.r.cfg.Admission.Validate(ctx, question)
	judging.PassOn(ctx, question)
	return err
}

// prepareUpdate checks the version that the client has seen and runs the
// strategy; obj is then what will be stored.
func (w *write) prepareUpdate(ctx context.Context, obj, old *object.Object, at optimistic.Snapshot) (*allocation.Claims, error) {
	internal, err := obj.Internal()
	if err != nil {
		return nil, wanted.Refusal(err)
	}
	existing, _, err := w.r.existing(at.Item, old)
	if err != nil {
		return nil, err
	}
	m, err := meta.Accessor(internal)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if err := w.checkVersion(ctx, m, at.Revision()); err != nil {
		return nil, err
	}
	claims, err := w.claim(ctx, internal, existing)
	if err != nil {
		return nil, err
	}
	if err := bounded.BeforeUpdate(ctx, w.strategy, w.r.res.BoundOf(w.req.Subresource), internal, existing); err != nil {
		return claims, err
	}
	obj.SetInternal(internal)
	return claims, nil
}

// guard keeps people from handing out rights that they don't have.
func (w *write) guard(ctx context.Context, obj, old *object.Object) error {
	if w.r.cfg.Roles == nil || w.r.res.Group != rbacv1.GroupName {
		return nil
	}
	next, err := obj.Versioned()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	var was runtime.Object
	if old != nil {
		if was, err = old.Versioned(); err != nil {
			return apierrors.NewInternalError(err)
		}
	}
	return w.r.cfg.Roles.Check(ctx, w.req.User, w.req.Namespace, w.req.Name, next, was)
}

// checkSeen is checkVersion before admission, so that plugins and webhooks are not
// asked about a write that has lost already. An object without a version passes.
func (w *write) checkSeen(ctx context.Context, obj *object.Object, at optimistic.Snapshot) error {
	m, err := obj.Meta()
	if err != nil {
		return wanted.Refusal(err)
	}
	if m.GetResourceVersion() == "" {
		return nil
	}
	return w.checkVersion(ctx, m, at.Revision())
}

func (w *write) checkVersion(ctx context.Context, m metav1.Object, current int64) error {
	seen, err := reader.ParseRevision(m.GetResourceVersion())
	if err != nil {
		return invalid(w.r.groupKind(), w.req.Name, field.Invalid(field.NewPath("metadata", "resourceVersion"), m.GetResourceVersion(),
			err.Error()))
	}
	switch {
	case seen == 0 && w.strategy.AllowUnconditionalUpdate(ctx):
		m.SetResourceVersion(strconv.FormatInt(current, 10))
	case seen == 0:
		// Upstream names the resource where the kind belongs; clients match on it.
		return invalid(schema.GroupKind{Group: w.r.res.Group, Kind: w.r.res.GroupResource.Resource}, w.req.Name,
			field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update"))
	case seen != current:
		return w.r.reads.Conflict(w.req.Name, reader.OptimisticLock)
	}
	return nil
}

// checkIdentity holds the object against the name and namespace of the request, and
// its metadata against its bounds. old is what it replaces; nil = nothing.
func (w *write) checkIdentity(obj, old *object.Object) error {
	m, err := obj.Meta()
	if err != nil {
		return wanted.Refusal(err)
	}
	if err := rest.EnsureObjectNamespaceMatchesRequestNamespace(rest.ExpectedNamespaceForScope(w.req.Namespace, w.r.res.Namespaced),
		m); err != nil {
		return err
	}
	if err := objectmeta.Bound(w.r.groupKind(), m, old); err != nil {
		return err
	}
	if w.req.Name == "" {
		return nil
	}
	if m.GetName() == "" {
		return nameless(w.req.Name)
	}
	if m.GetName() != w.req.Name {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", m.GetName(),
			w.req.Name))
	}
	return nil
}

// nameless is the refusal of an object that doesn't say which one it is.
func nameless(name string) error {
	return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", name))
}

// store puts obj in place of old and returns it with its new revision. Where old is
// nil, obj must not exist yet.
func (w *write) store(ctx context.Context, obj *object.Object, old *watchcache.Item) (Result, error) {
	if err := ended.Check(ctx); err != nil {
		return Result{}, err
	}
	internal, err := obj.Internal()
	if err != nil {
		return Result{}, apierrors.NewInternalError(err)
	}
	value, answer, err := w.r.encode(ctx, obj)
	if err != nil {
		return Result{}, err
	}
	expect := optimistic.Revision(old)
	revision := expect
	if !w.Options.IsDryRun() {
		done, err := w.room(internal, value, old)
		if err != nil {
			return Result{}, w.r.reads.StoreError(err, "write", reader.LastSegment(w.key))
		}
		revision, err = w.r.put(ctx, w.key, value, expect, w.r.ttl(internal))
		done(revision)
		if apierrors.IsRequestEntityTooLargeError(err) && !w.IsApply() && objectmeta.DropManagers(obj) { // an apply is about them
			return w.store(ctx, obj, old)
		}
		if err != nil {
			return Result{}, err
		}
		w.r.set.written.Put(w.key, value, revision)
	} else if expect == 0 {
		if err := w.r.dryCreate(ctx, w.key); err != nil {
			return Result{}, err
		}
	}
	if w.r.res.Custom != nil {
		result, err := w.r.asStored(ctx, w, value, revision)
		return Result{Object: result}, err
	}
	w.r.cfg.Contract.AsStored(w.r.res, answer)
	result, err := w.r.withRevision(answer, w.Codec, revision)
	return Result{Object: result}, err
}
