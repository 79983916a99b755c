// SPDX-License-Identifier: Apache-2.0

// Package schemacheck holds custom resources against their schemas, as upstream does, within bounds of what that costs.
//
// Upstream's validator compares each error with all that were found before it, and does so again at each level of the
// object. The time grows with the square of the errors: a list of a MiB whose entries have the wrong type kept a
// processor busy for hours, long after its request was over. Here many errors are the end of it, and a few are the end of an
// alternative (anyOf, oneOf, allOf, not). Alternatives and enumerations multiply with the values that are held against them, and so do
// defaults, and texts with the formats that they are held against: what that comes to is counted. Of the properties of a schema only those
// are looked at that a value has.
//
// What is not looked at is in an object that is refused anyway, or in a part of it that an update leaves as it was.
package schemacheck

import (
	"reflect"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiserver/pkg/cel/common"
	celopenapi "k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
)

// New is a validator of one schema, for any number of objects at a time.
func New(schema *spec.Schema) validation.SchemaValidator { return validator{schema} }

type validator struct{ schema *spec.Schema }

// Validate implements validation.SchemaValidator.
func (v validator) Validate(value any, _ ...validation.ValidationOption) *validate.Result {
	return (&place{walk: newWalk(), schema: v.schema}).all(value)
}

// ValidateUpdate implements validation.SchemaValidator. Where ratcheting is wanted, values that are as they were are not
// looked at: upstream forgives what is wrong with them.
func (v validator) ValidateUpdate(value, old any, options ...validation.ValidationOption) *validate.Result {
	o := validation.NewValidationOptions(options...)
	root := &place{walk: newWalk(), schema: v.schema}
	if o.Ratcheting {
		if root.old = o.CorrelatedObject; root.old == nil {
			root.old = common.NewCorrelatedObject(value, old, &celopenapi.Schema{Schema: v.schema})
		}
		value = root.old.Value
	}
	return root.all(value)
}

// place is a value of an object with its schema.
type place struct {
	walk   *walk
	schema *spec.Schema
	root   any // the schema of the object, for upstream; nil = this one
	path   string
	old    *common.CorrelatedObject // the value with the one that it replaces; nil = every error counts
}

// SetPath implements validate.ValueValidator, whose places have their paths from the beginning.
func (p *place) SetPath(string) {}

// Applies implements validate.ValueValidator.
func (p *place) Applies(any, reflect.Kind) bool { return true }

// all validates an object, of which this is the whole.
func (p *place) all(value any) *validate.Result {
	result := p.Validate(value)
	switch {
	case p.walk.work > MaxWork:
		result.AddErrors(errTooMuch)
	case p.walk.over() && len(result.Errors) < MaxErrors:
		result.AddErrors(errLongTexts)
	}
	return result
}

// Validate implements validate.ValueValidator.
func (p *place) Validate(value any) *validate.Result {
	w, before := p.walk, p.walk.errors
	if w.over() || p.old != nil && p.old.CachedDeepEqual() {
		return &validate.Result{}
	}
	w.places++
	if result := plain(p.schema, value); result != nil {
		w.plainly(p.schema, value)
		return result
	}
	if w.add(p.schema, value, p.path); w.work > MaxWork {
		return &validate.Result{}
	}
	s := w.alone(p.schema, value)
	options := p.options
	if s.Items == nil && s.AdditionalItems == nil && len(s.Properties)+len(s.PatternProperties) == 0 && s.AdditionalProperties == nil {
		options = none
	}
	result := validate.NewSchemaValidator(s, p.root, p.path, strfmt.Default, options).Validate(value)
	w.found(result.Errors, before) // they are those of the places within, too
	if value != nil && hasAlternatives(p.schema) && !w.over() {
		p.alternatives(value, result)
		w.found(result.Errors, before)
	}
	return result
}

// options have upstream's validator come back for each value within.
func (p *place) options(o *validate.SchemaValidatorOptions) {
	o.NewValidatorForField, o.NewValidatorForIndex = p.field, p.index
}

// none is options for a value that has none within: it spares upstream to make functions for each.
func none(o *validate.SchemaValidatorOptions) {
	o.NewValidatorForField, o.NewValidatorForIndex = noField, noIndex
}

var noField, noIndex = (&place{}).field, (&place{}).index

func (p *place) field(
	name string, schema *spec.Schema, root any, path string, _ strfmt.Registry, _ ...validate.Option,
) validate.ValueValidator {
	within := &place{walk: p.walk, schema: schema, root: root, path: path}
	// Kind and version are those of the request in both objects, whatever was stored.
	if typed := p.path == "" && (name == "kind" || name == "apiVersion"); p.old != nil && !typed {
		within.old = p.old.Key(name)
	}
	return within
}

func (p *place) index(
	i int, schema *spec.Schema, root any, path string, _ strfmt.Registry, _ ...validate.Option,
) validate.ValueValidator {
	within := &place{walk: p.walk, schema: schema, root: root, path: path}
	if p.old != nil {
		within.old = p.old.Index(i)
	}
	return within
}
