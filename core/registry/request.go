// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/object"
)

// Request is one call of an identified user who may make it.
type Request struct {
	Version     string // a served version of the resource
	Namespace   string
	Name        string // "" for create and for collections
	Subresource string
	User        user.Info

	// Options of the verb: *metav1.GetOptions, CreateOptions, UpdateOptions,
	// PatchOptions or DeleteOptions, validated. List and Watch have theirs apart.
	Options runtime.Object
	// Manager owns the fields that a write sets; never empty for a write.
	Manager string

	// Body of a write, undecoded, in a media type that the codec speaks. For a
	// patch, PatchType says how to read it.
	Body      []byte
	MediaType string
	PatchType types.PatchType

	// Admitted: admission has judged already what the client sent (an eviction, a
	// scale), and is not asked about what follows from it.
	Admitted bool
}

// DryRun is what the options say of a dry run: nothing, or All.
func (r *Request) DryRun() []string { return optionsOf(r.Options).dryRun }

// Result is the answer to a write.
type Result struct {
	// Object in the version that was asked for; nil where Status says it all.
	Object *object.Object
	Status *metav1.Status
	// Created: the write made the object. Deleted: it is gone from the store.
	Created, Deleted bool
}

// writeOptions is what the options of all writing verbs have in common.
type writeOptions struct {
	dryRun     []string
	manager    string
	validation string
	force      bool
}

func optionsOf(o runtime.Object) writeOptions {
	switch o := o.(type) {
	case *metav1.CreateOptions:
		return writeOptions{dryRun: o.DryRun, manager: o.FieldManager, validation: o.FieldValidation}
	case *metav1.UpdateOptions:
		return writeOptions{dryRun: o.DryRun, manager: o.FieldManager, validation: o.FieldValidation}
	case *metav1.PatchOptions:
		return writeOptions{dryRun: o.DryRun, manager: o.FieldManager, validation: o.FieldValidation, force: o.Force != nil && *o.Force}
	case *metav1.DeleteOptions:
		return writeOptions{dryRun: o.DryRun}
	}
	return writeOptions{}
}

func (o writeOptions) isDryRun() bool { return len(o.dryRun) > 0 }

// createOptions and updateOptions show admission the options of a write as those
// of the operation that the write turns out to be.
func createOptions(o runtime.Object) *metav1.CreateOptions {
	if same, ok := o.(*metav1.CreateOptions); ok {
		return same
	}
	from := optionsOf(o)
	out := &metav1.CreateOptions{DryRun: from.dryRun, FieldManager: from.manager, FieldValidation: from.validation}
	out.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("CreateOptions"))
	return out
}

func updateOptions(o runtime.Object) *metav1.UpdateOptions {
	if same, ok := o.(*metav1.UpdateOptions); ok {
		return same
	}
	from := optionsOf(o)
	out := &metav1.UpdateOptions{DryRun: from.dryRun, FieldManager: from.manager, FieldValidation: from.validation}
	out.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("UpdateOptions"))
	return out
}

// Context is what upstream's strategies read from theirs.
func (r *Registry) Context(ctx context.Context, req *Request) context.Context {
	info, ok := genericrequest.RequestInfoFrom(ctx)
	if !ok {
		info = &genericrequest.RequestInfo{
			IsResourceRequest: true,
			APIGroup:          r.res.Group,
			APIVersion:        req.Version,
			Resource:          r.res.GroupResource.Resource,
			Subresource:       req.Subresource,
			Namespace:         req.Namespace,
			Name:              req.Name,
		}
	}
	return api.StrategyContext(ctx, api.StrategyInfo{
		Request: info, User: req.User, Namespace: req.Namespace, DryRun: optionsOf(req.Options).isDryRun(),
	})
}

// gvr is the resource as the request names it.
func (r *Registry) gvr(req *Request) schema.GroupVersionResource {
	return r.res.GroupResource.WithVersion(req.Version)
}
