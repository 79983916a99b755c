// SPDX-License-Identifier: Apache-2.0

// Package reader reads the objects of one resource: get, list and watch.
//
// It guarantees that a read is as fresh as its resourceVersion demands, that a list
// is the state at exactly one revision, page by page, and that an answer never
// leaves out silently what cannot be read. Objects come from the watch cache, and
// are decoded and encoded once for everybody, wherever the cache is fresh enough;
// from the store otherwise. It refuses names that would lead out of the resource's
// keys. It writes nothing.
package reader

import (
	"log/slog"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// Config is what all readers share.
type Config struct {
	Contract *api.Contract
	Store    store.Store
	Cache    *watchcache.Cache
	// Computed are resources that are made when somebody asks.
	Computed map[schema.GroupResource]Computed
	Logger   *slog.Logger
}

// Query names what is read.
type Query struct {
	Version   string // a served version of the resource
	Namespace string
	Name      string // "" for lists and watches
}

// Reader reads one resource. It is safe for concurrent use.
type Reader struct {
	cfg    Config
	res    *api.Resource
	cached *watchcache.Resource // nil for virtual resources
	decode watchcache.Decoder

	views singleflight.Group // that are being made
}

// New makes a reader of what the cache holds of a resource; cached is nil for a
// resource that stores nothing.
func New(cfg Config, res *api.Resource, cached *watchcache.Resource, decode watchcache.Decoder) *Reader {
	return &Reader{cfg: cfg, res: res, cached: cached, decode: decode}
}

// Prefix of a resource's keys, with its slash.
func Prefix(res *api.Resource) string { return Root + res.StoragePrefix + "/" }

// Cached is what the watch cache has under a key.
func (r *Reader) Cached(key string) (*watchcache.Item, bool) {
	item, _, ok := r.cached.Get(key)
	return item, ok
}
