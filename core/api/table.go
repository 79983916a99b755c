// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api/kindcodec"
	"github.com/wasmplane/wasmplane/core/api/kinds"
	"github.com/wasmplane/wasmplane/core/object"
)

// derived is the row of the contract that a row of the table stands for.
type derived struct{ kinds.Row }

// allVerbs are the verbs of an ordinary resource, in the order of discovery.
func allVerbs() []string {
	return []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
}

func (w derived) build(versions []string) (*Resource, error) {
	kind := reflect.TypeOf(w.Object).Elem().Name()
	r := &Resource{
		GroupResource: schema.GroupResource{Group: w.Group, Resource: w.Name},
		Kind:          kind,
		Singular:      w.Singular,
		ShortNames:    w.Short,
		Categories:    w.Categories,
		Versions:      w.versions(versions),
		Verbs:         w.Verbs,
		Virtual:       w.Virtual,
		TTL:           w.TTL,
		ReturnDeleted: w.ReturnDeleted,
		BeginDelete:   w.BeginDelete,
		Bound:         w.Bound,
		New:           maker(w.Object),
		NewList:       maker(w.List),
		Subresources:  map[string]*Subresource{},
		scheme:        w.Scheme,
	}
	if len(r.Versions) == 0 {
		return nil, fmt.Errorf("no version of the group is served")
	}
	if w.List != nil {
		r.ListKind = reflect.TypeOf(w.List).Elem().Name()
	}
	if r.Singular == "" {
		r.Singular = strings.ToLower(kind)
	}
	if r.Verbs == nil {
		r.Verbs = allVerbs()
	}
	if w.Strategy != nil {
		r.Strategy, r.DeleteStrategy = w.Strategy, w.Strategy
	}
	if w.Deletion != nil {
		r.DeleteStrategy = w.Deletion
	}
	r.Namespaced = w.Scoped == kinds.Namespaced || w.Scoped == kinds.ByStrategy && w.Strategy.NamespaceScoped()
	w.selection(r)
	w.below(r)
	if err := w.storage(r); err != nil {
		return nil, err
	}
	return r, w.conversion(r)
}

func (w derived) versions(group []string) []string {
	if w.OnlyIn != nil {
		return w.OnlyIn
	}
	kind := reflect.TypeOf(w.Object).Elem().Name()
	return slices.DeleteFunc(slices.Clone(group), func(v string) bool {
		return !w.Scheme.Recognizes(schema.GroupVersionKind{Group: w.Group, Version: v, Kind: kind})
	})
}

// selection fills Attrs and Selectable.
func (w derived) selection(r *Resource) {
	r.Selectable = []string{"metadata.name"}
	if r.Namespaced && !w.NoNamespace {
		r.Selectable = append(r.Selectable, "metadata.namespace")
	}
	r.Selectable = append(r.Selectable, w.Fields...)
	r.Attrs = w.Attrs
	if r.Attrs == nil {
		r.Attrs = kinds.MetaAttrs(r.Namespaced)
	}
}

// below fills the subresources; a kind that a row leaves out is the parent's.
func (w derived) below(r *Resource) {
	for _, s := range w.Subs {
		if s.Kind.Empty() {
			s.Kind = r.GVK(r.Versions[0])
		}
		r.Subresources[s.Name] = s
	}
}

func (w derived) storage(r *Resource) error {
	gv := schema.GroupVersion{Group: w.Group, Version: w.StorageVersion}
	if gv.Version == "" {
		gv.Version = r.Versions[0]
	}
	if w.StorageGroup != "" || w.Name == "events" {
		gv.Group = w.StorageGroup
	}
	if w.Virtual {
		return nil
	}
	r.StorageVersion = gv
	r.StoragePrefix = w.Prefix
	if r.StoragePrefix == "" {
		r.StoragePrefix = w.Name
	}
	var err error
	if r.storage, err = kindcodec.New(w.Scheme, gv.WithKind(r.Kind)); err != nil {
		return err
	}
	r.storageMedia = object.Protobuf
	if w.StorageJSON {
		r.storageMedia = object.JSON
	}
	return nil
}

func (w derived) conversion(r *Resource) error {
	r.codecs = make(map[string]object.Codec, len(r.Versions))
	for _, v := range r.Versions {
		c, err := kindcodec.New(w.Scheme, r.GVK(v))
		if err != nil {
			return err
		}
		r.codecs[v] = c
	}
	r.printer, r.plainTable = w.Printer, w.PlainTable
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
