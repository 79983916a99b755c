// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/wasmplane/wasmplane/core/api/definitions"
	"github.com/wasmplane/wasmplane/core/api/ownership"
	"github.com/wasmplane/wasmplane/core/structural"
)

// models makes what field management needs of the schemas, a group at a time,
// when first asked for: all groups at once would cost 130 ms at start.
type models struct {
	contract *Contract

	namer func() *openapi.DefinitionNamer

	mu         sync.Mutex
	converters map[string]managedfields.TypeConverter // by group
	managers   map[managerKey]*ownership.Manager
	scale      *managedfields.FieldManager
	structure  structural.Types
}

type managerKey struct {
	resource    schema.GroupResource
	version     string
	subresource string
}

func newModels(c *Contract) *models {
	return &models{
		contract:   c,
		namer:      sync.OnceValue(func() *openapi.DefinitionNamer { return openapi.NewDefinitionNamer(c.schemes.All()...) }),
		converters: map[string]managedfields.TypeConverter{},
		managers:   map[managerKey]*ownership.Manager{},
	}
}

// FieldManager manages the managedFields of one version of a resource, "" or the
// name of a subresource that writes the parent, as upstream's does. It knows the
// fields that the strategy resets.
func (c *Contract) FieldManager(r *Resource, version, subresource string) (*ownership.Manager, error) {
	m := c.models
	key := managerKey{r.GroupResource, version, subresource}
	m.mu.Lock()
	defer m.mu.Unlock()
	if fm := m.managers[key]; fm != nil {
		return fm, nil
	}
	tc, err := m.converter(r.Group)
	if err != nil {
		return nil, err
	}
	strategy, err := r.writer(subresource)
	if err != nil {
		return nil, err
	}
	hub := schema.GroupVersion{Group: r.Group, Version: runtime.APIVersionInternal}
	upstream, err := managedfields.NewDefaultFieldManager(tc, ownership.Unchanging{ObjectConvertor: r.scheme}, r.scheme, r.scheme,
		r.GVK(version), hub, subresource, resetFilters(strategy))
	if err != nil {
		return nil, fmt.Errorf("field manager of %s in %s: %w", r.GroupResource, version, err)
	}
	empty, err := r.scheme.New(r.GVK(version))
	if err != nil {
		return nil, fmt.Errorf("field manager of %s in %s: %w", r.GroupResource, version, err)
	}
	empty.GetObjectKind().SetGroupVersionKind(r.GVK(version))
	fm := ownership.New(ownership.Config{
		Upstream: ownership.Bound(upstream), Types: tc, Kind: r.GVK(version), Subresource: subresource,
		Empty: empty, Structure: &m.structure,
	})
	m.managers[key] = fm
	return fm, nil
}

// TypeConverter knows the schemas of all kinds of r's group.
func (c *Contract) TypeConverter(r *Resource) (managedfields.TypeConverter, error) {
	if r.Custom != nil {
		return r.Custom.Types()
	}
	c.models.mu.Lock()
	defer c.models.mu.Unlock()
	return c.models.converter(r.Group)
}

func (m *models) converter(group string) (managedfields.TypeConverter, error) {
	if tc := m.converters[group]; tc != nil {
		return tc, nil
	}
	tc, err := m.newConverter(group, m.config())
	if err != nil {
		return nil, err
	}
	m.converters[group] = tc
	return tc, nil
}

func (m *models) newConverter(group string, cfg *common.OpenAPIV3Config) (managedfields.TypeConverter, error) {
	schemas, err := m.schemas(group, cfg)
	if err != nil {
		return nil, err
	}
	tc, err := managedfields.NewTypeConverter(schemas, false)
	if err != nil {
		return nil, fmt.Errorf("type converter of group %q: %w", group, err)
	}
	return &ownership.TrustingConverter{TypeConverter: tc}, nil
}

// Warm makes what the first write to each group would have to wait for: the schemas
// of all groups, of one reading of the definitions, which is most of what a group
// costs. Writes that come meanwhile don't wait for it. It ends early with ctx.
func (c *Contract) Warm(ctx context.Context) error {
	m := c.models
	cfg := m.config()
	for _, g := range c.groups {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		m.mu.Lock()
		known := m.converters[g.Name] != nil
		m.mu.Unlock()
		if known {
			continue
		}
		tc, err := m.newConverter(g.Name, cfg)
		if err != nil {
			return err
		}
		m.mu.Lock()
		if m.converters[g.Name] == nil { // else a write was faster
			m.converters[g.Name] = tc
		}
		m.mu.Unlock()
	}
	return nil
}

func (m *models) schemas(group string, cfg *common.OpenAPIV3Config) (map[string]*spec.Schema, error) {
	var names []string
	for _, r := range m.contract.resources {
		if r.Group != group {
			continue
		}
		for _, v := range r.Versions {
			name, err := r.scheme.ToOpenAPIDefinitionName(r.GVK(v))
			if err != nil {
				return nil, fmt.Errorf("OpenAPI name of %s: %w", r.GVK(v), err)
			}
			names = append(names, name)
		}
	}
	schemas, err := builder3.BuildOpenAPIDefinitionsForResources(cfg, names...)
	if err != nil {
		return nil, fmt.Errorf("schemas of group %q: %w", group, err)
	}
	return schemas, nil
}

// SchemaConfig is what kube-openapi needs to make schemas of the contract's kinds.
// It is the caller's.
func (c *Contract) SchemaConfig() *common.OpenAPIV3Config { return c.models.config() }

// DefinitionName is the name under which a Go type stands in documents and schemas.
func (c *Contract) DefinitionName(goType string) (string, spec.Extensions) {
	return c.models.namer().GetDefinitionName(goType)
}

// Scheme knows the versioned kinds of a group, and those that it shares with others.
func (c *Contract) Scheme(group string) *runtime.Scheme { return c.schemes.Of(group) }

func (m *models) config() *common.OpenAPIV3Config {
	cfg := &common.OpenAPIV3Config{
		Info:              &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes"}},
		DefaultResponse:   &spec3.Response{ResponseProps: spec3.ResponseProps{Description: "Default Response."}},
		GetDefinitionName: m.namer().GetDefinitionName,
		GetDefinitions:    definitions.All,
	}
	cfg.Definitions = definitions.All(func(name string) spec.Ref {
		def, _ := cfg.GetDefinitionName(name)
		return spec.MustCreateRef("#/components/schemas/" + common.EscapeJsonPointer(def))
	})
	return cfg
}

// writer is the strategy behind a subresource, the row's own for "".
func (r *Resource) writer(subresource string) (Strategy, error) {
	if subresource == "" {
		return r.Strategy, nil
	}
	s, ok := r.Subresources[subresource]
	if !ok || s.Strategy == nil {
		return nil, fmt.Errorf("%s/%s does not write the parent object", r.GroupResource, subresource)
	}
	return s.Strategy, nil
}

// resetFilters are the fields that a strategy overwrites, so that nobody comes to own them.
func resetFilters(s Strategy) map[fieldpath.APIVersion]fieldpath.Filter {
	if f, ok := s.(rest.ResetFieldsFilterStrategy); ok {
		return f.GetResetFieldsFilter()
	}
	if f, ok := s.(rest.ResetFieldsStrategy); ok {
		return fieldpath.NewExcludeFilterSetMap(f.GetResetFields())
	}
	return nil
}
