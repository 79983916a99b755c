// SPDX-License-Identifier: Apache-2.0

// Package definitions has the OpenAPI definitions of the built-in types, as data.
//
// Upstream publishes them as Go code (k8s.io/kubernetes/pkg/generated/openapi), which
// is the largest package that could be linked: four megabytes of source that only make
// values. Here they are a compressed file that `make gen` makes by that code. A
// test holds both equal. They are decoded when somebody asks, and kept for as long as
// the garbage collector lets them be.
package definitions

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"sync"
	"weak"

	"github.com/klauspost/compress/zstd"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

//go:embed definitions.json.zst
var recorded []byte

// All is upstream's GetOpenAPIDefinitions: the definitions by their names, with
// references that ref makes of names. They are the caller's.
func All(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := *kept.get()
	out := make(map[string]common.OpenAPIDefinition, len(all))
	c := copier{ref: ref, refs: map[string]spec.Ref{}}
	for name, d := range all {
		out[name] = common.OpenAPIDefinition{Schema: c.schema(d.Schema), Dependencies: d.Dependencies}
	}
	return out
}

type definitions map[string]common.OpenAPIDefinition

// kept are the decoded definitions, while the collector has not taken them: many
// documents are asked for one after another, and then none for hours.
var kept keeper

type keeper struct {
	mu      sync.Mutex
	decoded weak.Pointer[definitions]
}

func (k *keeper) get() *definitions {
	k.mu.Lock()
	defer k.mu.Unlock()
	if all := k.decoded.Value(); all != nil {
		return all
	}
	all, err := decode(recorded)
	if err != nil {
		panic(err) // the file is part of the program, and a test decodes it
	}
	k.decoded = weak.Make(&all)
	return &all
}

func decode(file []byte) (definitions, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("decompress the recorded definitions: %w", err)
	}
	defer decoder.Close()
	text, err := decoder.DecodeAll(file, nil)
	if err != nil {
		return nil, fmt.Errorf("decompress the recorded definitions: %w", err)
	}
	var all definitions
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("decode the recorded definitions: %w", err)
	}
	for name, d := range all {
		if err := typed(&d.Schema); err != nil {
			return nil, fmt.Errorf("decode the recorded definition %s: %w", name, err)
		}
		all[name] = d
	}
	return all, nil
}

// typed gives values of a decoded definition the types that upstream's code has.
func typed(s *spec.Schema) error {
	s.Default = integers(s.Default)
	if v2, ok := s.Extensions[common.ExtensionV2Schema]; ok {
		text, err := json.Marshal(v2)
		if err != nil {
			return err
		}
		var schema spec.Schema
		if err := json.Unmarshal(text, &schema); err != nil {
			return err
		}
		s.Extensions[common.ExtensionV2Schema] = schema
	}
	for name, p := range s.Properties {
		if err := typed(&p); err != nil {
			return err
		}
		s.Properties[name] = p
	}
	for i := range s.AllOf {
		if err := typed(&s.AllOf[i]); err != nil {
			return err
		}
	}
	if s.Items != nil && s.Items.Schema != nil {
		if err := typed(s.Items.Schema); err != nil {
			return err
		}
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		return typed(s.AdditionalProperties.Schema)
	}
	return nil
}

// integers makes an int of a number that JSON made a float.
func integers(v any) any {
	if f, ok := v.(float64); ok && f == math.Trunc(f) {
		return int(f)
	}
	return v
}

// copier copies schemas, with references of its own.
type copier struct {
	ref  common.ReferenceCallback
	refs map[string]spec.Ref
}

// schema copies what users of definitions are known to change; they replace the rest.
func (c copier) schema(s spec.Schema) spec.Schema {
	if name := s.Ref.String(); name != "" {
		if _, ok := c.refs[name]; !ok {
			c.refs[name] = c.ref(name)
		}
		s.Ref = c.refs[name]
	}
	if s.Properties != nil {
		properties := make(map[string]spec.Schema, len(s.Properties))
		for name, p := range s.Properties {
			properties[name] = c.schema(p)
		}
		s.Properties = properties
	}
	s.AllOf = c.schemas(s.AllOf)
	s.OneOf = c.schemas(s.OneOf)
	s.AnyOf = c.schemas(s.AnyOf)
	if s.Items != nil {
		items := *s.Items
		items.Schema = c.pointer(items.Schema)
		s.Items = &items
	}
	if s.AdditionalProperties != nil {
		more := *s.AdditionalProperties
		more.Schema = c.pointer(more.Schema)
		s.AdditionalProperties = &more
	}
	if s.Extensions != nil {
		extensions := make(spec.Extensions, len(s.Extensions))
		for name, v := range s.Extensions {
			extensions[name] = v
		}
		s.Extensions = extensions
	}
	return s
}

func (c copier) pointer(s *spec.Schema) *spec.Schema {
	if s == nil {
		return nil
	}
	copied := c.schema(*s)
	return &copied
}

func (c copier) schemas(in []spec.Schema) []spec.Schema {
	if in == nil {
		return nil
	}
	out := make([]spec.Schema, len(in))
	for i, s := range in {
		out[i] = c.schema(s)
	}
	return out
}
