// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/rego/bundle"
)

// Bundle is how a bundle of Open Policy Agent is verified.
type Bundle struct {
	// Keys, one of which has to have signed the bundle. With keys a source needs no digest: it is
	// asked every fetch.check, and what it then holds is loaded if the signature counts.
	Keys []BundleKey `yaml:"keys"`
	// Scope that the signature has to have.
	Scope string `yaml:"scope"`
}

// BundleKey is a key that signs bundles.
type BundleKey struct {
	// ID is what signatures call it.
	ID string `yaml:"id"`
	// Algorithm: RS256, PS256, ES256, with 256, 384 or 512. Default: RS256.
	Algorithm string `yaml:"algorithm"`
	// Key is a public key in PEM, or a file that holds one.
	Key string `yaml:"key"`
}

func (b *Bundle) signed() bool { return b != nil && len(b.Keys) > 0 }

// algorithms are those in which bundles are signed with a pair of keys. A secret that
// verifies could sign too, and entries are no place for it.
var algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"}

// mostKeys bounds the keys of a bundle.
const mostKeys = 16

func (e *Entry) checkBundle(n *yaml.Node, path string) error {
	b := e.Bundle
	if b == nil {
		return nil
	}
	if e.ABI == "" {
		e.ABI = OPA
	}
	switch {
	case e.ABI != OPA:
		return fault(n, path, "abi", fmt.Sprintf("a bundle is for Open Policy Agent: expected %s, found %q", OPA, e.ABI))
	case len(e.Signatures) > 0:
		return fault(n, path, "signatures", "a bundle holds its own signature: use bundle.keys")
	case len(b.Keys) > mostKeys:
		return fault(n, path, "bundle.keys", fmt.Sprintf("at most %d keys, found %d", mostKeys, len(b.Keys)))
	case b.Scope != "" && len(b.Keys) == 0:
		return fault(n, path, "bundle.scope", "a scope is part of a signature: keys are missing (bundle.keys)")
	}
	ids := map[string]bool{}
	for i := range b.Keys {
		k := &b.Keys[i]
		at := fmt.Sprintf("bundle.keys[%d]", i)
		if k.Algorithm == "" {
			k.Algorithm = algorithms[0]
		}
		switch {
		case k.ID == "" || ids[k.ID]:
			return fault(n, path, at+".id", fmt.Sprintf("expected a name that no other key has, found %q", k.ID))
		case !slices.Contains(algorithms, k.Algorithm):
			return fault(n, path, at+".algorithm", fmt.Sprintf("expected one of %s, found %q", strings.Join(algorithms, ", "), k.Algorithm))
		case strings.TrimSpace(k.Key) == "":
			return fault(n, path, at+".key", "the key is missing: a file with a public key, or the key itself in PEM")
		}
		ids[k.ID] = true
	}
	return nil
}

// OpenBundle reads and verifies what the source holds. keys are the texts of the entry's.
func (e *Entry) OpenBundle(archive []byte, keys map[string]bundle.Key) (*bundle.Bundle, error) {
	return bundle.Read(archive, bundle.Options{
		Keys: keys, Scope: e.Bundle.Scope, Entrypoint: e.Entrypoint, Pinned: e.Pinned(),
		Authorization: slices.Contains(e.Points, string(abi.Authorization)),
	})
}
