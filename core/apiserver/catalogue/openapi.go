// SPDX-License-Identifier: Apache-2.0

package catalogue

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"

	"github.com/gorilla/mux"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/openapi"
	"github.com/wasmplane/wasmplane/core/object"
)

// Media types of OpenAPI documents in protobuf. Clients still ask by the old ones;
// the answer has the new ones, since "@" makes no media type that clients can parse.
const (
	openAPIV2Proto    = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
	openAPIV2ProtoOld = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
	openAPIV3Proto    = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
	openAPIV3ProtoOld = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf"
)

// OpenAPIV2 serves /openapi/v2.
func (c *Catalogue) OpenAPIV2(w http.ResponseWriter, req *http.Request) {
	doc, err := c.specs.v2(c)
	if err != nil {
		c.answers.Fail(w, req, apierrors.NewInternalError(err))
		return
	}
	if doc, err = c.merged.get(c, doc); err != nil {
		c.answers.Fail(w, req, apierrors.NewInternalError(err))
		return
	}
	c.writeSpec(w, req, doc, openAPIV2Proto, openAPIV2ProtoOld)
}

// writeSpec answers with a document in the form that the client prefers; 304 if it has it.
func (c *Catalogue) writeSpec(w http.ResponseWriter, req *http.Request, doc *openapi.Document, protoType, protoOld string) {
	accept := req.Header.Get("Accept")
	data, mediaType, etag := doc.JSON, object.JSON, doc.JSONTag
	if strings.Contains(accept, protoType) || strings.Contains(accept, protoOld) {
		data, mediaType, etag = doc.Proto, protoType, doc.ProtoTag
	}
	w.Header().Set("ETag", etag)
	w.Header().Set("Vary", "Accept")
	if req.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	c.answers.Bytes(w, req, mediaType, http.StatusOK, data)
}

// OpenAPIV3Index serves /openapi/v3: it lists the documents with their hashes, by which clients cache them.
func (c *Catalogue) OpenAPIV3Index(w http.ResponseWriter, req *http.Request) {
	data, err := c.specs.index(c)
	if err != nil {
		c.answers.Fail(w, req, apierrors.NewInternalError(err))
		return
	}
	c.answers.Bytes(w, req, object.JSON, http.StatusOK, data)
}

// specs are the OpenAPI documents of one set of resources. They are made when a
// client asks; of the next set, those that did not change are taken over. Who asks for one
// document does not wait for another one.
type specs struct {
	wholeMu sync.Mutex
	v2of    uint64 // the generation that whole is of
	whole   *openapi.Document

	mu         sync.Mutex // of what follows; nothing is made under it
	generation uint64     // of data
	remote     uint64
	data       []byte // the index of v3
	v3         map[schema.GroupVersion]*spec3
}

// spec3 is one group version's document. Until somebody asks for the document of
// custom resources only its fingerprint is known.
type spec3 struct {
	fingerprint string // "" = everything in it is built in
	document    func() (*openapi.Document, error)
}

func (x *specs) v2(c *Catalogue) (*openapi.Document, error) {
	rows, generation := c.registries.Resources()
	x.wholeMu.Lock()
	defer x.wholeMu.Unlock()
	if x.whole != nil && x.v2of == generation {
		return x.whole, nil
	}
	doc, err := c.openapi.V2(rows)
	if err != nil {
		return nil, err
	}
	x.whole, x.v2of = doc, generation
	return doc, nil
}

// entry is what is known of a group version's document; the lock is held.
func (x *specs) entry(c *Catalogue, gv schema.GroupVersion, rows []*api.Resource) *spec3 {
	fingerprint := c.openapi.Fingerprint(gv, rows)
	if e := x.v3[gv]; e != nil && e.fingerprint == fingerprint {
		return e
	}
	if x.v3 == nil {
		x.v3 = map[schema.GroupVersion]*spec3{}
	}
	e := &spec3{fingerprint, sync.OnceValues(func() (*openapi.Document, error) { return c.openapi.V3(gv, rows) })}
	x.v3[gv] = e
	return e
}

func (x *specs) document(c *Catalogue, gv schema.GroupVersion) (*openapi.Document, error) {
	rows, _ := c.registries.Resources()
	x.mu.Lock()
	e := x.entry(c, gv, rows)
	x.mu.Unlock()
	return e.document()
}

// index hashes the documents of what is built in, which takes milliseconds, and
// kubectl asks for it at every turn. Custom resources have their fingerprint.
func (x *specs) index(c *Catalogue) ([]byte, error) {
	docs := c.current()
	rows, _ := c.registries.Resources()
	x.mu.Lock()
	if x.data != nil && x.generation == docs.generation && x.remote == docs.remote {
		defer x.mu.Unlock()
		return x.data, nil
	}
	entries := map[schema.GroupVersion]*spec3{}
	for gv := range docs.lists {
		entries[gv] = x.entry(c, gv, rows)
	}
	maps.DeleteFunc(x.v3, func(gv schema.GroupVersion, _ *spec3) bool { return entries[gv] == nil })
	x.mu.Unlock()
	data, err := c.listV3(entries)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.data, x.generation, x.remote = data, docs.generation, docs.remote
	return data, nil
}

func (c *Catalogue) listV3(entries map[schema.GroupVersion]*spec3) ([]byte, error) {
	type entry struct {
		URL string `json:"serverRelativeURL"`
	}
	paths := map[string]entry{}
	for gv, e := range entries {
		hash := e.fingerprint
		if hash == "" {
			doc, err := e.document()
			if err != nil {
				return nil, err
			}
			hash = strings.Trim(doc.JSONTag, `"`)
		}
		path := "api/" + gv.Version
		if gv.Group != "" {
			path = "apis/" + gv.String()
		}
		paths[path] = entry{URL: fmt.Sprintf("/openapi/v3/%s?hash=%s", path, hash)}
	}
	remotes, _ := c.remotes()
	for _, r := range remotes {
		if url := r.OpenAPIV3(); url != "" {
			paths["apis/"+r.GroupVersion().String()] = entry{URL: url}
		}
	}
	return json.Marshal(map[string]any{"paths": paths})
}

// OpenAPIV3 serves the document of one group version.
func (c *Catalogue) OpenAPIV3(w http.ResponseWriter, req *http.Request) {
	var gv schema.GroupVersion
	parts := strings.Split(mux.Vars(req)["path"], "/")
	switch {
	case len(parts) == 2 && parts[0] == "api":
		gv.Version = parts[1]
	case len(parts) == 3 && parts[0] == "apis":
		gv = schema.GroupVersion{Group: parts[1], Version: parts[2]}
	}
	if remote, ok := c.remoteOf(gv); ok && remote.OpenAPIV3() != "" {
		c.passOn(w, req, remote)
		return
	}
	if _, ok := c.current().lists[gv]; !ok {
		c.answers.NotFound(w, req)
		return
	}
	doc, err := c.specs.document(c, gv)
	if err != nil {
		c.answers.Fail(w, req, apierrors.NewInternalError(err))
		return
	}
	if req.URL.Query().Get("hash") != "" {
		w.Header().Set("Cache-Control", "public, immutable")
	}
	c.writeSpec(w, req, doc, openAPIV3Proto, openAPIV3ProtoOld)
}
