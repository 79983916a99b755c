// SPDX-License-Identifier: Apache-2.0

package kubewarden

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Need is what a policy's metadata say that it will ask of its host.
type Need struct {
	What  string // a capability's path, or a kind that is read
	Grant string // what opens it, as it stands under grants; "" = nothing does
	// Granted: the entry opens it.
	Granted bool
}

// capabilities are the host calls that can be opened.
var capabilities = append([]string{"crypto/v1/is_certificate_trusted", "kubernetes/can_i", "net/v1/dns_lookup_host"}, imageCalls...)

// Needs are all that the metadata name: the kinds that are read, and the host's capabilities.
func (m *Metadata) Needs(e *manifest.Entry) []Need {
	if m == nil {
		return nil
	}
	var out []Need
	for _, r := range m.ContextAwareResources {
		out = append(out, r.need(e))
	}
	for _, pattern := range m.HostCapabilities {
		if n, ok := capability(pattern, e); ok {
			out = append(out, n)
		}
	}
	return out
}

// CheckGrants says which grants an entry lacks.
func (m *Metadata) CheckGrants(e *manifest.Entry) error {
	var errs []error
	for _, n := range m.Needs(e) {
		switch {
		case n.Granted:
		case n.Grant == "":
			errs = append(errs, fmt.Errorf("the policy's metadata name the host capability %q, which this host does not have; it has %s", n.What, strings.Join(capabilities, ", ")))
		default:
			errs = append(errs, fmt.Errorf("the policy's metadata say that it needs %s: grant it with grants.%s", n.What, n.Grant))
		}
	}
	return errors.Join(errs...)
}

func (r ContextResource) need(e *manifest.Entry) Need {
	gvk := schema.FromAPIVersionAndKind(r.APIVersion, r.Kind)
	plural, _ := meta.UnsafeGuessKindToResource(gvk)
	n := Need{What: "to read " + r.APIVersion + " " + r.Kind, Grant: fmt.Sprintf("read: [{resources: [%s]}]", plural.Resource)}
	if gvk.Group != "" {
		n.Grant = fmt.Sprintf("read: [{apiGroups: [%s], resources: [%s]}]", gvk.Group, plural.Resource)
	}
	n.Granted = slices.ContainsFunc(e.Grants.Read, func(g manifest.ReadGrant) bool {
		groups := g.APIGroups
		if len(groups) == 0 {
			groups = []string{""}
		}
		every := slices.Contains(g.Resources, "*") && plural.Resource != "secrets"
		return (slices.Contains(groups, gvk.Group) || slices.Contains(groups, "*")) && (slices.Contains(g.Resources, plural.Resource) || every)
	})
	return n
}

// capability is the need of a capability, which may be a pattern; false where no grant opens it and none has to.
func capability(pattern string, e *manifest.Entry) (Need, bool) {
	prefix, wild := strings.CutSuffix(pattern, "*")
	var named []string
	for _, path := range capabilities {
		if path == pattern || wild && strings.HasPrefix(path, prefix) {
			named = append(named, path)
		}
	}
	n := Need{What: pattern}
	if len(named) == 0 { // objects are read under grants.read, and whoever likes may write to the log
		return n, !strings.HasPrefix(pattern, "kubernetes/") && !strings.HasPrefix(pattern, "tracing/")
	}
	n.What = "the host capability " + pattern
	n.Grant = fmt.Sprintf("capabilities: [%q]", pattern)
	n.Granted = !slices.ContainsFunc(named, func(path string) bool { return !e.Opens(path) })
	return n, true
}
