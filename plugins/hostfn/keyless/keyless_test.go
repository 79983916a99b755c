// SPDX-License-Identifier: Apache-2.0

package keyless_test

import (
	"encoding/base64"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"

	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/hostfn/keyless"
	"github.com/wasmplane/wasmplane/plugins/sign"
	"github.com/wasmplane/wasmplane/plugins/sign/trust"
	"github.com/wasmplane/wasmplane/plugins/sign/trust/trusttest"
)

const (
	issuer = "https://token.actions.example.com"
	person = "https://code.example.com/team/app/.build/release.yml@main"
)

// signed pushes an image, with a signature as cosign writes it, and answers its digest.
func signed(t *testing.T, s *ca.VirtualSigstore, image string, notes map[string]string) string {
	t.Helper()
	ref, err := name.ParseReference(image, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	img, err := random.Image(64, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	payload, err := sign.NewPayload(digest.String(), image, notes)
	if err != nil {
		t.Fatal(err)
	}
	one := trusttest.Keyless(t, s, trust.Identity{Issuer: issuer, Subject: person}, payload, time.Now().Add(5*time.Minute))
	signature, err := mutate.Append(empty.Image, mutate.Addendum{
		Layer: static.NewLayer(payload, "application/vnd.dev.cosign.simplesigning.v1+json"),
		Annotations: map[string]string{
			"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(one.Signature),
			"dev.sigstore.cosign/certificate":    string(one.Certificate), "dev.sigstore.cosign/bundle": string(one.Log),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref.Context().Tag(strings.Replace(digest.String(), ":", "-", 1)+".sig"), signature); err != nil {
		t.Fatal(err)
	}
	return digest.String()
}

// withoutCertificateLogs is a root of trust that names none; the test library's certificates are in none.
type withoutCertificateLogs struct{ root.TrustedMaterial }

func (withoutCertificateLogs) CTLogs() map[string]*root.TransparencyLog { return nil }

func TestWhoHasSignedAnImage(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	s, err := ca.NewVirtualSigstore()
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := ca.NewVirtualSigstore()
	if err != nil {
		t.Fatal(err)
	}
	image := strings.TrimPrefix(server.URL, "http://") + "/team/app:1"
	digest := signed(t, s, image, map[string]string{"stage": "release"})
	material := func(m root.TrustedMaterial) *keyless.Signers {
		return keyless.New(func() (root.TrustedMaterial, error) { return m, nil }, nil)
	}
	trusts := func(s *ca.VirtualSigstore) *keyless.Signers { return material(withoutCertificateLogs{s}) }
	own := hostfn.ImageAccess{PlainHTTP: true, Private: true}
	by := func(ids ...hostfn.Identity) []hostfn.Identity { return ids }
	exact := hostfn.Identity{Issuer: issuer, Subject: person}
	prefix := func(p string) hostfn.Identity { return hostfn.Identity{Issuer: issuer, Prefix: p} }
	other := hostfn.Identity{Issuer: "https://other.example.com", Subject: person}
	release := map[string]string{"stage": "release"}
	for _, c := range []struct {
		name    string
		signers *keyless.Signers
		access  hostfn.ImageAccess
		by      []hostfn.Identity
		notes   map[string]string
		want    string // "" = trusted
	}{
		{"by name", trusts(s), own, by(exact), nil, ""},
		{"by the begin of it, with a note", trusts(s), own, by(prefix("https://code.example.com/team/")), release, ""},
		{"by both", trusts(s), own, by(exact, prefix("https://code.example.com/")), nil, ""},
		{"a prefix is no expression", trusts(s), own, by(prefix("https://code.example.com/te.m/")), nil, "no signature counts"},
		{"a prefix is no part", trusts(s), own, by(prefix("code.example.com/team/")), nil, "no signature counts"},
		{"by her and by another", trusts(s), own, by(exact, hostfn.Identity{Issuer: issuer, Subject: "bob"}), nil, "by bob (" + issuer + ")"},
		{"vouched for by another", trusts(s), own, by(other), nil, "no signature counts"},
		{"without the note", trusts(s), own, by(exact), map[string]string{"stage": "test"}, "annotation stage"},
		{"by a root that is not trusted", trusts(stranger), own, by(exact), nil, "no transparency log that is trusted"},
		{"by a certificate that is in no log", material(s), own, by(exact), nil, "its certificate is in no log"},
		{"without a root", keyless.New(nil, nil), own, by(exact), nil, "sigstore.trustedRoot"},
		{"at an address that is not granted", trusts(s), hostfn.ImageAccess{PlainHTTP: true}, by(exact), nil, "127.0.0.1"},
	} {
		got, err := c.signers.Signed(t.Context(), image, c.access, c.by, c.notes)
		if c.want == "" && (err != nil || got != digest) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || got != "") {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}
