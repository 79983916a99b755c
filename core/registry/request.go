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

	// admitted: admission has judged the request already, as an eviction.
	admitted bool
}

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
	dryRun     bool
	validation string
	force      bool
}

func optionsOf(o runtime.Object) writeOptions {
	switch o := o.(type) {
	case *metav1.CreateOptions:
		return writeOptions{dryRun: len(o.DryRun) > 0, validation: o.FieldValidation}
	case *metav1.UpdateOptions:
		return writeOptions{dryRun: len(o.DryRun) > 0, validation: o.FieldValidation}
	case *metav1.PatchOptions:
		return writeOptions{dryRun: len(o.DryRun) > 0, validation: o.FieldValidation, force: o.Force != nil && *o.Force}
	case *metav1.DeleteOptions:
		return writeOptions{dryRun: len(o.DryRun) > 0}
	}
	return writeOptions{}
}

// options of a create, an update and a patch are shown to admission as those of
// the operation that the write turns out to be.
func createOptions(o runtime.Object) *metav1.CreateOptions {
	out := &metav1.CreateOptions{}
	switch o := o.(type) {
	case *metav1.CreateOptions:
		return o
	case *metav1.UpdateOptions:
		out.DryRun, out.FieldManager, out.FieldValidation = o.DryRun, o.FieldManager, o.FieldValidation
	case *metav1.PatchOptions:
		out.DryRun, out.FieldManager, out.FieldValidation = o.DryRun, o.FieldManager, o.FieldValidation
	}
	out.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("CreateOptions"))
	return out
}

func updateOptions(o runtime.Object) *metav1.UpdateOptions {
	out := &metav1.UpdateOptions{}
	switch o := o.(type) {
	case *metav1.UpdateOptions:
		return o
	case *metav1.CreateOptions:
		out.DryRun, out.FieldManager, out.FieldValidation = o.DryRun, o.FieldManager, o.FieldValidation
	case *metav1.PatchOptions:
		out.DryRun, out.FieldManager, out.FieldValidation = o.DryRun, o.FieldManager, o.FieldValidation
	}
	out.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("UpdateOptions"))
	return out
}

// context is what upstream's strategies read from theirs.
func (r *Registry) context(ctx context.Context, req *Request) context.Context {
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
		Request: info, User: req.User, Namespace: req.Namespace, DryRun: optionsOf(req.Options).dryRun,
	})
}

// gvr is the resource as the request names it.
func (r *Registry) gvr(req *Request) schema.GroupVersionResource {
	return r.res.GroupResource.WithVersion(req.Version)
}
