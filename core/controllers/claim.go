// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Claim makes an object the controller of what matches its selector: orphans are
// adopted, owned objects that no longer match are released. An object belongs to
// one controller only, and the reference to it is what says so.
type Claim struct {
	Owner    metav1.Object
	Kind     schema.GroupVersionKind
	Selector labels.Selector
	// Fresh reads the owner from the server, not from a cache. It is asked at most
	// once, before the first adoption: an owner that is already being deleted, or
	// another one of the same name, must not adopt what the garbage collector is
	// just orphaning.
	Fresh func(context.Context) (metav1.Object, error)
	// Patch sends a strategic merge patch to one of the objects.
	Patch func(ctx context.Context, obj metav1.Object, patch []byte) error
	// Finalizers are put on with an adoption and taken off with a release.
	Finalizers []string

	checked  bool
	checkErr error
}

// Selector is what a workload selects; false where that cannot be said, or would
// be everything: such a workload would adopt the whole namespace. Validation lets
// none through, but an object may be older than the rule.
func Selector(s *metav1.LabelSelector) (labels.Selector, bool) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return selector, err == nil && !selector.Empty()
}

// Adopters queues those of a namespace's workloads that select what nobody controls, one
// of which may adopt it.
func Adopters[T metav1.Object](l *Loop[Key], workloads []T, selects func(T) *metav1.LabelSelector, orphan metav1.Object) {
	for _, w := range workloads {
		if selector, ok := Selector(selects(w)); ok && selector.Matches(labels.Set(orphan.GetLabels())) {
			l.Add(Key{Namespace: w.GetNamespace(), Name: w.GetName()})
		}
	}
}

// ClaimAll returns those of the objects that belong to the owner, after adopting
// and releasing. Objects that it was right about are returned also with an error.
func ClaimAll[T metav1.Object](ctx context.Context, c *Claim, objects []T) ([]T, error) {
	var mine []T
	var errs []error
	for _, obj := range objects {
		ok, err := c.one(ctx, obj)
		if err != nil {
			errs = append(errs, err)
		}
		if ok {
			mine = append(mine, obj)
		}
	}
	return mine, errors.Join(errs...)
}

func (c *Claim) one(ctx context.Context, obj metav1.Object) (bool, error) {
	matches := c.Selector.Matches(labels.Set(obj.GetLabels()))
	leaving := c.Owner.GetDeletionTimestamp() != nil
	if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
		switch {
		case ref.UID != c.Owner.GetUID():
			return false, nil
		case matches:
			return true, nil
		case leaving:
			return false, nil
		}
		return false, c.release(ctx, obj)
	}
	if !matches || leaving || obj.GetDeletionTimestamp() != nil || obj.GetNamespace() != c.Owner.GetNamespace() {
		return false, nil
	}
	return c.adopt(ctx, obj)
}

func (c *Claim) adopt(ctx context.Context, obj metav1.Object) (bool, error) {
	if err := c.mayAdopt(ctx); err != nil {
		return false, fmt.Errorf("cannot adopt %s/%s (%s): %w", obj.GetNamespace(), obj.GetName(), obj.GetUID(), err)
	}
	meta := map[string]any{
		"uid":             obj.GetUID(), // a precondition: not another object of the same name
		"ownerReferences": []metav1.OwnerReference{*metav1.NewControllerRef(c.Owner, c.Kind)},
	}
	if len(c.Finalizers) > 0 {
		meta["finalizers"] = c.Finalizers
	}
	err := c.patch(ctx, obj, meta)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("adopting %s/%s: %w", obj.GetNamespace(), obj.GetName(), err)
	}
	Did(ctx, "adopted", "", obj)
	return true, nil
}

func (c *Claim) mayAdopt(ctx context.Context) error {
	if c.checked {
		return c.checkErr
	}
	c.checked = true
	fresh, err := c.Fresh(ctx)
	switch {
	case err != nil:
		c.checkErr = err
	case fresh.GetUID() != c.Owner.GetUID():
		c.checkErr = fmt.Errorf("original %s %s/%s is gone: got uid %s, wanted %s", c.Kind.Kind, c.Owner.GetNamespace(), c.Owner.GetName(),
			fresh.GetUID(), c.Owner.GetUID())
	case fresh.GetDeletionTimestamp() != nil:
		c.checkErr = fmt.Errorf("%s/%s has just been deleted at %s", c.Owner.GetNamespace(), c.Owner.GetName(), fresh.GetDeletionTimestamp())
	}
	return c.checkErr
}

func (c *Claim) release(ctx context.Context, obj metav1.Object) error {
	err := c.patch(ctx, obj, ReleaseMeta(obj.GetUID(), c.Owner.GetUID(), c.Finalizers...))
	// Invalid: the object has no owner reference any more, or is another one of
	// the same name. Either way there is nothing to release.
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil
	}
	return fmt.Errorf("releasing %s/%s: %w", obj.GetNamespace(), obj.GetName(), err)
}

// ReleaseMeta is the metadata of a strategic merge patch that takes one owner's
// reference and finalizers off an object, whatever else is in these lists.
func ReleaseMeta(object, owner types.UID, finalizers ...string) map[string]any {
	meta := map[string]any{
		"uid":             object,
		"ownerReferences": []map[string]any{{"$patch": "delete", "uid": owner}},
	}
	if len(finalizers) > 0 {
		meta["$deleteFromPrimitiveList/finalizers"] = finalizers
	}
	return meta
}

func (c *Claim) patch(ctx context.Context, obj metav1.Object, meta map[string]any) error {
	body, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return err
	}
	return c.Patch(ctx, obj, body)
}
