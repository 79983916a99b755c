// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"

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
	if len(d.contract.InVersion(gv)) > 0 {
		return d.mixedV3(gv, custom)
	}
	var all []piece
	var head []byte
	for _, r := range custom {
		described, err := d.custom.v3(r, gv.Version)
		if err != nil {
			return nil, fmt.Errorf("build OpenAPI v3 of %s: %w", r.GroupResource, err)
		}
		if head == nil {
			head = described.head
		}
		all = append(all, described.pieces...)
	}
	d.custom.forget(rows)
	all = distinct(all)
	var out bytes.Buffer
	out.Write(head[:len(head)-1])
	fmt.Fprintf(&out, `,"paths":%s,"components":{"schemas":%s}}`, objectOf(all, "paths"), objectOf(all, "schemas"))
	message, err := headProto(head)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI v3 of %s: %w", gv, err)
	}
	return NewDocument(out.Bytes(), append(message, messages(all)...)), nil
}

// mixedV3 is the document of a group version in which there are built-in and custom
// resources. It is made anew at each change of one of them.
func (d *Documents) mixedV3(gv schema.GroupVersion, custom []*api.Resource) (*Document, error) {
	own, err := d.V3Spec(gv)
	if err != nil {
		return nil, err
	}
	parts := []*spec3.OpenAPI{own}
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

// V2 is the document of everything, with the custom ones of rows. What is built in takes a
// second to describe, and is described once; so is each custom resource, until it changes,
// and the document is put together of what is encoded already.
func (d *Documents) V2(rows []*api.Resource) (*Document, error) {
	base, err := d.base()
	if err != nil {
		return nil, err
	}
	var all []piece
	for _, r := range rows {
		if r.Custom == nil || r.Unlisted {
			continue
		}
		for _, v := range r.Versions {
			described, err := d.custom.v2(r, v)
			if err != nil {
				return nil, fmt.Errorf("build OpenAPI v2 of %s: %w", r.GroupResource, err)
			}
			all = append(all, described.pieces...)
		}
	}
	d.custom.forget(rows)
	all = distinct(slices.DeleteFunc(all, func(p piece) bool { return base.has[p.in][p.name] }))
	if len(all) == 0 {
		return base.document, nil
	}
	// Encoded messages that follow each other are one: their maps and lists are joined.
	return NewDocument(base.splice(all), slices.Concat(messages(all), base.document.Proto)), nil
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

// splice writes the base with pieces put behind its own.
func (b *v2Base) splice(all []piece) []byte {
	merged := maps.Clone(b.pieces)
	for _, name := range v2Maps() {
		merged[name] = joinObjects(merged[name], objectOf(all, name))
	}
	n := 0
	for name, text := range merged {
		n += len(name) + len(text) + len(`"":,`)
	}
	var out bytes.Buffer
	out.Grow(n + len(`{}`))
	out.WriteByte('{')
	for i, name := range slices.Sorted(maps.Keys(merged)) {
		if i > 0 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, "%q:", name)
		out.Write(merged[name])
	}
	out.WriteByte('}')
	return out.Bytes()
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
	out := append(make(json.RawMessage, 0, len(a)+len(b)), a[:len(a)-1]...)
	return append(append(out, ','), b[1:]...)
}
