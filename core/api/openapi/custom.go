// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/wasmplane/wasmplane/core/api"
)

// Document is an OpenAPI document in the encodings that clients ask for, each
// with its ETag. Nobody changes it.
type Document struct {
	JSON, Proto       []byte
	JSONTag, ProtoTag string
}

// NewDocument makes a document of its encodings.
func NewDocument(jsonDoc, protoDoc []byte) *Document {
	tag := func(b []byte) string { return fmt.Sprintf(`"%X"`, sha512.Sum512(b)) }
	return &Document{JSON: jsonDoc, Proto: protoDoc, JSONTag: tag(jsonDoc), ProtoTag: tag(protoDoc)}
}

// customIn are the custom rows of a group version that discovery tells of.
func customIn(gv schema.GroupVersion, rows []*api.Resource) []*api.Resource {
	var out []*api.Resource
	for _, r := range rows {
		if r.Custom != nil && !r.Unlisted && r.Group == gv.Group && r.Serves(gv.Version) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *api.Resource) int {
		return bytes.Compare([]byte(a.GroupResource.Resource), []byte(b.GroupResource.Resource))
	})
	return out
}

// Fingerprint identifies a group version's document without building it: that
// of rows that are not built in, "" where all of them are.
func (d *Documents) Fingerprint(gv schema.GroupVersion, rows []*api.Resource) string {
	custom := customIn(gv, rows)
	if len(custom) == 0 {
		return ""
	}
	h := sha512.New()
	fmt.Fprintln(h, gv, len(d.contract.InVersion(gv)))
	for _, r := range custom {
		fmt.Fprintln(h, r.GroupResource, r.Custom.Fingerprint())
	}
	return fmt.Sprintf("%X", h.Sum(nil))
}

// V3 is the document of one group version, with the custom ones of rows.
func (d *Documents) V3(gv schema.GroupVersion, rows []*api.Resource) (*Document, error) {
	custom := customIn(gv, rows)
	if len(custom) == 0 {
		return d.builtinV3(gv)
	}
	var parts []*spec3.OpenAPI
	if len(d.contract.InVersion(gv)) > 0 {
		own, err := d.V3Spec(gv)
		if err != nil {
			return nil, err
		}
		parts = append(parts, own)
	}
	for _, r := range custom {
		part, err := r.Custom.OpenAPIV3(gv.Version)
		if err != nil {
			return nil, fmt.Errorf("build OpenAPI v3 of %s: %w", r.GroupResource, err)
		}
		parts = append(parts, part)
	}
	merged, err := builder.MergeSpecsV3(parts...)
	if err != nil {
		return nil, fmt.Errorf("build OpenAPI v3 of %s: %w", gv, err)
	}
	return encodeV3(gv, merged)
}

// V2 is the document of everything, with the custom ones of rows. What is built in takes a second to
// describe, and is described once; custom rows are put into the encoded document.
func (d *Documents) V2(rows []*api.Resource) (*Document, error) {
	base, err := d.base()
	if err != nil {
		return nil, err
	}
	extra, err := base.without(rows)
	if err != nil || extra == nil {
		return base.document, err
	}
	text, err := base.splice(extra)
	if err != nil {
		return nil, err
	}
	alone, err := json.Marshal(extra)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI v2 of custom resources: %w", err)
	}
	parsed, err := openapi_v2.ParseDocument(alone)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI v2 of custom resources as protobuf: %w", err)
	}
	// Encoded messages that follow each other are one: maps and lists are joined,
	// and of what there is once the last counts.
	message, err := proto.Marshal(parsed)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI v2 of custom resources as protobuf: %w", err)
	}
	return NewDocument(text, append(message, base.document.Proto...)), nil
}

// v2Base is the described part that never changes, in pieces.
type v2Base struct {
	document *Document
	pieces   map[string]json.RawMessage
	has      map[string]map[string]bool // piece to its keys
}

// v2Maps are the pieces of a document that custom resources add to.
func v2Maps() []string { return []string{"paths", "definitions", "parameters"} }

func (d *Documents) base() (*v2Base, error) {
	d.v2Mu.Lock()
	defer d.v2Mu.Unlock()
	if d.v2 != nil {
		return d.v2, nil
	}
	jsonDoc, protoDoc, err := d.builtinV2()
	if err != nil {
		return nil, err
	}
	b := &v2Base{document: NewDocument(jsonDoc, protoDoc), pieces: map[string]json.RawMessage{}, has: map[string]map[string]bool{}}
	if err := json.Unmarshal(jsonDoc, &b.pieces); err != nil {
		return nil, fmt.Errorf("take OpenAPI v2 apart: %w", err)
	}
	for _, name := range v2Maps() {
		keys := map[string]json.RawMessage{}
		if raw := b.pieces[name]; raw != nil {
			if err := json.Unmarshal(raw, &keys); err != nil {
				return nil, fmt.Errorf("take the %s of OpenAPI v2 apart: %w", name, err)
			}
		}
		b.has[name] = make(map[string]bool, len(keys))
		for k := range keys {
			b.has[name][k] = true
		}
	}
	d.v2 = b
	return b, nil
}

// without is what custom rows add to the base; nil where there are none. What
// the base has already, it keeps.
func (b *v2Base) without(rows []*api.Resource) (*spec.Swagger, error) {
	var out *spec.Swagger
	for _, r := range rows {
		if r.Custom == nil || r.Unlisted {
			continue
		}
		for _, v := range r.Versions {
			part, err := r.Custom.OpenAPIV2(v)
			if err != nil {
				return nil, fmt.Errorf("build OpenAPI v2 of %s: %w", r.GroupResource, err)
			}
			if out == nil {
				out = &spec.Swagger{SwaggerProps: spec.SwaggerProps{
					Swagger: part.Swagger, Info: part.Info, Definitions: spec.Definitions{}, Parameters: map[string]spec.Parameter{},
					Paths: &spec.Paths{Paths: map[string]spec.PathItem{}},
				}}
			}
			b.add(out, part)
		}
	}
	return out, nil
}

func (b *v2Base) add(out, part *spec.Swagger) {
	if part.Paths != nil {
		for k, v := range part.Paths.Paths {
			if !b.has["paths"][k] {
				out.Paths.Paths[k] = v
			}
		}
	}
	for k, v := range part.Definitions {
		if !b.has["definitions"][k] {
			dropDefaults(&v)
			out.Definitions[k] = v
		}
	}
	for k, v := range part.Parameters {
		if !b.has["parameters"][k] {
			out.Parameters[k] = v
		}
	}
}

// splice writes the base with the maps of extra put behind its own.
func (b *v2Base) splice(extra *spec.Swagger) ([]byte, error) {
	pieces := make(map[string]json.RawMessage, len(b.pieces))
	for k, v := range b.pieces {
		pieces[k] = v
	}
	for name, more := range map[string]any{"paths": extra.Paths.Paths, "definitions": extra.Definitions, "parameters": extra.Parameters} {
		raw, err := json.Marshal(more)
		if err != nil {
			return nil, fmt.Errorf("encode the %s of custom resources: %w", name, err)
		}
		pieces[name] = joinObjects(pieces[name], raw)
	}
	var out bytes.Buffer
	out.WriteByte('{')
	for i, name := range slices.Sorted(maps.Keys(pieces)) {
		if i > 0 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, "%q:", name)
		out.Write(pieces[name])
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// joinObjects joins two JSON objects that have no key in common.
func joinObjects(a, b json.RawMessage) json.RawMessage {
	a, b = bytes.TrimSpace(a), bytes.TrimSpace(b)
	switch {
	case len(a) <= 2:
		return b
	case len(b) <= 2:
		return a
	}
	out := append(bytes.Clone(a[:len(a)-1]), ',')
	return append(out, b[1:]...)
}
