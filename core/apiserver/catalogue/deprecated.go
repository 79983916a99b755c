// SPDX-License-Identifier: Apache-2.0

package catalogue

import (
	"strconv"
	"strings"
	"sync"

	"k8s.io/apiserver/pkg/endpoints/deprecation"
	"k8s.io/component-base/version"

	"github.com/wasmplane/wasmplane/core/api"
)

// deprecations are the warnings that come with each request for a kind that is
// on its way out, made once for each.
type deprecations struct {
	mu   sync.Mutex
	made map[versionedResource]deprecated
}

type versionedResource struct {
	resource *api.Resource
	version  string
}

// deprecated is zero for what is not.
type deprecated struct {
	warning   string
	removedIn string // the release that removes it
}

// Deprecation is the warning for one version of a resource, "" for most, and the
// release that removes it.
func (c *Catalogue) Deprecation(r *api.Resource, version string) (warning, removedIn string) {
	d := c.deprecations.of(versionedResource{r, version})
	return d.warning, d.removedIn
}

func (d *deprecations) of(key versionedResource) deprecated {
	d.mu.Lock()
	defer d.mu.Unlock()
	one, ok := d.made[key]
	if !ok {
		one = deprecationOf(key.resource, key.version)
		if d.made == nil {
			d.made = map[versionedResource]deprecated{}
		}
		d.made[key] = one
	}
	return one
}

func deprecationOf(r *api.Resource, version string) deprecated {
	codec := r.Codec(version)
	if codec == nil {
		return deprecated{}
	}
	apiVersion, kind := r.GVK(version).ToAPIVersionAndKind()
	o, err := codec.FromTree(map[string]any{"apiVersion": apiVersion, "kind": kind})
	if err != nil {
		return deprecated{}
	}
	if major, minor := release(); !deprecation.IsDeprecated(o, major, minor) {
		return deprecated{}
	}
	return deprecated{warning: deprecation.WarningMessage(o), removedIn: deprecation.RemovedRelease(o)}
}

// release is the release that this server is of. A build that doesn't say is
// taken for the newest.
func release() (major, minor int) {
	info := version.Get()
	major, majorErr := strconv.Atoi(info.Major)
	minor, minorErr := strconv.Atoi(strings.TrimSuffix(info.Minor, "+"))
	if majorErr != nil || minorErr != nil {
		return 1, 1 << 16
	}
	return major, minor
}
