package apiserver

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
	said map[deprecated]string
	gone map[deprecated]string // the release that removes it
}

type deprecated struct {
	resource *api.Resource
	version  string
}

// of is the warning for one version of a resource; "" for most.
func (d *deprecations) of(r *api.Resource, v string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := deprecated{r, v}
	if text, ok := d.said[key]; ok {
		return text
	}
	text := ""
	apiVersion, kind := r.GVK(v).ToAPIVersionAndKind()
	if codec := r.Codec(v); codec != nil {
		o, err := codec.FromTree(map[string]any{"apiVersion": apiVersion, "kind": kind})
		if major, minor := release(); err == nil && deprecation.IsDeprecated(o, major, minor) {
			text = deprecation.WarningMessage(o)
			if d.gone == nil {
				d.gone = map[deprecated]string{}
			}
			d.gone[key] = deprecation.RemovedRelease(o)
		}
	}
	if d.said == nil {
		d.said = map[deprecated]string{}
	}
	d.said[key] = text
	return text
}

// removed is the release that removes what of has a warning for.
func (d *deprecations) removed(r *api.Resource, v string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gone[deprecated{r, v}]
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
