// SPDX-License-Identifier: Apache-2.0

// Package customresource serves the resources that CustomResourceDefinitions
// define: as rows of core/registry beside the built-in ones, so that they are
// written, watched, authorized and admitted by the same code.
//
// The definitions in the store are the truth, and every server follows them
// through its watch cache: a definition that another server accepted is served
// here a moment later, and a request for a resource that nobody knows yet waits
// until everything that was defined before it is served (Serving.CatchUp).
//
// Objects stay in the watch cache as they were stored, packed. What the definition makes
// of them (metadata repaired, unknown fields pruned, defaults of the stored
// version filled in, converted to the version that is asked for) is made when
// they are first read and kept beside them, so that a changed definition does
// not outdate the cache. Schemas, CEL rules and field managers are compiled when
// the first request needs them.
//
// The work is split: definition.go is one definition as api.Custom, schema.go
// decodes and prunes, version.go compiles one version, convert.go converts,
// scale.go is the scale subresource, serving.go follows the definitions,
// publish.go makes their OpenAPI. Subpackages: conversion (none, webhook,
// extension), extension (the contract for Wasm plugins) and lifecycle (the
// conditions and the deletion of definitions, as a client of the API).
//
// Binaries that bring definitions of their own install them at start with
// core/bootstrap.Definitions.
package customresource

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"golang.org/x/sync/singleflight"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/version"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/kinds"
	"github.com/wasmplane/wasmplane/core/customresource/conversion"
	"github.com/wasmplane/wasmplane/core/customresource/extension"
	"github.com/wasmplane/wasmplane/core/object"
)

// environment is what all definitions share.
type environment struct {
	webhooks  *conversion.Webhooks
	extension extension.Extension
	log       *slog.Logger
}

// definition is one CustomResourceDefinition as the registry serves it: it
// implements api.Custom. It never changes; another spec makes another definition.
type definition struct {
	env *environment
	// base is the context of conversions that are asked for through a codec,
	// whose interface has none. It never ends: converters have a time limit.
	base     context.Context                           //nolint:containedctx // see above
	crd      *apiextensionsv1.CustomResourceDefinition // nobody changes it
	gr       schema.GroupResource
	kind     string
	listKind string
	storage  string // version
	versions map[string]*customVersion

	converter func() (extension.Converter, error)
	types     func() (managedfields.TypeConverter, error)
	flights   singleflight.Group
}

// define makes a definition of an object whose names have been accepted.
func define(ctx context.Context, env *environment, crd *apiextensionsv1.CustomResourceDefinition) (*definition, error) {
	names := crd.Status.AcceptedNames
	d := &definition{
		base: context.WithoutCancel(ctx), env: env, crd: crd, gr: schema.GroupResource{Group: crd.Spec.Group, Resource: names.Plural},
		kind: names.Kind, listKind: names.ListKind,
		versions: map[string]*customVersion{},
	}
	for what, name := range map[string]string{
		"plural": names.Plural, "singular": names.Singular, "kind": names.Kind,
		"listKind": names.ListKind,
	} {
		if name == "" {
			return nil, fmt.Errorf("CustomResourceDefinition %s has unexpected empty status.acceptedNames.%s", crd.Name, what)
		}
	}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		d.versions[v.Name] = newVersion(d, v)
		if v.Storage {
			d.storage = v.Name
		}
	}
	if d.storage == "" {
		return nil, fmt.Errorf("CustomResourceDefinition %s has no storage version", crd.Name)
	}
	d.converter = sync.OnceValues(d.makeConverter)
	d.types = sync.OnceValues(d.makeTypes)
	return d, nil
}

func (d *definition) makeConverter() (extension.Converter, error) {
	if name := converterOfCRD(d.crd); name != "" {
		return conversion.Named{Extension: d.env.extension, Name: name, Resource: d.gr}, nil
	}
	return d.env.webhooks.For(d.crd)
}

// converterOfCRD is the extension's converter that a definition names; "" = its own strategy.
func converterOfCRD(crd *apiextensionsv1.CustomResourceDefinition) string {
	return crd.Annotations[extension.ConverterAnnotation]
}

func (d *definition) namespaced() bool { return d.crd.Spec.Scope == apiextensionsv1.NamespaceScoped }

func (d *definition) gv(v string) schema.GroupVersion {
	return schema.GroupVersion{Group: d.gr.Group, Version: v}
}

// row is the definition as one row of what is served.
func (d *definition) row(established, terminating bool) *api.Resource {
	names := d.crd.Status.AcceptedNames
	r := &api.Resource{
		GroupResource: d.gr, Kind: d.kind, ListKind: d.listKind, Singular: names.Singular, ShortNames: names.ShortNames,
		Categories: names.Categories,
		Namespaced: d.namespaced(), StorageVersion: d.gv(d.storage), StoragePrefix: d.gr.Group + "/" + d.gr.Resource, Verbs: verbs(),
		DeleteStrategy: crdserverscheme.NewUnstructuredObjectTyper(), Custom: d, In: map[string]api.InVersion{},
		New:      func() runtime.Object { return &unstructured.Unstructured{} },
		NewList:  func() runtime.Object { return &unstructured.UnstructuredList{} },
		Unlisted: !established, Terminating: terminating,
	}
	for i := range d.crd.Spec.Versions {
		v := &d.crd.Spec.Versions[i]
		r.In[v.Name] = api.InVersion{Subresources: d.subresources(v), Warnings: d.warnings(v)}
		if v.Served {
			r.Versions = append(r.Versions, v.Name)
		}
	}
	sortVersions(r.Versions)
	return r
}

// verbs are those of every custom resource, in upstream's order.
func verbs() []string {
	return []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
}

func (d *definition) subresources(v *apiextensionsv1.CustomResourceDefinitionVersion) map[string]*api.Subresource {
	out := map[string]*api.Subresource{}
	if v.Subresources == nil {
		return out
	}
	if v.Subresources.Status != nil {
		out["status"] = kinds.CustomStatus(d.gv(v.Name).WithKind(d.kind))
	}
	if v.Subresources.Scale != nil {
		out["scale"] = kinds.Scale()
	}
	return out
}

// warnings are what users of a deprecated version are told.
func (d *definition) warnings(v *apiextensionsv1.CustomResourceDefinitionVersion) []string {
	switch {
	case !v.Deprecated:
		return nil
	case v.DeprecationWarning != nil:
		return []string{*v.DeprecationWarning}
	}
	text := fmt.Sprintf("%s/%s %s is deprecated", d.crd.Spec.Group, v.Name, d.crd.Spec.Names.Kind)
	newest := ""
	for _, other := range d.crd.Spec.Versions {
		if !other.Served || other.Deprecated || version.CompareKubeAwareVersionStrings(v.Name, other.Name) >= 0 {
			continue
		}
		if newest == "" || version.CompareKubeAwareVersionStrings(other.Name, newest) > 0 {
			newest = other.Name
		}
	}
	if newest != "" {
		text += fmt.Sprintf("; use %s/%s %s", d.crd.Spec.Group, newest, d.crd.Spec.Names.Kind)
	}
	return []string{text}
}

// Codec implements api.Custom.
func (d *definition) Codec(v string) object.Codec {
	if known, ok := d.versions[v]; ok {
		return known.codec
	}
	return nil
}

// Version implements api.Custom.
func (d *definition) Version(v string) (*api.CustomVersion, error) {
	known, ok := d.versions[v]
	if !ok {
		return nil, fmt.Errorf("%s has no version %q", d.gr, v)
	}
	return known.compiled()
}

// columns are what a Table shows: what the version asks for, or the age.
func columns(v *apiextensionsv1.CustomResourceDefinitionVersion) []apiextensionsv1.CustomResourceColumnDefinition {
	if len(v.AdditionalPrinterColumns) > 0 {
		return v.AdditionalPrinterColumns
	}
	return []apiextensionsv1.CustomResourceColumnDefinition{{
		Name: "Age", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"], JSONPath: ".metadata.creationTimestamp",
	}}
}
