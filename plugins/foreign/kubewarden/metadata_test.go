// SPDX-License-Identifier: Apache-2.0

package kubewarden

import (
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// TestTheProtocolsThatKwctlWrites: it annotates policies that are asked in no protocol
// of its own, from Rego and as commands, with "Unknown".
func TestTheProtocolsThatKwctlWrites(t *testing.T) {
	for _, c := range []struct {
		mode, protocol string
		good           bool
	}{
		{"kubewarden-wapc", "v1", true},
		{"kubewarden-wapc", "", true},
		{"kubewarden-wapc", "Unknown", false},
		{"kubewarden-wapc", "v2", false},
		{"opa", "Unknown", true},
		{"gatekeeper", "Unknown", true},
		{"wasi", "Unknown", true},
		{"wasi", "v1", true},
		{"opa", "v2", false},
	} {
		m := &Metadata{ExecutionMode: c.mode, ProtocolVersion: c.protocol}
		if err := m.Check(); (err == nil) != c.good {
			t.Errorf("%s %s: %v", c.mode, c.protocol, err)
		}
	}
}

// TestWhatAPolicyWillNeed: what the metadata name is held against the grants, and the error names the grant to give.
func TestWhatAPolicyWillNeed(t *testing.T) {
	m := &Metadata{
		ContextAwareResources: []ContextResource{{APIVersion: "v1", Kind: "Namespace"}, {APIVersion: "networking.k8s.io/v1", Kind: "Ingress"}},
		HostCapabilities:      []string{"oci/*", "net/v1/dns_lookup_host", "kubernetes/list_resources_all", "tracing/log"},
	}
	read := []manifest.ReadGrant{{Resources: []string{"namespaces"}}, {APIGroups: []string{"*"}, Resources: []string{"*"}}}
	for name, c := range map[string]struct {
		grants manifest.Grants
		lacks  []string
	}{
		"nothing": {manifest.Grants{}, []string{
			"to read v1 Namespace: grant it with grants.read: [{resources: [namespaces]}]",
			"to read networking.k8s.io/v1 Ingress: grant it with grants.read: [{apiGroups: [networking.k8s.io], resources: [ingresses]}]",
			`the host capability oci/*: grant it with grants.capabilities: ["oci/*"]`,
			`the host capability net/v1/dns_lookup_host: grant it with grants.capabilities: ["net/v1/dns_lookup_host"]`,
		}},
		"capabilities":    {manifest.Grants{Read: read, Capabilities: []string{"*"}}, nil},
		"the same things": {manifest.Grants{Read: read, DNS: []string{"*"}, Images: manifest.ImageGrant{Registries: []string{"*"}}}, nil},
		"only a part":     {manifest.Grants{Read: read, Capabilities: []string{"oci/v1/verify", "net/*"}}, []string{"the host capability oci/*"}},
		"another group":   {manifest.Grants{Read: read[:1], Capabilities: []string{"*"}}, []string{"to read networking.k8s.io/v1 Ingress"}},
	} {
		err := m.CheckGrants(&manifest.Entry{Grants: c.grants})
		if (err == nil) != (len(c.lacks) == 0) || err != nil && strings.Count(err.Error(), "\n") != len(c.lacks)-1 {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range c.lacks {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
	secret := &Metadata{
		ContextAwareResources: []ContextResource{{APIVersion: "v1", Kind: "Secret"}},
		HostCapabilities:      []string{"oci/v9/bake"},
	}
	err := secret.CheckGrants(&manifest.Entry{Grants: manifest.Grants{Read: read}})
	if err == nil || !strings.Contains(err.Error(), "[{resources: [secrets]}]") || !strings.Contains(err.Error(),
		`"oci/v9/bake", which this host does not have`) {
		t.Errorf("secrets and unknown capabilities: %v", err)
	}
}
