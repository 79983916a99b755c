// SPDX-License-Identifier: Apache-2.0

// Package keyless checks for plugins that images are signed by somebody to whom an authority of Sigstore's kind gave a
// certificate for some minutes, instead of by a key. The roots of trust are the operator's, from a file: nothing is fetched but
// what the image's registry has about it, and connections go where the plugin's grant allows.
package keyless

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/sigstore/sigstore-go/pkg/root"

	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/sign/evidence"
	"github.com/wasmplane/wasmplane/plugins/sign/trust"
)

// ErrNoRoot is what is answered where the operator named no root of trust.
var ErrNoRoot = errors.New("there is no root of trust for signatures without a key: name its file in the configuration " +
	"(sigstore.trustedRoot)")

// Signers implements hostfn.Signers.
type Signers struct {
	roots           func() (root.TrustedMaterial, error)
	public, private http.RoundTripper
	found           *evidence.Store
}

// New makes one. roots answers the operator's root of trust; nil = there is none. Registries that must not be connected to are
// written down in the ledger.
func New(roots func() (root.TrustedMaterial, error), l *attempts.Ledger) *Signers {
	return &Signers{
		roots: roots, public: hostfn.GuardedTransport(false, nil, l), private: hostfn.GuardedTransport(true, nil, l), found: evidence.New(),
	}
}

// Signed implements hostfn.Signers.
func (s *Signers) Signed(
	ctx context.Context, image string, a hostfn.ImageAccess, by []hostfn.Identity, notes map[string]string,
) (string, error) {
	if s.roots == nil {
		return "", ErrNoRoot
	}
	material, err := s.roots()
	if err != nil {
		return "", err
	}
	// Who may connect to other addresses is shown nothing of theirs, and the other way round.
	from := evidence.Registry{Transport: s.public, PlainHTTP: a.PlainHTTP, Key: strconv.FormatBool(a.Private)}
	if a.Private {
		from.Transport = s.private
	}
	digest, err := s.found.Resolve(ctx, image, from)
	if err != nil {
		return "", err
	}
	found, err := s.found.Of(ctx, digest, name.Repository{}, from)
	if err != nil {
		return "", err
	}
	for _, id := range by {
		// Where the operator trusts no log of certificates, none can be wanted.
		signer := trust.Signer{
			Roots: material, NoSCT: len(material.CTLogs()) == 0, Annotations: notes, Identities: []trust.Identity{identity(id)},
		}
		if err := signer.Image(digest.DigestStr(), found); err != nil {
			return "", fmt.Errorf("signature of %s by %s: %w", image, id, err)
		}
	}
	return digest.DigestStr(), nil
}

func identity(id hostfn.Identity) trust.Identity {
	out := trust.Identity{Issuer: id.Issuer, Subject: id.Subject}
	if id.Prefix != "" {
		out.SubjectRegExp = regexp.QuoteMeta(id.Prefix) + ".*" // of the whole
	}
	return out
}
