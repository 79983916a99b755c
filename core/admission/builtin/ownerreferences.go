// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/auth/authz"
)

const ownerReferencesName = "OwnerReferencesPermissionEnforcement"

// ownerReferences: to change an object's owners one must be allowed to delete the
// object, because that is what becomes possible; to block an owner's deletion, to
// set the owner's finalizers. Off by default, as upstream.
type ownerReferences struct {
	authz  authz.Authorizer
	mapper meta.RESTMapper
}

func newOwnerReferences(d Deps) *ownerReferences { return &ownerReferences{d.Authorizer, d.Mapper} }

func (*ownerReferences) Name() string { return ownerReferencesName }

// Handles leaves out status of pods: kubelets write it, and its strategy keeps owners.
func (*ownerReferences) Handles(r *admission.Request) bool {
	return (r.Operation == admission.Create || r.Operation == admission.Update) &&
		!(r.Resource.GroupResource() == schema.GroupResource{Resource: "pods"} && r.Subresource == "status")
}

func (p *ownerReferences) Validate(ctx context.Context, r *admission.Request) error {
	owners, old, ok := owners(r)
	if !ok || sameOwners(owners, old) {
		return nil
	}
	if r.Operation != admission.Create {
		d, reason, err := p.authz.Authorize(ctx, authorizer.AttributesRecord{
			User: r.User, Verb: "delete", Namespace: r.Namespace, APIGroup: r.Resource.Group, APIVersion: r.Resource.Version,
			Resource: r.Resource.Resource, Subresource: r.Subresource, Name: r.Name, ResourceRequest: true,
		})
		if d != authz.Allow {
			return admission.Forbidden(r, fmt.Errorf("cannot set an ownerRef on a resource you can't delete: %v, %w", reason, orNone(err)))
		}
	}
	blocking := newlyBlocking(owners, old)
	if len(blocking) == 0 || p.mayFinalize(ctx, r, authorizer.AttributesRecord{
		APIGroup: "*", APIVersion: "*", Resource: "*",
		Name: "*",
	}) == nil {
		return nil
	}
	for _, ref := range blocking {
		if err := p.mayBlock(ctx, r, ref); err != nil {
			return admission.Forbidden(r, err)
		}
	}
	return nil
}

func orNone(err error) error {
	if err == nil {
		return errors.New("<nil>")
	}
	return err
}

// owners of the new and the old object; not ok where there is no metadata.
func owners(r *admission.Request) (is, was []metav1.OwnerReference, ok bool) {
	if r.Object == nil {
		return nil, nil, false
	}
	m, err := r.Object.Meta()
	if err != nil {
		return nil, nil, false
	}
	if r.OldObject == nil {
		return m.GetOwnerReferences(), nil, true
	}
	old, err := r.OldObject.Meta()
	if err != nil {
		return nil, nil, false
	}
	return m.GetOwnerReferences(), old.GetOwnerReferences(), true
}

func sameOwners(a, b []metav1.OwnerReference) bool {
	return len(a) == len(b) && (len(a) == 0 || equality.Semantic.DeepEqual(a, b))
}

func newlyBlocking(is, was []metav1.OwnerReference) (found []metav1.OwnerReference) {
	blocked := map[types.UID]bool{}
	for _, o := range was {
		blocked[o.UID] = blocks(o)
	}
	for _, o := range is {
		if blocks(o) && !blocked[o.UID] {
			found = append(found, o)
		}
	}
	return found
}

func blocks(o metav1.OwnerReference) bool {
	return o.BlockOwnerDeletion != nil && *o.BlockOwnerDeletion
}

// mayBlock asks for every resource that the owner's kind may stand for.
func (p *ownerReferences) mayBlock(ctx context.Context, r *admission.Request, ref metav1.OwnerReference) error {
	unmapped := func(err error) error {
		return fmt.Errorf("cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion %s Kind %s: %w", ref.APIVersion, ref.Kind, err)
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return unmapped(err)
	}
	mappings, err := p.mapper.RESTMappings(schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, gv.Version)
	if err != nil {
		return unmapped(err)
	}
	for _, m := range mappings {
		q := authorizer.AttributesRecord{
			APIGroup: m.Resource.Group, APIVersion: m.Resource.Version, Resource: m.Resource.Resource,
			Name: ref.Name,
		}
		if m.Scope.Name() == meta.RESTScopeNameNamespace {
			q.Namespace = r.Namespace
		}
		if err := p.mayFinalize(ctx, r, q); err != nil {
			return err
		}
	}
	return nil
}

func (p *ownerReferences) mayFinalize(ctx context.Context, r *admission.Request, q authorizer.AttributesRecord) error {
	q.User, q.Verb, q.Subresource, q.ResourceRequest = r.User, "update", "finalizers", true
	d, reason, err := p.authz.Authorize(ctx, q)
	if d != authz.Allow {
		return fmt.Errorf("cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: %v, %w", reason, orNone(err))
	}
	return nil
}
