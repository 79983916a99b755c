// SPDX-License-Identifier: Apache-2.0

package customresource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/crdserverscheme"
	upstream "k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/audit"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/patterncost"
	"github.com/wasmplane/wasmplane/core/customresource/extension"
	"github.com/wasmplane/wasmplane/core/customresource/schemacheck"
)

// customVersion is one version of a definition.
type customVersion struct {
	def        *definition
	spec       *apiextensionsv1.CustomResourceDefinitionVersion
	codec      *codec
	structural func() (*structuralschema.Structural, error)
	multiplies func() bool // its defaults fill entries of lists or maps
	compiled   func() (*api.CustomVersion, error)
}

func newVersion(d *definition, spec *apiextensionsv1.CustomResourceDefinitionVersion) *customVersion {
	v := &customVersion{def: d, spec: spec}
	v.codec = &codec{gvk: d.gv(spec.Name).WithKind(d.kind), version: v}
	v.structural = sync.OnceValues(v.makeStructural)
	v.multiplies = sync.OnceValue(func() bool {
		s, err := v.structural()
		return err == nil && schemacheck.Multiplies(s)
	})
	v.compiled = sync.OnceValues(v.compile)
	return v
}

// sortVersions puts the preferred version first: the most stable, then the newest.
func sortVersions(names []string) {
	slices.SortStableFunc(names, func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) })
}

// managed is a strategy of upstream's that says which fields it resets.
type managed interface {
	api.Strategy
	rest.ResetFieldsStrategy
}

// compile makes the validators of the version's schema: this is where its CEL
// rules are compiled.
func (v *customVersion) compile() (*api.CustomVersion, error) {
	structural, err := v.structural()
	if err != nil {
		return nil, err
	}
	internal, err := internalSchema(v.spec)
	if err != nil {
		return nil, err
	}
	var props *apiextensions.JSONSchemaProps
	if internal != nil {
		props = internal.OpenAPIV3Schema
	}
	_, schema, err := validation.NewSchemaValidator(props)
	if err != nil {
		return nil, fmt.Errorf("schema of %s in version %s: %w", v.def.gr, v.spec.Name, err)
	}
	status, statusValidator, err := v.status(props)
	if err != nil {
		return nil, err
	}
	strategy := upstream.NewStrategy(crdserverscheme.NewUnstructuredObjectTyper(), v.def.namespaced(), v.codec.gvk,
		schemacheck.New(schema), statusValidator, structural, status, v.scale(), v.spec.SelectableFields)
	out := &api.CustomVersion{
		Strategy: judged{managed: strategy, version: v, patterns: patterncost.Of(props)}, Attrs: strategy.GetAttrs, Selectable: v.selectable(),
		DecodeStrict: func(data []byte, mediaType string) (runtime.Object, []error, error) {
			return v.decode(data, mediaType, true)
		},
	}
	if status != nil {
		out.Status = judged{
			managed: upstream.NewStatusStrategy(strategy), version: v, subresource: "status", patterns: patterncost.Of(props),
		}
	}
	if s := v.scale(); s != nil {
		out.Scale = newScale(v, s)
	}
	if out.Table, err = tableconvertor.New(columns(v.spec)); err != nil {
		v.def.env.log.Warn("a definition has a column that cannot be printed; its objects are printed without columns",
			"definition", v.def.crd.Name, "version", v.spec.Name, "error", err)
	}
	return out, nil
}

// status is the status subresource with the validator of its part of the schema.
func (v *customVersion) status(
	props *apiextensions.JSONSchemaProps,
) (*apiextensions.CustomResourceSubresourceStatus, validation.SchemaValidator, error) {
	if v.spec.Subresources == nil || v.spec.Subresources.Status == nil {
		return nil, nil, nil
	}
	status := &apiextensions.CustomResourceSubresourceStatus{}
	if props == nil {
		return status, nil, nil
	}
	own, ok := props.Properties["status"]
	if !ok {
		return status, nil, nil
	}
	_, schema, err := validation.NewSchemaValidator(&own)
	if err != nil {
		return nil, nil, fmt.Errorf("schema of the status of %s in version %s: %w", v.def.gr, v.spec.Name, err)
	}
	return status, schemacheck.New(schema), nil
}

func (v *customVersion) scale() *apiextensions.CustomResourceSubresourceScale {
	if v.spec.Subresources == nil || v.spec.Subresources.Scale == nil {
		return nil
	}
	s := v.spec.Subresources.Scale
	return &apiextensions.CustomResourceSubresourceScale{
		SpecReplicasPath: s.SpecReplicasPath, StatusReplicasPath: s.StatusReplicasPath, LabelSelectorPath: s.LabelSelectorPath,
	}
}

// selectable are the fields that selectors may name.
func (v *customVersion) selectable() []string {
	out := []string{"metadata.name"}
	if v.def.namespaced() {
		out = append(out, "metadata.namespace")
	}
	for _, f := range v.spec.SelectableFields {
		out = append(out, strings.TrimPrefix(f.JSONPath, "."))
	}
	return out
}

// judged is upstream's strategy with the extension's validators behind its own.
type judged struct {
	managed
	version     *customVersion
	subresource string
	patterns    *patterncost.Schema
}

// Validate implements rest.RESTCreateStrategy.
func (j judged) Validate(ctx context.Context, o runtime.Object) field.ErrorList {
	if errs := append(j.version.unfilled(o), j.patterns.Check(contentOf(o), nil)...); len(errs) > 0 {
		return errs
	}
	if errs := j.managed.Validate(ctx, o); len(errs) > 0 {
		return unfinished(errs)
	}
	return j.ask(ctx, o, nil)
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (j judged) ValidateUpdate(ctx context.Context, o, old runtime.Object) field.ErrorList {
	if errs := append(j.version.unfilled(o), j.patterns.Check(contentOf(o), contentOf(old))...); len(errs) > 0 {
		return errs
	}
	if errs := j.managed.ValidateUpdate(ctx, o, old); len(errs) > 0 {
		return unfinished(errs)
	}
	return j.ask(ctx, o, old)
}

// unfilled refuses an object that fill has left as it was, and one of too long paths.
func (v *customVersion) unfilled(o runtime.Object) field.ErrorList {
	if err := schemacheck.CheckPaths(contentOf(o)); err != nil { // of an apply, which is not decoded
		return field.ErrorList{field.Forbidden(field.NewPath("spec"), err.Error())}
	}
	s, err := v.structural()
	if err != nil || s == nil {
		return nil // without its schema nobody could decode the object
	}
	if why := v.tooMuch(contentOf(o), s); why != "" {
		return field.ErrorList{field.Forbidden(field.NewPath("spec"), why)}
	}
	return nil
}

// tooMuch says why the defaults of an object are not filled in; "" = they are.
func (v *customVersion) tooMuch(object map[string]any, s *structuralschema.Structural) string {
	switch {
	case schemacheck.TooManyVisits(object, s):
		return fmt.Sprintf("the object has too many maps for the properties of its schema, all of which are looked at for each map: "+
			"the limit is %d properties in all", schemacheck.MaxVisits)
	case v.multiplies() && schemacheck.TooManyDefaults(object, s):
		return fmt.Sprintf(
			"the defaults of the schema would add too many values to the entries of lists and maps: the limits are %d values and %d bytes",
			schemacheck.MaxDefaults, schemacheck.MaxDefaultBytes)
	}
	return ""
}

// unfinished says behind many errors that the object was not looked at further.
func unfinished(errs field.ErrorList) field.ErrorList {
	if len(errs) < schemacheck.MaxErrors {
		return errs
	}
	return append(errs, &field.Error{
		Type: field.ErrorTypeForbidden, Field: errs[len(errs)-1].Field,
		Detail: fmt.Sprintf("after %d errors the object is not held against its schema any further", schemacheck.MaxErrors),
	})
}

func contentOf(o runtime.Object) map[string]any {
	if u, ok := o.(*unstructured.Unstructured); ok {
		return u.Object
	}
	return nil
}

// ask asks the extension's validators, where a schema had nothing to object.
func (j judged) ask(ctx context.Context, o, old runtime.Object) field.ErrorList {
	d := j.version.def
	validators := d.env.extension.Validators(d.gr)
	if len(validators) == 0 {
		return nil
	}
	change := extension.Change{Resource: d.gr.WithVersion(j.version.spec.Name), Subresource: j.subresource, DryRun: api.DryRun(ctx)}
	change.User, _ = genericrequest.UserFrom(ctx)
	change.Object, _ = o.(*unstructured.Unstructured)
	change.Old, _ = old.(*unstructured.Unstructured)
	var all field.ErrorList
	for _, v := range validators {
		judged, err := v.Validate(ctx, change)
		for _, text := range judged.Warnings {
			warning.AddWarning(ctx, "", text)
		}
		for key, value := range judged.Annotations {
			audit.AddAuditAnnotation(ctx, key, value)
		}
		wrong := judged.Wrong
		if err != nil {
			wrong = append(wrong, field.InternalError(nil, errors.Join(errors.New("a validation plugin could not judge the object"), err)))
		}
		all = append(all, wrong...)
	}
	return all
}
