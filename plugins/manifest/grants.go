// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/plugins/abi"
)

// Grants name what a plugin may do besides deciding. Nothing is granted by default.
type Grants struct {
	// Clock: the real time, by clock.now and by WASI.
	Clock bool `yaml:"clock"`
	// Random: real random numbers, by random.bytes and by WASI.
	Random bool `yaml:"random"`
	// Log: records in the process's log.
	Log bool `yaml:"log"`
	// Read lets the plugin read API objects; any of the grants has to cover a call.
	Read []ReadGrant `yaml:"read"`
	// AccessReview lets it ask who may do what.
	AccessReview bool `yaml:"accessReview"`
	// Events lets it record events about objects.
	Events bool `yaml:"events"`
	// State gives it a key-value store of its own.
	State StateGrant `yaml:"state"`
	// Images lets it look up digests, manifests, configurations and signatures of images.
	Images ImageGrant `yaml:"images"`
	// HTTP lets it send requests over https to named hosts.
	HTTP []HTTPGrant `yaml:"http"`
	// DNS lets it look up the addresses of these names; "*.example.com" is every name below it.
	DNS []string `yaml:"dns"`
	// Certificates lets it ask whether a certificate is signed by a chain or by the roots of this machine.
	Certificates bool `yaml:"certificates"`
	// Reclaim lets a plugin of scheduling name groups whose pods make room for others of the
	// same or a higher priority.
	Reclaim ReclaimGrant `yaml:"reclaim"`
	// Capabilities are host calls of Kubewarden policies that are open, by path:
	// "oci/v1/verify", "oci/*", "*". They open dns, images, certificates and accessReview where
	// these say nothing themselves; objects are read under read only.
	Capabilities []string `yaml:"capabilities"`
}

// ReadGrant covers objects. "*" in resources is every resource but secrets,
// which have to be named.
type ReadGrant struct {
	// APIGroups of the resources; empty: the core group ("").
	APIGroups []string `yaml:"apiGroups"`
	Resources []string `yaml:"resources"`
	// Namespaces: objects in these only; empty: everywhere, cluster-wide objects included.
	Namespaces []string `yaml:"namespaces"`
	// Names: objects with these names only.
	Names []string `yaml:"names"`
	// Fields that the plugin may see, as paths ("metadata.labels", "spec.rules[*].host"); empty: all.
	Fields []string `yaml:"fields"`
}

// StateGrant is a key-value store that only this plugin sees.
type StateGrant struct {
	// Size of all keys and values together, at most 512Ki; 0: no store.
	Size Bytes `yaml:"size"`
}

// ImageGrant opens registries for look-ups.
type ImageGrant struct {
	// Registries by host name, with the port where it is not 443; "*.example.com"
	// is every name below it, "*" every public registry.
	Registries []string `yaml:"registries"`
	// PlainHTTP lists registries that are asked without TLS.
	PlainHTTP []string `yaml:"plainHTTP"`
	// Private allows registries with private addresses.
	Private bool `yaml:"private"`
}

// HTTPGrant opens hosts for requests over https.
type HTTPGrant struct {
	// Hosts by name, with the port where it is not 443. No patterns.
	Hosts []string `yaml:"hosts"`
	// Methods; empty: GET and HEAD.
	Methods []string `yaml:"methods"`
	// Paths that requests may begin with; empty: all.
	Paths []string `yaml:"paths"`
	// Private allows loopback, link-local and private addresses.
	Private bool `yaml:"private"`
	// CAFile holds the authorities to trust, as PEM; empty: those of the system.
	CAFile string `yaml:"caFile"`
}

// ReclaimGrant lets pods make room whatever the priority of the pod that needs it.
type ReclaimGrant struct {
	// HighestPriority of a pod that makes room; empty: none has to. 1000000000 is the highest that a
	// PriorityClass of a cluster's users can have.
	HighestPriority *int32 `yaml:"highestPriority"`
}

// stateLimit bounds what a plugin may keep: the store behind it holds objects of at most 1 MiB.
const stateLimit = 512 << 10

var hostForm = regexp.MustCompile(`^(\*|(\*\.)?[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?(:[0-9]{1,5})?|\[[0-9a-fA-F:]+\](:[0-9]{1,5})?)$`)

// check says which field is wrong and why; "" where nothing is.
func (g *Grants) check() (field, problem string) {
	for i, r := range g.Read {
		at := fmt.Sprintf("grants.read[%d]", i)
		if len(r.Resources) == 0 {
			return at, `resources are missing, such as [namespaces]; "*" is all of them but secrets`
		}
		for _, f := range r.Fields {
			if _, err := abi.NewMask([]string{f}); err != nil {
				return at + ".fields", err.Error()
			}
		}
	}
	if g.State.Size > stateLimit {
		return "grants.state.size", fmt.Sprintf("at most 512Ki can be kept, found %d bytes", g.State.Size)
	}
	for i, h := range g.HTTP {
		at := fmt.Sprintf("grants.http[%d]", i)
		if len(h.Hosts) == 0 {
			return at, "hosts are missing, such as [api.example.com]"
		}
		for _, name := range h.Hosts {
			if strings.Contains(name, "*") || !hostForm.MatchString(name) {
				return at + ".hosts", fmt.Sprintf("expected a host name such as api.example.com or api.example.com:8443, found %q", name)
			}
		}
		for _, m := range h.Methods {
			if !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}, m) {
				return at + ".methods", fmt.Sprintf("expected GET, HEAD, POST, PUT, PATCH or DELETE, found %q", m)
			}
		}
	}
	for field, list := range map[string][]string{
		"grants.dns": g.DNS, "grants.images.registries": g.Images.Registries, "grants.images.plainHTTP": g.Images.PlainHTTP,
	} {
		for _, name := range list {
			if !hostForm.MatchString(name) {
				return field, fmt.Sprintf("expected a host name or a pattern such as *.example.com, found %q", name)
			}
		}
	}
	return "", ""
}

// checkGrants reports what check finds, with its line.
func (e *Entry) checkGrants(n *yaml.Node, path string) error {
	if field, problem := e.Grants.check(); field != "" {
		return fault(n, path, field, problem)
	}
	return nil
}

// Opens says whether a host call of a Kubewarden policy is open: by a capability,
// or, where there are none, by the grant of the same thing.
func (e *Entry) Opens(path string) bool {
	g := &e.Grants
	if len(g.Capabilities) == 0 {
		switch {
		case path == "net/v1/dns_lookup_host":
			return len(g.DNS) > 0
		case path == "kubernetes/can_i":
			return g.AccessReview
		case path == "crypto/v1/is_certificate_trusted":
			return g.Certificates
		case strings.HasPrefix(path, "oci/"):
			return len(g.Images.Registries)+len(g.Images.PlainHTTP) > 0
		}
		return false
	}
	return slices.ContainsFunc(g.Capabilities, func(pattern string) bool {
		prefix, wild := strings.CutSuffix(pattern, "*")
		return pattern == path || wild && strings.HasPrefix(path, prefix)
	})
}
