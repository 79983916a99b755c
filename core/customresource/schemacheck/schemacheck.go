// SPDX-License-Identifier: Apache-2.0

// Package schemacheck holds custom resources against their schemas, as upstream does, and stops where an object has
// many errors.
//
// Upstream's validator compares each error with all that were found before it, and does so again at each level of the
// object. The time grows with the square of the errors: a list of a MiB whose entries have the wrong type kept a
// processor busy for hours, long after its request was over. What is not looked at here is in an object that is
// refused anyway, or in a part of it that an update leaves as it was.
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

// MaxErrors is how many errors are found before an object is looked at no further. The schema at one place may find a few more.
const MaxErrors = 250

// New is a validator of one schema, for any number of objects at a time.
func New(schema *spec.Schema) validation.SchemaValidator { return validator{schema} }

type validator struct{ schema *spec.Schema }

// Validate implements validation.SchemaValidator.
func (v validator) Validate(value any, _ ...validation.ValidationOption) *validate.Result {
	return (&place{walk: &walk{}, schema: v.schema}).Validate(value)
}

// ValidateUpdate implements validation.SchemaValidator. Where ratcheting is wanted, errors of values that are as they
// were are not counted.
func (v validator) ValidateUpdate(value, old any, options ...validation.ValidationOption) *validate.Result {
	o := validation.NewValidationOptions(options...)
	root := &place{walk: &walk{}, schema: v.schema}
	if o.Ratcheting {
		if root.old = o.CorrelatedObject; root.old == nil {
			root.old = common.NewCorrelatedObject(value, old, &celopenapi.Schema{Schema: v.schema})
		}
		value = root.old.Value
	}
	return root.Validate(value)
}

// walk is one validation of one object.
type walk struct {
	errors int // that count, so far
	places int // that were looked at
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

// Validate implements validate.ValueValidator.
func (p *place) Validate(value any) *validate.Result {
	before := p.walk.errors
	if before >= MaxErrors {
		return &validate.Result{}
	}
	p.walk.places++
	options := p.options
	s := p.schema
	if s.Items == nil && s.AdditionalItems == nil && len(s.Properties)+len(s.PatternProperties) == 0 && s.AdditionalProperties == nil {
		options = none
	}
	result := validate.NewSchemaValidator(s, p.root, p.path, strfmt.Default, options).Validate(value)
	if result.HasErrors() && p.old != nil && p.old.CachedDeepEqual() {
		result = &validate.Result{MatchCount: result.MatchCount}
	}
	p.walk.errors = before + len(result.Errors) // it has those of the places within
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
