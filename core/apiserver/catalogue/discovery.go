// SPDX-License-Identifier: Apache-2.0

package catalogue

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sort"
	"strings"

	"github.com/gorilla/mux"
	"github.com/munnerz/goautoneg"
	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/wasmplane/wasmplane/core/aggregator"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/apiserver/answer"
	"github.com/wasmplane/wasmplane/core/object"
)

// documents of one set of resources. Nobody changes them.
type documents struct {
	generation uint64 // of our own resources
	remote     uint64 // of other servers'
	groupList  []metav1.APIGroup
	lists      map[schema.GroupVersion]*metav1.APIResourceList
	core, rest aggregated
}

// aggregated is one aggregated document in both of its versions, with its ETag.
type aggregated struct {
	v2, v2beta1 []byte
	etag        string
}

// current are the documents of what is served now. They are made once for each set
// of resources, in both shapes: one document a group version, and everything in one
// (aggregated).
func (c *Catalogue) current() *documents {
	resources, generation := c.registries.Resources()
	remotes, remote := c.remotes()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil || c.made.generation != generation || c.made.remote != remote {
		c.made = c.document(resources, remotes)
		c.made.generation, c.made.remote = generation, remote
	}
	return c.made
}

// groupOf are the versions and resources of one API group, in the order of discovery.
type groupOf struct {
	name      string
	versions  []string
	resources []*api.Resource
}

func (c *Catalogue) groupsOf(resources []*api.Resource) []*groupOf {
	var groups []*groupOf
	byName := map[string]*groupOf{}
	for _, g := range c.contract.Groups() {
		one := &groupOf{name: g.Name, versions: slices.Clone(g.Versions)}
		groups, byName[g.Name] = append(groups, one), one
	}
	var added []*groupOf
	for _, r := range resources {
		if r.Unlisted {
			continue
		}
		g := byName[r.Group]
		if g == nil {
			g = &groupOf{name: r.Group}
			byName[r.Group] = g
			added = append(added, g)
		}
		g.resources = append(g.resources, r)
		for _, v := range r.Versions {
			if !slices.Contains(g.versions, v) {
				g.versions = append(g.versions, v)
				sort.SliceStable(g.versions, func(i, j int) bool { return version.CompareKubeAwareVersionStrings(g.versions[i], g.versions[j]) > 0 })
			}
		}
	}
	for _, g := range added {
		slices.SortFunc(g.resources, func(a, b *api.Resource) int {
			return strings.Compare(a.GroupResource.Resource, b.GroupResource.Resource)
		})
	}
	slices.SortFunc(added, func(a, b *groupOf) int { return strings.Compare(a.name, b.name) })
	return slices.DeleteFunc(append(groups, added...), func(g *groupOf) bool { return len(g.resources) == 0 })
}

func (c *Catalogue) document(resources []*api.Resource, remotes []*aggregator.Remote) *documents {
	d := &documents{lists: map[schema.GroupVersion]*metav1.APIResourceList{}}
	elsewhere := map[schema.GroupVersion]bool{}
	for _, r := range remotes {
		elsewhere[r.GroupVersion()] = true
	}
	var all []discoveryv2.APIGroupDiscovery
	for _, g := range c.groupsOf(resources) {
		group := metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: g.name}
		one := discoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.name}}
		for _, v := range g.versions {
			gv := schema.GroupVersion{Group: g.name, Version: v}
			if elsewhere[gv] {
				continue
			}
			list, detail := resourceList(gv, g.resources)
			if len(list.APIResources) == 0 {
				continue
			}
			d.lists[gv] = list
			group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: v})
			one.Versions = append(one.Versions,
				discoveryv2.APIVersionDiscovery{Version: v, Resources: detail, Freshness: discoveryv2.DiscoveryFreshnessCurrent})
		}
		if len(group.Versions) == 0 {
			continue
		}
		group.PreferredVersion = group.Versions[0]
		if g.name == "" {
			d.core = aggregate([]discoveryv2.APIGroupDiscovery{one})
			continue
		}
		d.groupList = append(d.groupList, group)
		all = append(all, one)
	}
	all = d.join(all, remotes)
	d.rest = aggregate(all)
	return d
}

// resourceList describes one group version in both shapes.
func resourceList(gv schema.GroupVersion, resources []*api.Resource) (*metav1.APIResourceList, []discoveryv2.APIResourceDiscovery) {
	list := &metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String(),
		APIResources: []metav1.APIResource{},
	}
	var detail []discoveryv2.APIResourceDiscovery
	for _, r := range resources {
		if !r.Serves(gv.Version) || r.Unlisted {
			continue
		}
		verbs := verbsOf(r)
		one := metav1.APIResource{
			Name: r.GroupResource.Resource, SingularName: r.Singular, Namespaced: r.Namespaced, Kind: r.Kind,
			Verbs: verbs, ShortNames: r.ShortNames, Categories: r.Categories,
		}
		if !r.Virtual {
			one.StorageVersionHash = storageHash(r.StorageVersion, r.Kind)
		}
		list.APIResources = append(list.APIResources, one)
		scope := discoveryv2.ScopeCluster
		if r.Namespaced {
			scope = discoveryv2.ScopeNamespace
		}
		d := discoveryv2.APIResourceDiscovery{
			Resource: r.GroupResource.Resource, SingularResource: r.Singular, Scope: scope, Verbs: verbs, ShortNames: r.ShortNames,
			Categories:   r.Categories,
			ResponseKind: &metav1.GroupVersionKind{Group: gv.Group, Version: gv.Version, Kind: r.Kind},
		}
		for _, sub := range subresources(r, gv.Version) {
			kind := sub.Kind
			if kind.Group == r.Group && kind.Kind == r.Kind {
				kind.Version = gv.Version // the parent in the version that was asked for
			}
			entry := metav1.APIResource{Name: r.GroupResource.Resource + "/" + sub.Name, Namespaced: r.Namespaced, Kind: kind.Kind, Verbs: sub.Verbs}
			if kind.GroupVersion() != gv {
				entry.Group, entry.Version = kind.Group, kind.Version
			}
			list.APIResources = append(list.APIResources, entry)
			d.Subresources = append(d.Subresources, discoveryv2.APISubresourceDiscovery{
				Subresource: sub.Name, Verbs: sub.Verbs, ResponseKind: &metav1.GroupVersionKind{
					Group: kind.Group, Version: kind.Version,
					Kind: kind.Kind,
				},
			})
		}
		detail = append(detail, d)
	}
	return list, detail
}

// verbsOf leaves out what a resource that is being deleted does not take any more.
func verbsOf(r *api.Resource) []string {
	if !r.Terminating {
		return r.Verbs
	}
	return []string{"delete", "deletecollection", "get", "list", "watch"}
}

func subresources(r *api.Resource, version string) []*api.Subresource {
	var out []*api.Subresource
	for _, sub := range r.SubresourcesIn(version) {
		out = append(out, sub)
	}
	slices.SortFunc(out, func(a, b *api.Subresource) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// storageHash is upstream's: clients compare it to see whether the stored form changed.
func storageHash(gv schema.GroupVersion, kind string) string {
	sum := sha256.Sum256([]byte(gv.Group + "/" + gv.Version + "/" + kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}

func aggregate(groups []discoveryv2.APIGroupDiscovery) aggregated {
	if groups == nil {
		groups = []discoveryv2.APIGroupDiscovery{}
	}
	list := discoveryv2.APIGroupDiscoveryList{Items: groups}
	encode := func(v string) []byte {
		list.TypeMeta = metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/" + v}
		data, err := json.Marshal(list)
		if err != nil {
			return nil // plain structs of strings always encode
		}
		return append(data, '\n')
	}
	a := aggregated{v2: encode("v2"), v2beta1: encode("v2beta1")}
	a.etag = fmt.Sprintf(`"%X"`, sha512.Sum512(a.v2))
	return a
}

// wanted is the version of the aggregated document that the client prefers to
// the plain ones; "" = it wants those.
func wanted(req *http.Request) string {
	header := req.Header.Get("Accept")
	if !strings.Contains(header, "APIGroupDiscoveryList") {
		return ""
	}
	for _, clause := range goautoneg.ParseAccept(header) {
		switch {
		case clause.Type != "application" || clause.SubType != "json" && clause.SubType != "*":
			continue
		case clause.Params["as"] == "":
			return ""
		case clause.Params["as"] == "APIGroupDiscoveryList" && clause.Params["g"] == "apidiscovery.k8s.io":
			if v := clause.Params["v"]; v == "v2" || v == "v2beta1" {
				return v
			}
		}
	}
	return ""
}

// aggregated answers with the aggregated document if the client wants it.
func (c *Catalogue) aggregated(w http.ResponseWriter, req *http.Request, a aggregated) bool {
	v := wanted(req)
	w.Header().Set("Vary", "Accept")
	if v == "" {
		return false
	}
	w.Header().Set("ETag", a.etag)
	w.Header().Set("Cache-Control", "public")
	if req.Header.Get("If-None-Match") == a.etag {
		w.WriteHeader(http.StatusNotModified)
		return true
	}
	data := a.v2
	if v == "v2beta1" {
		data = a.v2beta1
	}
	c.answers.Bytes(w, req, object.JSON+";g=apidiscovery.k8s.io;v="+v+";as=APIGroupDiscoveryList", http.StatusOK, data)
	return true
}

// Core serves /api.
func (c *Catalogue) Core(w http.ResponseWriter, req *http.Request) {
	if c.aggregated(w, req, c.current().core) {
		return
	}
	c.write(w, req, &metav1.APIVersions{
		TypeMeta:                   metav1.TypeMeta{Kind: "APIVersions"},
		Versions:                   []string{"v1"},
		ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: c.address(req)}},
	})
}

func (c *Catalogue) address(req *http.Request) string {
	if addr, ok := req.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		return addr.String()
	}
	return req.Host
}

// Groups serves /apis.
func (c *Catalogue) Groups(w http.ResponseWriter, req *http.Request) {
	docs := c.current()
	if c.aggregated(w, req, docs.rest) {
		return
	}
	groups := slices.Clone(docs.groupList)
	for i := range groups {
		groups[i].TypeMeta = metav1.TypeMeta{}
	}
	c.write(w, req, &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: groups})
}

// Group serves /apis/GROUP.
func (c *Catalogue) Group(w http.ResponseWriter, req *http.Request) {
	name := mux.Vars(req)["group"]
	for _, g := range c.current().groupList {
		if g.Name == name {
			c.write(w, req, &g)
			return
		}
	}
	c.answers.NotFound(w, req)
}

// Resources serves /api/VERSION and /apis/GROUP/VERSION.
func (c *Catalogue) Resources(w http.ResponseWriter, req *http.Request) {
	vars := mux.Vars(req)
	list, ok := c.current().lists[schema.GroupVersion{Group: vars["group"], Version: vars["version"]}]
	if !ok {
		c.answers.NotFound(w, req)
		return
	}
	c.write(w, req, list)
}

func (c *Catalogue) write(w http.ResponseWriter, req *http.Request, o runtime.Object) {
	f, err := answer.Negotiate(req, false)
	if err != nil {
		c.answers.Fail(w, req, err)
		return
	}
	c.answers.Value(w, req, f, http.StatusOK, o)
}
