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
	"github.com/wasmplane/wasmplane/core/registry/judging"
	"github.com/wasmplane/wasmplane/core/registry/options"
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
	// Judge asks admission again about what the client sent, where it has judged that by other
	// objects (see Judged): the write is held against what was written since. nil = it need not be asked.
	Judge func(ctx context.Context) error
}

// Judged is a context in which admission judges what is sent before the write that follows from it is begun.
func (r *Registry) Judged(ctx context.Context) context.Context {
	return judging.Begin(ctx, r.cfg.Store)
}

// DryRun is what the options say of a dry run: nothing, or All.
func (r *Request) DryRun() []string { return options.Of(r.Options).DryRun }

// Result is the answer to a write.
type Result struct {
	// Object in the version that was asked for; nil where Status says it all.
	Object *object.Object
	Status *metav1.Status
	// Created: the write made the object. Deleted: it is gone from the store.
	Created, Deleted bool
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
		Request: info, User: req.User, Namespace: req.Namespace, DryRun: options.Of(req.Options).IsDryRun(),
	})
}

// gvr is the resource as the request names it.
func (r *Registry) gvr(req *Request) schema.GroupVersionResource {
	return r.res.GroupResource.WithVersion(req.Version)
}
