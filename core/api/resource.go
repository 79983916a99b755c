// SPDX-License-Identifier: Apache-2.0

// Package api is the Kubernetes contract: types, defaulting, conversion,
// validation, strategies, printers, OpenAPI and field management of every
// built-in resource, taken from the published Kubernetes modules.
//
// It is the one place that imports k8s.io/kubernetes; internal types go out of
// it only as opaque runtime.Objects. What the server serves is one table of
// Resources, and a test fails when a version bump changes what is behind it.
package api

import (
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/wasmplane/wasmplane/core/api/kindcodec"
	"github.com/wasmplane/wasmplane/core/api/kinds"
	"github.com/wasmplane/wasmplane/core/api/live"
	"github.com/wasmplane/wasmplane/core/object"
)

// MetricsGroup is the group of what nodes and pods use.
const MetricsGroup = kinds.MetricsGroup

// Group is one API group with its served versions, preferred first.
type Group = kinds.Group

// Strategy is what upstream's strategies of one resource or subresource do.
type Strategy = kinds.Strategy

// Subresource is one row below a resource.
type Subresource = kinds.Subresource

// Resource is one row of the table that the registry and the server are built from.
type Resource struct {
	schema.GroupResource
	Kind       string
	ListKind   string
	Singular   string
	ShortNames []string
	Categories []string
	Namespaced bool
	// Versions are the served versions of the group that have this resource, preferred first.
	Versions []string
	// StorageVersion is the group version of what is written to the store.
	StorageVersion schema.GroupVersion
	// StoragePrefix is the key prefix below /registry/, without slashes at its
	// ends: "pods", "services/specs", "apiregistration.k8s.io/apiservices".
	StoragePrefix string
	// Verbs in discovery order; a virtual resource (an access review) has only create.
	Verbs []string
	// Virtual resources are answered and never stored.
	Virtual bool
	// Strategy governs writes of the resource itself; nil for virtual ones.
	Strategy Strategy
	// DeleteStrategy governs deletion; it may also be a rest.RESTGracefulDeleteStrategy
	// or a rest.GarbageCollectionDeleteStrategy.
	DeleteStrategy rest.RESTDeleteStrategy
	// Subresources by name.
	Subresources map[string]*Subresource
	// TTL of a new or updated internal object; nil = objects do not expire. Events have one.
	TTL func(internal runtime.Object) time.Duration
	// New and NewList make empty internal objects.
	New, NewList func() runtime.Object
	// Attrs are the labels and the selectable fields of an internal object;
	// Selectable lists the field labels that a field selector may name.
	Attrs      func(internal runtime.Object) (labels.Set, fields.Set, error)
	Selectable []string
	// ReturnDeleted says that a delete answers with the deleted object instead of a Status.
	ReturnDeleted bool
	// BeginDelete changes an internal object whose deletion begins, before its
	// finalizers are looked at; nil = nothing has to be.
	BeginDelete func(internal runtime.Object)
	// Bound refuses an internal object that would cost too much to validate, before anything of it is;
	// old is what it replaces, nil = nothing. A nil Bound refuses none.
	Bound func(internal, old runtime.Object) field.ErrorList

	// Custom is the behaviour of a row that is not built in; nil for all others.
	// Of what stands above, Strategy, Subresources, Attrs and Selectable are then
	// empty: they are the versions' own, see SubresourcesIn and Custom.Version.
	Custom Custom
	// In is what differs by version; built-in rows have none.
	In map[string]InVersion
	// Unlisted rows are served, but discovery does not tell of them yet.
	Unlisted bool
	// Terminating rows take no new objects: their definition is being deleted.
	Terminating bool

	scheme       *runtime.Scheme
	codecs       map[string]object.Codec // by version
	storage      *kindcodec.Codec        // of the storage version, which need not be served
	storageMedia string
	printer      kinds.Printer            // where upstream's printers are not registered with the others
	plainTable   bool                     // upstream prints nothing but name and age
	asStored     atomic.Pointer[asStored] // the codec of the custom resource that was decoded last
}

// BoundOf is Bound for writes of the resource itself: subresources leave alone what is bounded.
func (r *Resource) BoundOf(subresource string) func(internal, old runtime.Object) field.ErrorList {
	if subresource != "" {
		return nil
	}
	return r.Bound
}

// Codec is the codec of one served version, nil where the version does not serve the resource.
func (r *Resource) Codec(version string) object.Codec {
	if r.Custom != nil {
		return r.Custom.Codec(version)
	}
	return r.codecs[version]
}

// StorageCodec is the codec of the version that is written to the store. It is
// the codec of Item.Object in the watch cache, and need not be a served version.
func (r *Resource) StorageCodec() object.Codec {
	if r.Custom != nil {
		return r.Custom.Codec(r.StorageVersion.Version)
	}
	return r.storage
}

// Serves says whether version is one of the served versions.
func (r *Resource) Serves(version string) bool {
	if r.Custom != nil {
		return slices.Contains(r.Versions, version)
	}
	return r.codecs[version] != nil
}

// Contract is the whole table with the machinery around it. The rest of its
// methods are in the files of this package, by topic.
type Contract struct {
	resources []*Resource
	byName    map[schema.GroupResource]*Resource
	groups    []Group
	schemes   kinds.Schemes
	link      *live.Link
	models    *models
	tablePrinter
}

// Resources lists every row, grouped by API group, in discovery order.
func (c *Contract) Resources() []*Resource { return c.resources }

// Resource finds a row.
func (c *Contract) Resource(gr schema.GroupResource) (*Resource, bool) {
	r, ok := c.byName[gr]
	return r, ok
}
