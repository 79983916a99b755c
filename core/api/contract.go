// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/capabilities"

	"github.com/wasmplane/wasmplane/core/api/kinds"
	"github.com/wasmplane/wasmplane/core/api/live"
	"github.com/wasmplane/wasmplane/core/object"
)

// New builds the contract: the table of everything built in. It costs a few
// milliseconds; schemas, OpenAPI documents and field managers are made when
// first asked for.
func New() (*Contract, error) {
	// Upstream's validation refuses privileged containers unless it is told that
	// they may be. Whether they may in a namespace, PodSecurity says.
	capabilities.Setup(true, 0)
	c := &Contract{byName: map[schema.GroupResource]*Resource{}, groups: kinds.Groups(), schemes: kinds.NewSchemes()}
	c.link = &live.Link{Builtin: c.resourceOf}
	for _, row := range kinds.Rows(c.schemes, c.link) {
		r, err := derived{row}.build(c.versionsOf(row.Group))
		if err != nil {
			return nil, fmt.Errorf("table row %s of group %q: %w", row.Name, row.Group, err)
		}
		if _, twice := c.byName[r.GroupResource]; twice {
			return nil, fmt.Errorf("table row %s appears twice", r.GroupResource)
		}
		c.byName[r.GroupResource] = r
		c.resources = append(c.resources, r)
	}
	c.models = newModels(c)
	return c, nil
}

// Groups lists the served API groups in discovery order, the core group first.
func (c *Contract) Groups() []Group { return c.groups }

// InVersion lists the rows that a group version serves, by name.
func (c *Contract) InVersion(gv schema.GroupVersion) []*Resource {
	var out []*Resource
	for _, r := range c.resources {
		if r.Group == gv.Group && r.Serves(gv.Version) {
			out = append(out, r)
		}
	}
	return out
}

// Lookup finds the row and the codec that serve a group, version and resource name.
func (c *Contract) Lookup(gvr schema.GroupVersionResource) (*Resource, object.Codec, bool) {
	r, ok := c.byName[gvr.GroupResource()]
	if !ok || !r.Serves(gvr.Version) {
		return nil, nil, false
	}
	return r, r.Codec(gvr.Version), true
}

// ByKind finds the row whose objects have a kind: the mapping that patches,
// owner references and policies ask for.
func (c *Contract) ByKind(gk schema.GroupKind) (*Resource, bool) {
	for _, r := range c.resources {
		if r.Group == gk.Group && r.Kind == gk.Kind {
			return r, true
		}
	}
	return nil, false
}

func (c *Contract) resourceOf(gvk schema.GroupVersionKind) (schema.GroupVersionResource, bool) {
	if r, ok := c.ByKind(gvk.GroupKind()); ok && r.Serves(gvk.Version) {
		return r.GroupResource.WithVersion(gvk.Version), true
	}
	return schema.GroupVersionResource{}, false
}

// Connect hands the strategies what they ask of the running server. It may be
// called again, at any time.
func (c *Contract) Connect(s live.Server) { c.link.Connect(s) }

// GVK is the kind of r's objects in one version.
func (r *Resource) GVK(version string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.Group, Version: version, Kind: r.Kind}
}

func (c *Contract) versionsOf(group string) []string {
	for _, g := range c.groups {
		if g.Name == group {
			return g.Versions
		}
	}
	return nil
}
