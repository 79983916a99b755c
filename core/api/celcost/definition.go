// SPDX-License-Identifier: Apache-2.0

package celcost

import (
	"context"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/wasmplane/wasmplane/core/api/pathlength"
	"github.com/wasmplane/wasmplane/core/api/patterncost"
)

// Limits of all versions of a CustomResourceDefinition together. Definitions that people
// use have some hundred rules.
const (
	// MaxRules is how often a rule (x-kubernetes-validations) or its message expression is
	// compiled: once, and once more for each default that it is below. Each takes a millisecond.
	MaxRules = 1000
	// MaxTypes is how many schemas are made types of CEL: for each schema with rules, all that are
	// in it, as often as its rules are compiled. A rule that names a field (fieldPath) reads them once more.
	MaxTypes = 500_000
	// MaxSchemas is how many schemas a definition has, each field's, list's and map's counted: each is a struct of half a
	// kilobyte in four versions, and a third of a second of a processor for 10,000 in each write. Those of a MiB that people use have
	// descriptions, and some 10,000.
	MaxSchemas = 30_000
)

// Strategy is what upstream has for CustomResourceDefinitions.
type Strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.ResetFieldsStrategy
}

// Definitions is upstream's strategy, but that an update which leaves the spec as it was compiles nothing of it.
func Definitions(s Strategy) Strategy { return definitions{s} }

type definitions struct{ Strategy }

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (d definitions) ValidateUpdate(ctx context.Context, o, old runtime.Object) field.ErrorList {
	crd, is := o.(*apiextensions.CustomResourceDefinition)
	before, was := old.(*apiextensions.CustomResourceDefinition)
	// The approval of a group of Kubernetes' own is an annotation, which upstream validates with the schemas.
	const approval = "api-approved.kubernetes.io"
	if !is || !was || !same(o, old) || crd.Annotations[approval] != before.Annotations[approval] {
		return d.Strategy.ValidateUpdate(ctx, o, old)
	}
	return append(validation.ValidateUpdateCustomResourceDefinitionStatus(ctx, crd, before),
		validation.ValidateCustomResourceDefinitionStoredVersions(crd.Status.StoredVersions, crd.Spec.Versions,
			field.NewPath("status").Child("storedVersions"))...)
}

func same(o, old runtime.Object) bool {
	crd, is := o.(*apiextensions.CustomResourceDefinition)
	before, was := old.(*apiextensions.CustomResourceDefinition)
	return is && was && apiequality.Semantic.DeepEqual(crd.Spec, before.Spec)
}

func checkDefinition(spec *apiextensions.CustomResourceDefinitionSpec) field.ErrorList {
	w := &work{}
	patterns, schemas := 0, 0
	if spec.Validation != nil {
		schemas += w.schema(spec.Validation.OpenAPIV3Schema, 1, 0)
		patterns += patterncost.Of(spec.Validation.OpenAPIV3Schema).Total()
	}
	for i := range spec.Versions {
		if v := &spec.Versions[i]; v.Schema != nil {
			schemas += w.schema(v.Schema.OpenAPIV3Schema, 1, 0)
			patterns += patterncost.Of(v.Schema.OpenAPIV3Schema).Total()
		}
	}
	why := ""
	switch {
	case schemas > MaxSchemas:
		why = fmt.Sprintf("the definition has %d schemas in all its versions, those of fields, lists and maps counted, and at most %d may be in one "+
			"definition; leave fields out of it by x-kubernetes-preserve-unknown-fields", schemas, MaxSchemas)
	case w.paths.Over():
		why = pathlength.Refusal("the definition's fields")
	case patterns > patterncost.MaxSize || patterns < 0: // more than a number can be
		why = fmt.Sprintf("the patterns of the definition have a size of %d, where {1,100} counts a hundred times, and all of one definition "+
			"may have %d", patterns, patterncost.MaxSize)
	case w.rules > MaxRules:
		why = fmt.Sprintf("the definition has %d rules (x-kubernetes-validations) with their message expressions, each counted once and once more "+
			"for each default that it is below, and at most %d are compiled for one definition", w.rules, MaxRules)
	case w.bytes > MaxBytes:
		why = fmt.Sprintf("the rules (x-kubernetes-validations) of the definition have %d bytes, each counted once and once more "+
			"for each default that it is below, and at most %d are compiled for one definition", w.bytes, MaxBytes)
	case w.squares > MaxSquare:
		why = tooLong(w.squares)
	case w.types > MaxTypes:
		why = fmt.Sprintf("the schemas that are in schemas with rules (x-kubernetes-validations) are %d, each counted as often as it is in one and "+
			"for each default, and at most %d are read for one definition; move the rules to where their fields are", w.types, MaxTypes)
	default:
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("spec", "versions"), why)}
}

// work is what the rules of a definition cost to be compiled.
type work struct {
	rules, bytes, squares, types int
	// paths of its schemas, by which their rules, enumerations and required names are named too
	paths pathlength.Sum
}

// schema adds a schema with what is in it, which is compiled so many times, and answers
// how many schemas that are. path is how long the names on the way to it are.
func (w *work) schema(s *apiextensions.JSONSchemaProps, times, path int) (schemas int) {
	if s == nil {
		return 0
	}
	if s.Default != nil {
		times++
	}
	schemas = 1
	const word = 16 // properties[], additionalProperties
	path += word
	w.paths.Add(path, 1+len(s.XValidations)+len(s.Enum)+len(s.Required))
	for name, p := range s.Properties {
		schemas += w.schema(&p, times, path+len(name))
	}
	for i := range s.AllOf {
		schemas += w.schema(&s.AllOf[i], times, path)
	}
	for i := range s.AnyOf {
		schemas += w.schema(&s.AnyOf[i], times, path)
	}
	for i := range s.OneOf {
		schemas += w.schema(&s.OneOf[i], times, path)
	}
	schemas += w.schema(s.Not, times, path)
	if s.Items != nil {
		schemas += w.schema(s.Items.Schema, times, path)
		for i := range s.Items.JSONSchemas {
			schemas += w.schema(&s.Items.JSONSchemas[i], times, path)
		}
	}
	if s.AdditionalProperties != nil {
		schemas += w.schema(s.AdditionalProperties.Schema, times, path)
	}
	if len(s.XValidations) > 0 {
		w.compiled(s.XValidations, times, schemas)
	}
	return schemas
}

func (w *work) compiled(rules apiextensions.ValidationRules, times, schemas int) {
	w.types += times * schemas
	for _, r := range rules {
		w.rules += times
		if r.MessageExpression != "" {
			w.rules += times
		}
		w.bytes += times * (len(r.Rule) + len(r.MessageExpression))
		w.squares += times * (square(r.Rule) + square(r.MessageExpression))
		if r.FieldPath != "" {
			w.types += times * schemas
		}
	}
}
