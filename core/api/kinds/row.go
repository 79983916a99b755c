// SPDX-License-Identifier: Apache-2.0

// Package kinds is the table of what is built in: a row for each resource of upstream's
// API, with its Go types, names, strategies, subresources and printers. core/api derives
// everything else from the rows.
package kinds

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
)

// Group is one API group with its served versions, preferred first.
type Group struct {
	Name     string
	Versions []string
}

// Strategy is what upstream's strategies of one resource or subresource do on a
// write. Objects are internal. GetResetFields, where a strategy has it, is found
// by a type assertion to rest.ResetFieldsStrategy.
type Strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

type (
	// Printer prints an object, or an empty list for the columns alone.
	Printer = func(ctx context.Context, o runtime.Object, noHeaders bool) (*metav1.Table, error)
	// Attributes are the labels and the selectable fields of an internal object.
	Attributes = func(internal runtime.Object) (labels.Set, fields.Set, error)
)

// Scope says who knows whether a resource's objects are in namespaces.
type Scope int

// The scopes.
const (
	ByStrategy Scope = iota // the strategy says
	Namespaced
	ClusterWide
)

// Row is what the table states about one resource.
type Row struct {
	Group, Name    string
	Scheme         *runtime.Scheme
	Object, List   runtime.Object // internal and empty; List is nil where nothing is listed
	Singular       string         // "" = the kind in lower case
	Short          []string
	Categories     []string
	Strategy       Strategy
	Deletion       rest.RESTDeleteStrategy // nil = the strategy
	Scoped         Scope
	OnlyIn         []string // versions; nil = every served version of the group
	StorageGroup   string   // where it is not the row's own (events.k8s.io)
	StorageVersion string   // "" = the preferred version
	StorageJSON    bool     // protobuf otherwise
	Prefix         string   // "" = the resource's name
	Verbs          []string // nil = all
	Virtual        bool
	Subs           []*Subresource
	TTL            func(internal runtime.Object) time.Duration
	Attrs          Attributes // nil = name and namespace only
	Fields         []string   // selectable beside metadata.name and, where namespaced, metadata.namespace
	NoNamespace    bool       // metadata.namespace cannot be selected although the resource is namespaced
	ReturnDeleted  bool
	Printer        Printer
	PlainTable     bool // upstream prints name and age only
	BeginDelete    func(internal runtime.Object)
	// Bound refuses an internal object that would cost too much to validate; old is what it
	// replaces, nil = nothing. nil = all are validated.
	Bound func(internal, old runtime.Object) field.ErrorList
}

// MetaAttrs are the attributes that all objects have: their labels, name and namespace.
func MetaAttrs(namespaced bool) Attributes {
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

func withMeta(namespaced bool, extra func(runtime.Object) fields.Set) Attributes {
	base := MetaAttrs(namespaced)
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
