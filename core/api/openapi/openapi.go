// SPDX-License-Identifier: Apache-2.0

// Package openapi describes what a server serves: the OpenAPI v2 and v3 documents of
// the contract's table and of custom resources, as JSON and as protobuf.
//
// It guarantees that what it describes is what upstream's server describes of the
// same resources, and that a document is built once and its bytes kept. Building is
// slow (v2 takes a good part of a second and tens of megabytes), so it begins when
// somebody asks. It describes routes and serves none.
package openapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/component-base/version"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/definitions"
)

// Documents are the documents that somebody has asked for. They are safe for
// concurrent use.
type Documents struct {
	contract *api.Contract
	version  string // in the documents' info

	v3Mu sync.Mutex
	v3   map[schema.GroupVersion]*Document // of what is built in

	v2Mu sync.Mutex
	v2   *v2Base

	custom customs
}

// New makes the documents of a contract.
func New(contract *api.Contract) *Documents {
	v := version.Get()
	named := v.Major + "." + v.Minor
	if v.Major == "" {
		named = "unversioned" // a test's binary
	}
	return &Documents{contract: contract, version: named, v3: map[schema.GroupVersion]*Document{}}
}

// V2Spec builds the document that /openapi/v2 serves. It takes a good
// part of a second and tens of megabytes: ask only when a client does, and keep
// the encoded bytes, not the document.
func (d *Documents) V2Spec() (*spec.Swagger, error) {
	var all []common.RouteContainer
	for _, g := range d.contract.Groups() {
		for _, v := range g.Versions {
			routes, err := d.describe(schema.GroupVersion{Group: g.Name, Version: v})
			if err != nil {
				return nil, err
			}
			all = append(all, routes)
		}
	}
	s, err := builder.BuildOpenAPISpecFromRoutes(all, d.configV2())
	if err != nil {
		return nil, fmt.Errorf("build OpenAPI v2: %w", err)
	}
	for name, definition := range s.Definitions {
		dropDefaults(&definition)
		s.Definitions[name] = definition
	}
	return s, nil
}

// dropDefaults: upstream serves defaults in v3 only, since clients of v2 stumble over them.
func dropDefaults(s *spec.Schema) {
	if s == nil {
		return
	}
	s.Default = nil
	for name, p := range s.Properties {
		dropDefaults(&p)
		s.Properties[name] = p
	}
	for i := range s.AllOf {
		dropDefaults(&s.AllOf[i])
	}
	if s.Items != nil {
		dropDefaults(s.Items.Schema)
	}
	if s.AdditionalProperties != nil {
		dropDefaults(s.AdditionalProperties.Schema)
	}
}

// builtinV2 is the document that /openapi/v2 serves, as JSON and as protobuf.
func (d *Documents) builtinV2() (jsonDoc, protoDoc []byte, err error) {
	s, err := d.V2Spec()
	if err != nil {
		return nil, nil, err
	}
	if jsonDoc, err = json.Marshal(s); err != nil {
		return nil, nil, fmt.Errorf("encode OpenAPI v2: %w", err)
	}
	parsed, err := openapi_v2.ParseDocument(jsonDoc)
	if err != nil {
		return nil, nil, fmt.Errorf("encode OpenAPI v2 as protobuf: %w", err)
	}
	if protoDoc, err = proto.Marshal(parsed); err != nil {
		return nil, nil, fmt.Errorf("encode OpenAPI v2 as protobuf: %w", err)
	}
	return jsonDoc, protoDoc, nil
}

// builtinV3 is the document of the built-in resources of one group version. It is
// built when first asked for, and kept.
func (d *Documents) builtinV3(gv schema.GroupVersion) (*Document, error) {
	d.v3Mu.Lock()
	defer d.v3Mu.Unlock()
	if made := d.v3[gv]; made != nil {
		return made, nil
	}
	s, err := d.V3Spec(gv)
	if err != nil {
		return nil, err
	}
	made, err := encodeV3(gv, s)
	if err != nil {
		return nil, err
	}
	d.v3[gv] = made
	return made, nil
}

func encodeV3(gv schema.GroupVersion, s *spec3.OpenAPI) (*Document, error) {
	jsonDoc, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI v3 of %s: %w", gv, err)
	}
	parsed, err := openapi_v3.ParseDocument(jsonDoc)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI v3 of %s as protobuf: %w", gv, err)
	}
	protoDoc, err := proto.Marshal(parsed)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI v3 of %s as protobuf: %w", gv, err)
	}
	return NewDocument(jsonDoc, protoDoc), nil
}

// V3Spec builds the document of one group version.
func (d *Documents) V3Spec(gv schema.GroupVersion) (*spec3.OpenAPI, error) {
	if len(d.contract.InVersion(gv)) == 0 {
		return nil, fmt.Errorf("group version %s is not served", gv)
	}
	routes, err := d.describe(gv)
	if err != nil {
		return nil, err
	}
	s, err := builder3.BuildOpenAPISpecFromRoutes([]common.RouteContainer{routes}, d.configV3())
	if err != nil {
		return nil, fmt.Errorf("build OpenAPI v3 of %s: %w", gv, err)
	}
	for _, schema := range s.Components.Schemas {
		ownKinds(schema, gv)
	}
	return s, nil
}

// ownKinds leaves of the kinds that every group registers (DeleteOptions,
// WatchEvent) those of the core group and of this one: there would be 60 of each.
func ownKinds(s *spec.Schema, gv schema.GroupVersion) {
	const key = "x-kubernetes-group-version-kind"
	all, ok := s.Extensions[key].([]any)
	if !ok || len(all) < 2 {
		return
	}
	var own []any
	for _, x := range all {
		m, _ := x.(map[string]any)
		if m["kind"] != "DeleteOptions" && m["kind"] != "WatchEvent" {
			return
		}
		if m["group"] == gv.Group && m["version"] == gv.Version || m["group"] == "" && m["version"] == "v1" {
			own = append(own, x)
		}
	}
	s.Extensions[key] = own
}

func (d *Documents) configV3() *common.OpenAPIV3Config {
	cfg := d.contract.SchemaConfig()
	cfg.CommonResponses = map[int]*spec3.Response{http.StatusUnauthorized: {ResponseProps: spec3.ResponseProps{Description: "Unauthorized"}}}
	cfg.GetOperationIDAndTagsFromRoute = operationID
	cfg.Info.Version = d.version
	cfg.SecuritySchemes = spec3.SecuritySchemes{"BearerToken": {SecuritySchemeProps: spec3.SecuritySchemeProps{
		Type: "apiKey", Name: "authorization", In: "header", Description: "Bearer Token authentication",
	}}}
	cfg.DefaultSecurity = []map[string][]string{{"BearerToken": {}}}
	return cfg
}

func (d *Documents) configV2() *common.Config {
	return &common.Config{
		ProtocolList:    []string{"https"},
		Info:            &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes", Version: d.version}},
		DefaultResponse: &spec.Response{ResponseProps: spec.ResponseProps{Description: "Default Response."}},
		CommonResponses: map[int]spec.Response{
			http.StatusUnauthorized: {ResponseProps: spec.ResponseProps{Description: "Unauthorized"}},
		},
		GetDefinitions:                 definitions.All,
		GetDefinitionName:              d.contract.DefinitionName,
		GetOperationIDAndTagsFromRoute: operationID,
		SecurityDefinitions: &spec.SecurityDefinitions{"BearerToken": {SecuritySchemeProps: spec.SecuritySchemeProps{
			Type: "apiKey", Name: "authorization", In: "header", Description: "Bearer Token authentication",
		}}},
		DefaultSecurity: []map[string][]string{{"BearerToken": {}}},
	}
}

// operationID is upstream's: "list" and "NamespacedPod" of core/v1 make
// listCoreV1NamespacedPod, tagged core_v1.
func operationID(r common.Route) (id string, tags []string, err error) {
	verb, rest := splitOperation(r.OperationName())
	if verb == "" {
		return "", nil, fmt.Errorf("operation %q does not begin with a verb", r.OperationName())
	}
	parts := strings.Split(strings.Trim(r.Path(), "/"), "/")
	group, version := "core", parts[1]
	if parts[0] == "apis" {
		group, version = strings.TrimSuffix(parts[1], ".k8s.io"), parts[2]
	}
	word := openapi.ToValidOperationID
	return verb + word(group, true) + word(version, true) + rest, []string{word(group, false) + "_" + word(version, false)}, nil
}

func splitOperation(name string) (verb, rest string) {
	for _, v := range []string{"get", "list", "watch", "create", "replace", "patch", "read", "connect", "delete"} {
		if strings.HasPrefix(name, v) {
			return v, title(name[len(v):])
		}
	}
	return "", name
}
