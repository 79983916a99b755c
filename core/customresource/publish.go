// SPDX-License-Identifier: Apache-2.0

package customresource

import (
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// OpenAPIV3 implements api.Custom.
func (d *definition) OpenAPIV3(v string) (*spec3.OpenAPI, error) {
	return builder.BuildOpenAPIV3(d.crd, v, builder.Options{IncludeSelectableFields: true})
}

// OpenAPIV2 implements api.Custom.
func (d *definition) OpenAPIV2(v string) (*spec.Swagger, error) {
	return builder.BuildOpenAPIV2(d.crd, v, builder.Options{V2: true, IncludeSelectableFields: true})
}

// Fingerprint implements api.Custom: a definition's generation counts the
// changes of its spec.
func (d *definition) Fingerprint() string {
	return fmt.Sprintf("%s %d %s", d.crd.UID, d.crd.Generation, d.kind)
}

// makeTypes makes what server-side apply knows of the kind: all versions, with
// the metadata types that they refer to.
func (d *definition) makeTypes() (managedfields.TypeConverter, error) {
	schemas := map[string]*spec.Schema{}
	for name := range d.versions {
		doc, err := builder.BuildOpenAPIV3(d.crd, name, builder.Options{})
		if err != nil {
			return nil, fmt.Errorf("schemas of %s in version %s: %w", d.gr, name, err)
		}
		if doc.Components == nil {
			continue
		}
		for model, s := range doc.Components.Schemas {
			if _, twice := schemas[model]; twice && !shared(model) {
				return nil, fmt.Errorf("schemas of %s: two versions have a model %s", d.gr, model)
			}
			schemas[model] = s
		}
	}
	types, err := managedfields.NewTypeConverter(schemas, d.crd.Spec.PreserveUnknownFields)
	if err != nil {
		return nil, fmt.Errorf("type converter of %s: %w", d.gr, err)
	}
	return types, nil
}

// shared models are those that every definition's document brings with it.
func shared(model string) bool {
	return strings.HasPrefix(model, "io.k8s.apimachinery.pkg.apis.meta.v1") || strings.HasPrefix(model, "io.k8s.api.autoscaling.v1")
}
