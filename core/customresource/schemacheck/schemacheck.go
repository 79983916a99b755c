// SPDX-License-Identifier: Apache-2.0

// Package schemacheck holds custom resources against their schemas, as upstream does, within bounds of what that costs.
//
// Upstream's validator compares each error with all that were found before it, and does so again at each level of the
// object. The time grows with the square of the errors: a list of a MiB whose entries have the wrong type kept a
// processor busy for hours, long after its request was over. Here many errors are the end of it. Alternatives (anyOf) and
// enumerations multiply with the values that are held against them, and so do defaults, and the properties of a schema with the maps that
// it is for: what that comes to is counted.
//
// What is not looked at is in an object that is refused anyway, or in a part of it that an update leaves as it was.
package schemacheck

import (
	"fmt"
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

// MaxWork is how many values of an object are held against schemas: each counts once, once more for each schema of its
// alternatives, and once for each 50 values of an enumeration and each 8 properties or required names of its schema, which upstream
// looks at whether the value has them or not. It is two to three seconds of a processor. An object as large as
// one may be has 750,000 values.
const MaxWork = 1_000_000

// perEntry is what an entry of a list or map counts in an alternative. There upstream does not come back, so that errors are not
// bounded by their number.
const perEntry = 200

var errTooMuch = fmt.Errorf("the object has too many values for its schema: each counts once, once more for each schema in allOf, anyOf, "+
	"oneOf and not that it is held against (%d times for entries of lists and maps in these), "+
	"and once for each 50 values of an enumeration and each 8 properties of a schema; the limit is %d", perEntry, MaxWork)

// New is a validator of one schema, for any number of objects at a time.
func New(schema *spec.Schema) validation.SchemaValidator { return validator{schema} }

type validator struct{ schema *spec.Schema }

// Validate implements validation.SchemaValidator.
func (v validator) Validate(value any, _ ...validation.ValidationOption) *validate.Result {
	return (&place{walk: &walk{}, schema: v.schema}).all(value)
}

// ValidateUpdate implements validation.SchemaValidator. Where ratcheting is wanted, values that are as they were are not
// looked at: upstream forgives what is wrong with them.
func (v validator) ValidateUpdate(value, old any, options ...validation.ValidationOption) *validate.Result {
	o := validation.NewValidationOptions(options...)
	root := &place{walk: &walk{}, schema: v.schema}
	if o.Ratcheting {
		if root.old = o.CorrelatedObject; root.old == nil {
			root.old = common.NewCorrelatedObject(value, old, &celopenapi.Schema{Schema: v.schema})
		}
		value = root.old.Value
	}
	return root.all(value)
}

// walk is one validation of one object.
type walk struct {
	errors int // so far
	places int // that were looked at
	work   int
}

// add counts the work at one place.
func (w *walk) add(s *spec.Schema, value any, each int) {
	if w.work += each + len(s.Enum)/50 + (len(s.Properties)+len(s.Required))/8; w.work > MaxWork {
		return
	}
	for _, list := range [][]spec.Schema{s.AllOf, s.AnyOf, s.OneOf} {
		for i := range list {
			w.alternative(&list[i], value, 1)
		}
	}
	if s.Not != nil {
		w.alternative(s.Not, value, 1)
	}
}

// alternative counts the work of a schema of which upstream does not come back.
func (w *walk) alternative(s *spec.Schema, value any, each int) {
	if w.work > MaxWork {
		return
	}
	w.add(s, value, each)
	switch v := value.(type) {
	case map[string]any:
		for name := range s.Properties {
			if within, ok := v[name]; ok {
				p := s.Properties[name]
				w.alternative(&p, within, 1)
			}
		}
		if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
			for _, within := range v {
				w.alternative(s.AdditionalProperties.Schema, within, perEntry)
			}
		}
	case []any:
		if s.Items != nil && s.Items.Schema != nil {
			for _, within := range v {
				w.alternative(s.Items.Schema, within, perEntry)
			}
		}
	}
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
	if p.walk.work > MaxWork {
		result.AddErrors(errTooMuch)
	}
	return result
}

// Validate implements validate.ValueValidator.
func (p *place) Validate(value any) *validate.Result {
	before, s := p.walk.errors, p.schema
	if before >= MaxErrors || p.walk.work > MaxWork || p.old != nil && p.old.CachedDeepEqual() {
		return &validate.Result{}
	}
	p.walk.places++
	if p.walk.add(s, value, 1); p.walk.work > MaxWork {
		return &validate.Result{}
	}
	options := p.options
	if s.Items == nil && s.AdditionalItems == nil && len(s.Properties)+len(s.PatternProperties) == 0 && s.AdditionalProperties == nil {
		options = none
	}
	result := validate.NewSchemaValidator(s, p.root, p.path, strfmt.Default, options).Validate(value)
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
