package apiserver

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/gorilla/mux"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

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

func (s *Server) openAPIV2(w http.ResponseWriter, req *http.Request) {
	text, proto, err := s.cfg.Contract.OpenAPIV2()
	if err != nil {
		s.fail(w, req, apierrors.NewInternalError(err))
		return
	}
	if text, proto, err = s.merged.get(s, text, proto); err != nil {
		s.fail(w, req, apierrors.NewInternalError(err))
		return
	}
	s.writeSpec(w, req, text, proto, openAPIV2Proto, openAPIV2ProtoOld)
}

// writeSpec answers with a document in the form that the client prefers; 304 if it has it.
func (s *Server) writeSpec(w http.ResponseWriter, req *http.Request, text, proto []byte, protoType, protoOld string) {
	accept := req.Header.Get("Accept")
	data, mediaType := text, object.JSON
	if strings.Contains(accept, protoType) || strings.Contains(accept, protoOld) {
		data, mediaType = proto, protoType
	}
	etag := fmt.Sprintf(`"%X"`, sha512.Sum512(data))
	w.Header().Set("ETag", etag)
	w.Header().Set("Vary", "Accept")
	if req.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	s.writeBytes(w, req, mediaType, http.StatusOK, data)
}

// openAPIV3Index lists the documents with their hashes, by which clients cache them.
func (s *Server) openAPIV3Index(w http.ResponseWriter, req *http.Request) {
	data, err := s.index3.get(s)
	if err != nil {
		s.fail(w, req, apierrors.NewInternalError(err))
		return
	}
	s.writeBytes(w, req, object.JSON, http.StatusOK, data)
}

// specIndex is the index of OpenAPI v3 for one set of resources. Hashing all
// documents takes milliseconds, and kubectl asks for it at every turn.
type specIndex struct {
	mu         sync.Mutex
	generation uint64
	remote     uint64
	data       []byte
}

func (x *specIndex) get(s *Server) ([]byte, error) {
	type entry struct {
		URL string `json:"serverRelativeURL"`
	}
	docs := s.discovery.current()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.data != nil && x.generation == docs.generation && x.remote == docs.remote {
		return x.data, nil
	}
	paths := map[string]entry{}
	for gv := range docs.lists {
		text, _, err := s.cfg.Contract.OpenAPIV3(gv)
		if err != nil {
			return nil, err
		}
		path := "api/" + gv.Version
		if gv.Group != "" {
			path = "apis/" + gv.String()
		}
		paths[path] = entry{URL: fmt.Sprintf("/openapi/v3/%s?hash=%X", path, sha512.Sum512(text))}
	}
	remotes, _ := s.remotes()
	for _, r := range remotes {
		if url := r.OpenAPIV3(); url != "" {
			paths["apis/"+r.GroupVersion().String()] = entry{URL: url}
		}
	}
	data, err := json.Marshal(map[string]any{"paths": paths})
	if err != nil {
		return nil, err
	}
	x.data, x.generation, x.remote = data, docs.generation, docs.remote
	return data, nil
}

func (s *Server) openAPIV3(w http.ResponseWriter, req *http.Request) {
	var gv schema.GroupVersion
	parts := strings.Split(mux.Vars(req)["path"], "/")
	switch {
	case len(parts) == 2 && parts[0] == "api":
		gv.Version = parts[1]
	case len(parts) == 3 && parts[0] == "apis":
		gv = schema.GroupVersion{Group: parts[1], Version: parts[2]}
	}
	if remote, ok := s.remoteOf(gv); ok && remote.OpenAPIV3() != "" {
		s.passOn(w, req, remote)
		return
	}
	if _, ok := s.discovery.current().lists[gv]; !ok {
		s.notFound(w, req)
		return
	}
	text, proto, err := s.cfg.Contract.OpenAPIV3(gv)
	if err != nil {
		s.fail(w, req, apierrors.NewInternalError(err))
		return
	}
	if req.URL.Query().Get("hash") != "" {
		w.Header().Set("Cache-Control", "public, immutable")
	}
	s.writeSpec(w, req, text, proto, openAPIV3Proto, openAPIV3ProtoOld)
}
