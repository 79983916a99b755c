// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	"github.com/wasmplane/wasmplane/core/api/kindcodec"
	"github.com/wasmplane/wasmplane/core/object"
)

type (
	// tableFunc prints an object, or an empty list for the columns alone.
	tableFunc = func(ctx context.Context, o runtime.Object, noHeaders bool) (*metav1.Table, error)
	ttlFunc   = func(runtime.Object) time.Duration
	attrsFunc = func(runtime.Object) (labels.Set, fields.Set, error)
	scope     int
)

const (
	byStrategy scope = iota // the strategy says
	namespaced
	clusterWide
)

// row is what the table states about one resource; build derives the rest.
type row struct {
	group, name    string
	scheme         *runtime.Scheme
	object, list   runtime.Object // internal and empty; list is nil where nothing is listed
	singular       string         // "" = the kind in lower case
	short          []string
	categories     []string
	strategy       Strategy
	deletion       rest.RESTDeleteStrategy // nil = the strategy
	scoped         scope
	onlyIn         []string // versions; nil = every served version of the group
	storageGroup   string   // where it is not the row's own (events.k8s.io)
	storageVersion string   // "" = the preferred version
	storageJSON    bool     // protobuf otherwise
	prefix         string   // "" = the resource's name
	verbs          []string // nil = all
	virtual        bool
	subs           []*Subresource
	ttl            ttlFunc
	attrs          attrsFunc // nil = name and namespace only
	fields         []string  // selectable beside metadata.name and, where namespaced, metadata.namespace
	noNamespace    bool      // metadata.namespace cannot be selected although the resource is namespaced
	returnDeleted  bool
	printer        tableFunc
	plainTable     bool // upstream prints name and age only
	beginDelete    func(runtime.Object)
}

// allVerbs are the verbs of an ordinary resource, in the order of discovery.
func allVerbs() []string {
	return []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
}

func (w row) build(versions []string) (*Resource, error) {
	kind := reflect.TypeOf(w.object).Elem().Name()
	r := &Resource{
		GroupResource: schema.GroupResource{Group: w.group, Resource: w.name},
		Kind:          kind,
		Singular:      w.singular,
		ShortNames:    w.short,
		Categories:    w.categories,
		Versions:      w.versions(versions),
		Verbs:         w.verbs,
		Virtual:       w.virtual,
		TTL:           w.ttl,
		ReturnDeleted: w.returnDeleted,
		BeginDelete:   w.beginDelete,
		New:           maker(w.object),
		NewList:       maker(w.list),
		Subresources:  map[string]*Subresource{},
		scheme:        w.scheme,
	}
	if len(r.Versions) == 0 {
		return nil, fmt.Errorf("no version of the group is served")
	}
	if w.list != nil {
		r.ListKind = reflect.TypeOf(w.list).Elem().Name()
	}
	if r.Singular == "" {
		r.Singular = lower(kind)
	}
	if r.Verbs == nil {
		r.Verbs = allVerbs()
	}
	if w.strategy != nil {
		r.Strategy, r.DeleteStrategy = w.strategy, w.strategy
	}
	if w.deletion != nil {
		r.DeleteStrategy = w.deletion
	}
	r.Namespaced = w.scoped == namespaced || w.scoped == byStrategy && w.strategy.NamespaceScoped()
	w.selection(r)
	w.below(r)
	if err := w.storage(r); err != nil {
		return nil, err
	}
	return r, w.conversion(r)
}

func (w row) versions(group []string) []string {
	if w.onlyIn != nil {
		return w.onlyIn
	}
	kind := reflect.TypeOf(w.object).Elem().Name()
	return slices.DeleteFunc(slices.Clone(group), func(v string) bool {
		return !w.scheme.Recognizes(schema.GroupVersionKind{Group: w.group, Version: v, Kind: kind})
	})
}

// selection fills Attrs and Selectable.
func (w row) selection(r *Resource) {
	r.Selectable = []string{"metadata.name"}
	if r.Namespaced && !w.noNamespace {
		r.Selectable = append(r.Selectable, "metadata.namespace")
	}
	r.Selectable = append(r.Selectable, w.fields...)
	r.Attrs = w.attrs
	if r.Attrs == nil {
		r.Attrs = metaAttrs(r.Namespaced)
	}
}

// below fills the subresources; a kind that a row leaves out is the parent's.
func (w row) below(r *Resource) {
	for _, s := range w.subs {
		if s.Kind.Empty() {
			s.Kind = r.GVK(r.Versions[0])
		}
		r.Subresources[s.Name] = s
	}
}

func (w row) storage(r *Resource) error {
	gv := schema.GroupVersion{Group: w.group, Version: w.storageVersion}
	if gv.Version == "" {
		gv.Version = r.Versions[0]
	}
	if w.storageGroup != "" || w.name == "events" {
		gv.Group = w.storageGroup
	}
	if w.virtual {
		return nil
	}
	r.StorageVersion = gv
	r.StoragePrefix = w.prefix
	if r.StoragePrefix == "" {
		r.StoragePrefix = w.name
	}
	var err error
	if r.storage, err = kindcodec.New(w.scheme, gv.WithKind(r.Kind)); err != nil {
		return err
	}
	r.storageMedia = object.Protobuf
	if w.storageJSON {
		r.storageMedia = object.JSON
	}
	return nil
}

func (w row) conversion(r *Resource) error {
	r.codecs = make(map[string]object.Codec, len(r.Versions))
	for _, v := range r.Versions {
		c, err := kindcodec.New(w.scheme, r.GVK(v))
		if err != nil {
			return err
		}
		r.codecs[v] = c
	}
	r.printer, r.plainTable = w.printer, w.plainTable
	return nil
}

// maker makes empty objects of prototype's type.
func maker(prototype runtime.Object) func() runtime.Object {
	if prototype == nil {
		return func() runtime.Object { return nil }
	}
	t := reflect.TypeOf(prototype).Elem()
	return func() runtime.Object { return reflect.New(t).Interface().(runtime.Object) }
}

func metaAttrs(namespaced bool) attrsFunc {
	return func(o runtime.Object) (labels.Set, fields.Set, error) {
		m, err := meta.Accessor(o)
		if err != nil {
			return nil, nil, err
		}
		set := fields.Set{"metadata.name": m.GetName()}
		if namespaced {
			set["metadata.namespace"] = m.GetNamespace()
		}
		return m.GetLabels(), set, nil
	}
}

func withMeta(namespaced bool, extra func(runtime.Object) fields.Set) attrsFunc {
	base := metaAttrs(namespaced)
	return func(o runtime.Object) (labels.Set, fields.Set, error) {
		l, set, err := base(o)
		if err != nil {
			return nil, nil, err
		}
		for k, v := range extra(o) {
			set[k] = v
		}
		return l, set, nil
	}
}

func lower(kind string) string {
	b := []byte(kind)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// Subresources of the usual shapes.

func statusOf(s Strategy) *Subresource {
	return &Subresource{Name: "status", Strategy: s, Verbs: []string{"get", "patch", "update"}}
}

func scaleOf() *Subresource {
	return &Subresource{
		Name: "scale", Kind: schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"},
		Verbs: []string{"get", "patch", "update"},
	}
}

func part(name string, s Strategy, verbs ...string) *Subresource {
	return &Subresource{Name: name, Strategy: s, Verbs: verbs}
}

func action(name string, kind schema.GroupVersionKind, verbs ...string) *Subresource {
	return &Subresource{Name: name, Kind: kind, Verbs: verbs}
}

// connecting subresources hand the connection over; the options of kind come in the query.
func connecting(name, kind string, methods ...string) *Subresource {
	return &Subresource{
		Name:           name,
		Kind:           schema.GroupVersionKind{Version: "v1", Kind: kind},
		Verbs:          verbsOf(methods),
		ConnectMethods: methods,
	}
}

// verbsOf is what discovery says of a connecting subresource.
func verbsOf(methods []string) []string {
	verb := map[string]string{"POST": "create", "GET": "get", "DELETE": "delete", "PATCH": "patch", "PUT": "update"}
	var out []string
	for _, m := range methods {
		if v := verb[m]; v != "" {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	return out
}

// eventTTL is upstream's --event-ttl.
func eventTTL(runtime.Object) time.Duration { return time.Hour }

// updateOnly completes a strategy that upstream gives no create half: a
// subresource that only updates its parent never asks for one.
type updateOnly struct {
	rest.UpdateResetFieldsStrategy
	names.NameGenerator
}

func updates(s rest.UpdateResetFieldsStrategy) Strategy {
	return updateOnly{s, names.SimpleNameGenerator}
}

// PrepareForCreate implements rest.RESTCreateStrategy.
func (updateOnly) PrepareForCreate(context.Context, runtime.Object) {}

// Validate implements rest.RESTCreateStrategy.
func (updateOnly) Validate(context.Context, runtime.Object) field.ErrorList {
	return field.ErrorList{field.Forbidden(field.NewPath(""), "this subresource cannot be created")}
}

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (updateOnly) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
