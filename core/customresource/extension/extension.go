// SPDX-License-Identifier: Apache-2.0

// Package extension is the contract for other converters and validators of custom resources:
// the server calls an implementation of Extension. It is how a Wasm plugin takes the place
// of a conversion webhook, or adds checks that no schema and no CEL rule can express.
//
// A definition names its converter itself, by an annotation, as it names a
// webhook by its strategy: nobody who can only load a plugin turns objects into
// something else, and a converter that is away fails conversions instead of leaving
// them to a strategy that would lose what it does not know. Validators choose their
// resources: a definition cannot get out of their way.
//
// It is apart from the implementation in core/customresource so that adapters
// depend on these few lines only. Implementations are asked concurrently, may
// change what they answer at any time (a plugin is loaded or goes away), and are
// bounded by the context that they are given.
package extension

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
)

// ConverterAnnotation of a CustomResourceDefinition names who converts its objects,
// instead of spec.conversion, whose strategies are a closed list of the API.
const ConverterAnnotation = "plugins.wasmplane.dev/converter"

// Extension says who has a say about the objects of a custom resource. It is
// asked at each conversion and each write: answers must be quick.
type Extension interface {
	// Converter of a resource by the name that its definition gives; nil where
	// there is none of this name, which fails the conversion.
	// What was converted is remembered: an extension that begins to convert in
	// another way has the server forget it (customresource.Serving.Renew).
	Converter(name string, of schema.GroupResource) Converter
	// Validators of a resource, in the order in which they are asked.
	Validators(schema.GroupResource) []Validator
}

// Converter brings objects from one version of their kind to another.
type Converter interface {
	// Convert answers as many objects as it is given, in the same order, each in
	// version to. It must not change what it is given. Of the metadata only
	// labels and annotations may differ: the rest is put back, and another name,
	// namespace or UID fails the conversion. An error fails the whole call; one
	// that is an API status reaches the client as it is.
	Convert(ctx context.Context, objects []*unstructured.Unstructured, to schema.GroupVersion) ([]*unstructured.Unstructured, error)
}

// Validator judges writes after the schema has been found to hold, on creates,
// updates and updates of the status.
type Validator interface {
	// Validate judges a change. An error means that the validator could not: the
	// write fails.
	Validate(ctx context.Context, c Change) (Judgement, error)
}

// Change is a write to judge. The objects are shared: they must not be changed.
type Change struct {
	Resource    schema.GroupVersionResource
	Subresource string // "" or "status"
	User        user.Info
	// DryRun: nothing is going to be written, and nothing else may be changed either.
	DryRun bool
	// Object as it will be stored, in the version of the request; Old is nil for a create.
	Object, Old *unstructured.Unstructured
}

// Judgement is what a validator thinks of a change; the zero value has nothing against it.
type Judgement struct {
	// Wrong is what the write is refused for, with field paths from the object's root.
	Wrong field.ErrorList
	// Warnings are shown to the client.
	Warnings []string
	// Annotations go into the audit log, by keys of the validator's own.
	Annotations map[string]string
}

// None is the extension that knows nobody.
type None struct{}

// Converter implements Extension.
func (None) Converter(string, schema.GroupResource) Converter { return nil }

// Validators implements Extension.
func (None) Validators(schema.GroupResource) []Validator { return nil }
