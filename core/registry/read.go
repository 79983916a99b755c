// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/reader"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// What reads take and give is the reader's.
type (
	// ListOptions say what a list or watch is of.
	ListOptions = reader.ListOptions
	// ListResult is a page of items, all as of one revision.
	ListResult = reader.ListResult
	// Watch is a running watch.
	Watch = reader.Watch
)

// FormatRevision is a revision as a resourceVersion.
func FormatRevision(revision int64) string { return reader.FormatRevision(revision) }

// Internal is the internal form of an object of the watch cache, which shares its memory. It is made anew each time.
func Internal(o *object.Object) (runtime.Object, error) { return reader.Internal(o) }

func (r *Request) query() reader.Query {
	return reader.Query{Version: r.Version, Namespace: r.Namespace, Name: r.Name}
}

// Get reads one object, as fresh as resourceVersion asks: the newest for "", whatever is there for "0", not older than it otherwise.
func (r *Registry) Get(ctx context.Context, req *Request, resourceVersion string) (*object.Object, error) {
	return r.reads.Get(ctx, req.query(), resourceVersion)
}

// List reads a page of objects. Their form is the storage version's: see InVersion.
func (r *Registry) List(ctx context.Context, req *Request, o ListOptions) (ListResult, error) {
	return r.reads.List(ctx, req.query(), o)
}

// Watch starts a watch with the meaning that resourceVersion and sendInitialEvents have upstream: from now on, from a revision, or the
// present state first.
func (r *Registry) Watch(ctx context.Context, req *Request, o ListOptions) (*Watch, error) {
	return r.reads.Watch(ctx, req.query(), o)
}

// InVersion is an item's object in a served version. It is shared.
func (r *Registry) InVersion(ctx context.Context, item *watchcache.Item, version string) (*object.Object, error) {
	return r.reads.InVersion(ctx, item, version)
}

// AllInVersion is InVersion for a list: custom resources are converted together.
func (r *Registry) AllInVersion(ctx context.Context, items []*watchcache.Item, version string) ([]*object.Object, error) {
	return r.reads.AllInVersion(ctx, items, version)
}

// Changes is another number after every change of the stored objects that the watch cache has seen. Virtual resources have none.
func (r *Registry) Changes() uint64 { return r.cached.Changes() }

// Convert converts an object of the resource to a served version.
func (r *Registry) Convert(ctx context.Context, o *object.Object, version string) (*object.Object, error) {
	return r.reads.Convert(ctx, o, version)
}
