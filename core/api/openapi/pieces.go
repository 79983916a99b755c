// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/wasmplane/wasmplane/core/api"
)

// piece is what one name stands for in one of a document's maps, encoded.
type piece struct {
	in, name string
	json     []byte
	proto    []byte // a document that has nothing else
}

// described is one version of a custom resource. Nobody changes it.
type described struct {
	head   []byte // JSON of a document without its maps; of v3 only
	pieces []piece
}

// customs keeps the descriptions of custom resources, so that a change of one of
// thousands costs what one costs. They are safe for concurrent use.
type customs struct {
	mu    sync.Mutex
	known map[customKey]*known
}

type customKey struct {
	resource schema.GroupResource
	version  string
	v3       bool
}

type known struct {
	fingerprint string
	describe    func() (*described, error)
}

func (c *customs) v2(r *api.Resource, version string) (*described, error) {
	return c.of(customKey{r.GroupResource, version, false}, r.Custom, describeV2)
}

func (c *customs) v3(r *api.Resource, version string) (*described, error) {
	return c.of(customKey{r.GroupResource, version, true}, r.Custom, describeV3)
}

// of describes a version, unless it is known. Who asks for another one does not wait.
func (c *customs) of(key customKey, custom api.Custom, describe func(api.Custom, string) (*described, error)) (*described, error) {
	fingerprint := custom.Fingerprint()
	c.mu.Lock()
	k := c.known[key]
	if k == nil || k.fingerprint != fingerprint {
		k = &known{fingerprint, sync.OnceValues(func() (*described, error) { return describe(custom, key.version) })}
		if c.known == nil {
			c.known = map[customKey]*known{}
		}
		c.known[key] = k
	}
	c.mu.Unlock()
	return k.describe()
}

// forget drops what is known of resources that are not among rows.
func (c *customs) forget(rows []*api.Resource) {
	there := map[customKey]bool{}
	for _, r := range rows {
		if r.Custom == nil || r.Unlisted {
			continue
		}
		for _, v := range r.Versions {
			there[customKey{r.GroupResource, v, false}], there[customKey{r.GroupResource, v, true}] = true, true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.known {
		if !there[key] {
			delete(c.known, key)
		}
	}
}

func describeV2(c api.Custom, version string) (*described, error) {
	s, err := c.OpenAPIV2(version)
	if err != nil {
		return nil, err
	}
	for name, definition := range s.Definitions {
		dropDefaults(&definition)
		s.Definitions[name] = definition
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode it: %w", err)
	}
	parsed, err := openapi_v2.ParseDocument(text)
	if err != nil {
		return nil, fmt.Errorf("encode it as protobuf: %w", err)
	}
	p := protos{}
	for _, n := range parsed.GetPaths().GetPath() {
		p.add("paths", n.Name, &openapi_v2.Document{Paths: &openapi_v2.Paths{Path: []*openapi_v2.NamedPathItem{n}}})
	}
	for _, n := range parsed.GetDefinitions().GetAdditionalProperties() {
		p.add("definitions", n.Name,
			&openapi_v2.Document{Definitions: &openapi_v2.Definitions{AdditionalProperties: []*openapi_v2.NamedSchema{n}}})
	}
	for _, n := range parsed.GetParameters().GetAdditionalProperties() {
		p.add("parameters", n.Name,
			&openapi_v2.Document{Parameters: &openapi_v2.ParameterDefinitions{AdditionalProperties: []*openapi_v2.NamedParameter{n}}})
	}
	var tree map[string]json.RawMessage
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("take it apart: %w", err)
	}
	d := &described{}
	for _, name := range v2Maps() {
		if err := d.take(name, tree[name], p); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func describeV3(c api.Custom, version string) (*described, error) {
	whole, err := c.OpenAPIV3(version)
	if err != nil {
		return nil, err
	}
	// What else it says is of the server, and said elsewhere.
	s := &spec3.OpenAPI{
		Version: whole.Version, Info: whole.Info, Paths: whole.Paths,
		Components: &spec3.Components{Schemas: map[string]*spec.Schema{}},
	}
	if whole.Components != nil {
		s.Components.Schemas = whole.Components.Schemas
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode it: %w", err)
	}
	parsed, err := openapi_v3.ParseDocument(text)
	if err != nil {
		return nil, fmt.Errorf("encode it as protobuf: %w", err)
	}
	p := protos{}
	for _, n := range parsed.GetPaths().GetPath() {
		p.add("paths", n.Name, &openapi_v3.Document{Paths: &openapi_v3.Paths{Path: []*openapi_v3.NamedPathItem{n}}})
	}
	for _, n := range parsed.GetComponents().GetSchemas().GetAdditionalProperties() {
		p.add("schemas", n.Name,
			&openapi_v3.Document{
				Components: &openapi_v3.Components{
					Schemas: &openapi_v3.SchemasOrReferences{AdditionalProperties: []*openapi_v3.NamedSchemaOrReference{n}},
				},
			})
	}
	var tree struct {
		Paths      json.RawMessage `json:"paths"`
		Components struct {
			Schemas json.RawMessage `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("take it apart: %w", err)
	}
	d := &described{}
	if d.head, err = json.Marshal(&spec3.OpenAPI{Version: s.Version, Info: s.Info}); err != nil {
		return nil, fmt.Errorf("encode its head: %w", err)
	}
	if err := d.take("paths", tree.Paths, p); err != nil {
		return nil, err
	}
	return d, d.take("schemas", tree.Components.Schemas, p)
}

// headProto is the head of a v3 document as protobuf.
func headProto(head []byte) ([]byte, error) {
	var s spec3.OpenAPI
	if err := json.Unmarshal(head, &s); err != nil {
		return nil, err
	}
	d := &openapi_v3.Document{Openapi: s.Version}
	if s.Info != nil {
		d.Info = &openapi_v3.Info{Title: s.Info.Title, Version: s.Info.Version}
	}
	return proto.Marshal(d)
}

// protos are pieces as messages, by map and name.
type protos map[[2]string]proto.Message

func (p protos) add(in, name string, m proto.Message) { p[[2]string{in, name}] = m }

// take makes pieces of one map of a document.
func (d *described) take(in string, text json.RawMessage, p protos) error {
	if len(text) == 0 {
		return nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return fmt.Errorf("take the %s apart: %w", in, err)
	}
	for name, value := range members {
		m := p[[2]string{in, name}]
		if m == nil {
			return fmt.Errorf("%s of %s are not in the protobuf form", name, in)
		}
		message, err := proto.Marshal(m)
		if err != nil {
			return fmt.Errorf("encode %s of %s as protobuf: %w", name, in, err)
		}
		d.pieces = append(d.pieces, piece{in: in, name: name, json: value, proto: message})
	}
	return nil
}

// distinct sorts pieces and leaves one of each name: what definitions share (metadata,
// parameters) is the same in all of them.
func distinct(all []piece) []piece {
	slices.SortStableFunc(all, func(a, b piece) int { return cmp.Or(cmp.Compare(a.in, b.in), cmp.Compare(a.name, b.name)) })
	return slices.CompactFunc(all, func(a, b piece) bool { return a.in == b.in && a.name == b.name })
}

// objectOf is one of the maps as JSON.
func objectOf(all []piece, in string) json.RawMessage {
	var out bytes.Buffer
	out.Grow(size(all, func(p piece) int {
		if p.in != in {
			return 0
		}
		return len(p.name) + len(p.json) + len(`"":,`)
	}))
	out.WriteByte('{')
	for _, p := range all {
		if p.in != in {
			continue
		}
		if out.Len() > 1 {
			out.WriteByte(',')
		}
		name, _ := json.Marshal(p.name) // strings can be encoded
		out.Write(name)
		out.WriteByte(':')
		out.Write(p.json)
	}
	out.WriteByte('}')
	return out.Bytes()
}

// messages are pieces as one message: encoded messages that follow each other are one.
func messages(all []piece) []byte {
	out := make([]byte, 0, size(all, func(p piece) int { return len(p.proto) }))
	for _, p := range all {
		out = append(out, p.proto...)
	}
	return out
}

// size is what pieces take together: documents have megabytes, and are not to be copied
// while they grow.
func size(all []piece, of func(piece) int) (n int) {
	for _, p := range all {
		n += of(p)
	}
	return n
}
