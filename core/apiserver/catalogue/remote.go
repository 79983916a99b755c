// SPDX-License-Identifier: Apache-2.0

package catalogue

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"github.com/gorilla/mux"
	"google.golang.org/protobuf/proto"
	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/wasmplane/wasmplane/core/aggregator"
	"github.com/wasmplane/wasmplane/core/api/openapi"
)

// remotes are the group versions that other servers serve, in the order of
// discovery, and a number that changes when they do.
func (c *Catalogue) remotes() ([]*aggregator.Remote, uint64) {
	if c.aggregator == nil {
		return nil, 0
	}
	return c.aggregator.Remotes()
}

func (c *Catalogue) remoteOf(gv schema.GroupVersion) (*aggregator.Remote, bool) {
	if c.aggregator == nil || gv.Group == "" {
		return nil, false
	}
	return c.aggregator.Remote(gv)
}

// Elsewhere matches requests that another server answers. The group version is
// the one that was authorized: request info's for resources, and for the rest,
// which is discovery, the path's.
func (c *Catalogue) Elsewhere(req *http.Request, _ *mux.RouteMatch) bool {
	info, ok := genericrequest.RequestInfoFrom(req.Context())
	return ok && c.IsRemote(info)
}

// IsRemote says whether another server serves the group version of a request.
func (c *Catalogue) IsRemote(info *genericrequest.RequestInfo) bool {
	_, ok := c.remoteOf(versionOf(info))
	return ok
}

// versionOf is the group version that a request names.
func versionOf(info *genericrequest.RequestInfo) schema.GroupVersion {
	if info.IsResourceRequest {
		return schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	}
	parts := strings.Split(strings.Trim(info.Path, "/"), "/")
	if len(parts) != 3 || parts[0] != "apis" {
		return schema.GroupVersion{}
	}
	return schema.GroupVersion{Group: parts[1], Version: parts[2]}
}

// ServeRemote passes a request on to the server that has the group version.
func (c *Catalogue) ServeRemote(w http.ResponseWriter, req *http.Request) {
	info, _ := genericrequest.RequestInfoFrom(req.Context())
	r, ok := c.remoteOf(versionOf(info))
	if !ok { // gone since the route matched
		c.answers.NotFound(w, req)
		return
	}
	c.passOn(w, req, r)
}

// passOn serves a request by another server, until we stop ourselves.
func (c *Catalogue) passOn(w http.ResponseWriter, req *http.Request, r *aggregator.Remote) {
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	defer c.ends.Add(cancel)()
	if err := r.Serve(w, req.WithContext(ctx)); err != nil {
		c.answers.Fail(w, req, err)
	}
}

// join adds other servers' group versions to the documents: groups by their
// priority among ours, versions by theirs within the group.
func (d *documents) join(all []discoveryv2.APIGroupDiscovery, remotes []*aggregator.Remote) []discoveryv2.APIGroupDiscovery {
	for _, r := range remotes {
		gv := r.GroupVersion()
		if gv.Group == "" {
			continue
		}
		i := slices.IndexFunc(d.groupList, func(g metav1.APIGroup) bool { return g.Name == gv.Group })
		if i < 0 {
			i = slices.IndexFunc(d.groupList, func(g metav1.APIGroup) bool { return r.GroupBefore(g.Name) })
			if i < 0 {
				i = len(d.groupList)
			}
			d.groupList = slices.Insert(d.groupList, i, metav1.APIGroup{
				TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"},
				Name:     gv.Group,
			})
			all = slices.Insert(all, i, discoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: gv.Group}})
		}
		group, one := &d.groupList[i], &all[i]
		j := slices.IndexFunc(group.Versions, func(v metav1.GroupVersionForDiscovery) bool { return r.VersionBefore(v.Version) })
		if j < 0 {
			j = len(group.Versions)
		}
		group.Versions = slices.Insert(group.Versions, j, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version})
		group.PreferredVersion = group.Versions[0]
		one.Versions = slices.Insert(one.Versions, j, r.Discovery())
	}
	return all
}

// mergedSpec is our OpenAPI v2 document with other servers' in it. Merging takes
// a good part of a second, so it is done once for each state of both.
type mergedSpec struct {
	mu     sync.Mutex
	own    *openapi.Document
	remote uint64
	merged *openapi.Document
}

func (m *mergedSpec) get(c *Catalogue, own *openapi.Document) (*openapi.Document, error) {
	remotes, generation := c.remotes()
	if !slices.ContainsFunc(remotes, func(r *aggregator.Remote) bool { return r.OpenAPIV2() != nil }) {
		return own, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.merged != nil && m.own == own && m.remote == generation {
		return m.merged, nil
	}
	merged, err := aggregator.MergeV2(own.JSON, remotes)
	if err != nil {
		return nil, err
	}
	parsed, err := openapi_v2.ParseDocument(merged)
	if err != nil {
		return nil, fmt.Errorf("encode the merged OpenAPI v2 document: %w", err)
	}
	encoded, err := proto.Marshal(parsed)
	if err != nil {
		return nil, fmt.Errorf("encode the merged OpenAPI v2 document: %w", err)
	}
	m.own, m.remote, m.merged = own, generation, openapi.NewDocument(merged, encoded)
	return m.merged, nil
}
