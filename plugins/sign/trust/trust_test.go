// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/payload"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/wasmplane/wasmplane/plugins/sign/evidence"
	"github.com/wasmplane/wasmplane/plugins/sign/trust"
	"github.com/wasmplane/wasmplane/plugins/sign/trust/trusttest"
)

const (
	digest  = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	another = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	person  = "ann@example.com"
	issuer  = "https://issuer.example.com"
)

// simple is what cosign signs of an image, as Sigstore's own library writes it.
func simple(t *testing.T, of string, notes map[string]any) []byte {
	t.Helper()
	d, err := name.NewDigest("example.com/app@" + of)
	if err != nil {
		t.Fatal(err)
	}
	text, err := payload.Cosign{Image: d, Annotations: notes}.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func key(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// signed is a signature by a key, as Sigstore's own library makes it.
func signed(t *testing.T, k *ecdsa.PrivateKey, text []byte, hash crypto.Hash) evidence.Signature {
	t.Helper()
	s, err := signature.LoadECDSASigner(k, hash)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := s.SignMessage(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return evidence.Signature{Payload: text, Signature: sig}
}

func wants(t *testing.T, what string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, expected %q", what, err, want)
	}
}

func TestAKeySigns(t *testing.T) {
	k, other := key(t), key(t)
	good := signed(t, k, simple(t, digest, map[string]any{"team": "blue"}), crypto.SHA256)
	changed := good
	changed.Payload = bytes.Replace(good.Payload, []byte("blue"), []byte("gold"), 1)
	for _, c := range []struct {
		name   string
		signer trust.Signer
		found  []evidence.Signature
		want   string
	}{
		{"by the key", trust.Signer{}, []evidence.Signature{good}, ""},
		{"among others", trust.Signer{}, []evidence.Signature{changed, signed(t, other, simple(t, digest, nil), crypto.SHA256), good}, ""},
		{"with annotations", trust.Signer{Annotations: map[string]string{"team": "blue"}}, []evidence.Signature{good}, ""},
		{"with other annotations", trust.Signer{Annotations: map[string]string{"team": "red"}}, []evidence.Signature{good}, "annotation team"},
		{"none", trust.Signer{}, nil, "there is no signature"},
		{"another key", trust.Signer{}, []evidence.Signature{signed(t, other, simple(t, digest, nil), crypto.SHA256)}, "another key"},
		{"changed", trust.Signer{}, []evidence.Signature{changed}, "another key, or what it signs was changed"},
		{"of another image", trust.Signer{}, []evidence.Signature{signed(t, k, simple(t, another, nil), crypto.SHA256)}, "for the manifest " + another},
		{"no payload", trust.Signer{}, []evidence.Signature{signed(t, k, []byte("x"), crypto.SHA256)}, "no JSON"},
		{"by SHA-512", trust.Signer{Hash: crypto.SHA512}, []evidence.Signature{signed(t, k, simple(t, digest, nil), crypto.SHA512)}, ""},
		{"not in the log", trust.Signer{Key: k.Public()}, []evidence.Signature{good}, "no transparency log"},
	} {
		if c.signer.Key == nil {
			c.signer.Key, c.signer.NoLog = k.Public(), true
		}
		wants(t, c.name, c.signer.Image(digest, &evidence.Found{Signatures: c.found}), c.want)
	}
}

func sigstore(t *testing.T) *ca.VirtualSigstore {
	t.Helper()
	s, err := ca.NewVirtualSigstore()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// keyless is a signature of a payload by somebody whose certificate lives for some minutes.
func keyless(t *testing.T, s *ca.VirtualSigstore, text []byte, at time.Time) evidence.Signature {
	t.Helper()
	return trusttest.Keyless(t, s, trust.Identity{Issuer: issuer, Subject: person}, text, at)
}

func TestSomebodySignsWithoutAKey(t *testing.T) {
	s, strange := sigstore(t), sigstore(t)
	soon := time.Now().Add(5 * time.Minute)
	good := keyless(t, s, simple(t, digest, nil), soon)
	unlogged, swapped := good, good
	unlogged.Log = nil
	swapped.Log = keyless(t, s, simple(t, another, nil), soon).Log
	for _, c := range []struct {
		name  string
		id    trust.Identity
		found evidence.Signature
		want  string
	}{
		{"by her", trust.Identity{Issuer: issuer, Subject: person}, good, ""},
		{"by a pattern", trust.Identity{IssuerRegExp: `https://issuer\..*`, SubjectRegExp: `.*@example\.com`}, good, ""},
		{"by a part of a pattern", trust.Identity{Issuer: issuer, SubjectRegExp: `ann@example`}, good, "somebody else"},
		{"by somebody else", trust.Identity{Issuer: issuer, Subject: "eve@example.com"}, good, "somebody else"},
		{"by another issuer's", trust.Identity{Issuer: "https://other.example.com", Subject: person}, good, "somebody else"},
		{"after her certificate", trust.Identity{Issuer: issuer, Subject: person}, keyless(t, s, simple(t, digest, nil), time.Now().Add(45*time.Minute)), "not valid when it was made"},
		{"with a certificate of another authority", trust.Identity{Issuer: issuer, Subject: person}, keyless(t, strange, simple(t, digest, nil), soon), "no transparency log that is trusted"},
		{"not logged", trust.Identity{Issuer: issuer, Subject: person}, unlogged, "no transparency log"},
		{"with the log's entry of another", trust.Identity{Issuer: issuer, Subject: person}, swapped, "no transparency log"},
		{"of another image", trust.Identity{Issuer: issuer, Subject: person}, keyless(t, s, simple(t, another, nil), soon), "for the manifest"},
	} {
		signer := trust.Signer{Roots: s, NoSCT: true, Identities: []trust.Identity{c.id}}
		wants(t, c.name, signer.Image(digest, &evidence.Found{Signatures: []evidence.Signature{c.found}}), c.want)
	}
	strict := trust.Signer{Roots: s, Identities: []trust.Identity{{Issuer: issuer, Subject: person}}}
	wants(t, "a certificate in no log", strict.Image(digest, &evidence.Found{Signatures: []evidence.Signature{good}}), "its certificate is in no log")
}

// statement is one about images.
func statement(kind string, about ...string) []byte {
	var subjects []string
	for _, d := range about {
		subjects = append(subjects, `{"name":"app","digest":{"sha256":"`+strings.TrimPrefix(d, "sha256:")+`"}}`)
	}
	return []byte(`{"_type":"https://in-toto.io/Statement/v1","subject":[` + strings.Join(subjects, ",") + `],"predicateType":"` + kind +
		`","predicate":{"builder":"here"}}`)
}

// bundled is a Sigstore bundle of a statement.
func bundled(t *testing.T, s *ca.VirtualSigstore, text []byte) []byte {
	t.Helper()
	e, err := s.AttestHashedRekordV2(person, issuer, text)
	if err != nil {
		t.Fatal(err)
	}
	content, err := e.VerificationContent()
	if err != nil {
		t.Fatal(err)
	}
	entries, err := e.TlogEntries()
	if err != nil {
		t.Fatal(err)
	}
	entry, err := protojson.Marshal(entries[0].TransparencyLogEntry())
	if err != nil {
		t.Fatal(err)
	}
	sig, err := e.SignatureContent()
	if err != nil {
		t.Fatal(err)
	}
	env := sig.EnvelopeContent().RawEnvelope()
	stamps, err := e.Timestamps()
	if err != nil || len(stamps) != 1 {
		t.Fatal(stamps, err)
	}
	var tle map[string]any
	if err := json.Unmarshal(entry, &tle); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(map[string]any{
		"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
		"verificationMaterial": map[string]any{
			"certificate": map[string]any{"rawBytes": content.Certificate().Raw}, "tlogEntries": []any{tle},
			"timestampVerificationData": map[string]any{"rfc3161Timestamps": []any{map[string]any{"signedTimestamp": stamps[0]}}},
		},
		"dsseEnvelope": map[string]any{
			"payload": env.Payload, "payloadType": env.PayloadType, "signatures": []any{map[string]any{"sig": env.Signatures[0].Sig}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const provenance = "https://slsa.dev/provenance/v1"

func TestBundles(t *testing.T) {
	s := sigstore(t)
	signer := trust.Signer{Roots: s, NoSCT: true, Identities: []trust.Identity{{Issuer: issuer, Subject: person}}}
	said := bundled(t, s, statement(provenance, another, digest))
	found, err := signer.Attested(digest, provenance, &evidence.Found{Bundles: [][]byte{[]byte("{"), said}})
	if err != nil || len(found) != 1 || !strings.Contains(string(found[0].Predicate), "here") {
		t.Errorf("%v, %v", found, err)
	}
	for _, c := range []struct {
		name, digest, kind string
		bundle             []byte
		want               string
	}{
		{"of another type", digest, "https://example.com/other", said, "one is of type " + provenance},
		{"of another image", "sha256:" + strings.Repeat("c", 64), provenance, said, "another image"},
		{"by somebody else's authority", digest, provenance, bundled(t, sigstore(t), statement(provenance, digest)), "no transparency log"},
		{"cut off", digest, provenance, said[:len(said)/2], "cannot be read"},
		{"none", digest, provenance, nil, "cannot be read"},
	} {
		_, err := signer.Attested(c.digest, c.kind, &evidence.Found{Bundles: [][]byte{c.bundle}})
		wants(t, c.name, err, c.want)
	}
	wants(t, "what says something is no signature", signer.Image(digest, &evidence.Found{Bundles: [][]byte{said}}), "there is no signature")
	wants(t, "cosign's newer signature", signer.Image(digest, &evidence.Found{
		Bundles: [][]byte{bundled(t, s, statement("https://sigstore.dev/cosign/sign/v1", digest))},
	}), "")
}

// certificate is one for a key, by a parent; nil = itself.
func certificate(t *testing.T, k *ecdsa.PrivateKey, until time.Time, parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate,
	[]byte,
) {
	t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "signer"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: until,
		IsCA:     parent == nil, BasicConstraintsValid: true,
	}
	if parent == nil {
		c.Subject.CommonName, parent, by = "root", c, k
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, k.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestACertificateSigns(t *testing.T) {
	rootKey, k := key(t), key(t)
	later := time.Now().Add(time.Hour)
	root, rootText := certificate(t, rootKey, later, nil, nil)
	_, strange := certificate(t, key(t), later, nil, nil)
	_, good := certificate(t, k, later, root, rootKey)
	_, old := certificate(t, k, time.Now().Add(-time.Minute), root, rootKey)
	for _, c := range []struct {
		name        string
		cert, chain []byte
		want        string
	}{
		{"by itself", good, nil, ""},
		{"by its chain", good, rootText, ""},
		{"by another's chain", good, strange, "does not certify it"},
		{"expired", old, nil, "is valid from"},
		{"expired, with its chain", old, rootText, "is valid from"},
		{"two", append(append([]byte{}, good...), good...), nil, "expected one certificate"},
		{"none", []byte("x"), nil, "expected certificates in PEM"},
		{"a chain without an end", good, bytes.Repeat(rootText, 40), "more than 12 certificates"},
	} {
		public, err := trust.Certified(c.cert, c.chain, time.Now())
		wants(t, c.name, err, c.want)
		if err == nil && !k.PublicKey.Equal(public) {
			t.Errorf("%s: another key", c.name)
		}
	}
}

// TestRootsOfParts: a root of trust of single parts trusts what the whole one does.
func TestRootsOfParts(t *testing.T) {
	s := sigstore(t)
	var authorities, log []byte
	e, err := s.Sign(person, issuer, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	content, err := e.VerificationContent()
	if err != nil {
		t.Fatal(err)
	}
	chains, err := s.FulcioCertificateAuthorities()[0].Verify(content.Certificate(), time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range chains[0][1:] {
		authorities = append(authorities, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	for _, l := range s.RekorLogs() {
		der, err := x509.MarshalPKIXPublicKey(l.PublicKey)
		if err != nil {
			t.Fatal(err)
		}
		log = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	}
	roots, err := trust.Own{Authorities: authorities, Log: log}.Material()
	if err != nil {
		t.Fatal(err)
	}
	signer := trust.Signer{Roots: roots, NoSCT: true, Identities: []trust.Identity{{Issuer: issuer, Subject: person}}}
	good := keyless(t, s, simple(t, digest, nil), time.Now().Add(5*time.Minute))
	wants(t, "of parts", signer.Image(digest, &evidence.Found{Signatures: []evidence.Signature{good}}), "")
	if _, err := (trust.Own{Log: []byte("x")}).Material(); err == nil {
		t.Error("a key that is none was taken")
	}
	if _, err := trust.ParseRoot(bytes.Repeat([]byte("x"), 2<<20)); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Error(err)
	}
}

// FuzzEvidence: whatever a registry says, no signature of its own counts.
func FuzzEvidence(f *testing.F) {
	f.Add([]byte(`{"critical":{}}`), []byte("x"), []byte("-----BEGIN CERTIFICATE-----"), []byte(`{"Payload":{}}`),
		[]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json"}`))
	s, err := ca.NewVirtualSigstore()
	if err != nil {
		f.Fatal(err)
	}
	signer := trust.Signer{Roots: s, NoSCT: true, Identities: []trust.Identity{{Issuer: issuer, Subject: person}}}
	f.Fuzz(func(t *testing.T, text, sig, cert, log, bundle []byte) {
		p := evidence.Proof{Certificate: cert, Chain: cert, Log: log, Time: log}
		found := &evidence.Found{
			Signatures:   []evidence.Signature{{Payload: text, Signature: sig, Proof: p}},
			Attestations: []evidence.Attestation{{Envelope: text, Proof: p}},
			Bundles:      [][]byte{bundle},
		}
		if signer.Image(digest, found) == nil {
			t.Error("it counts")
		}
		if _, err := signer.Attested(digest, provenance, found); err == nil {
			t.Error("it counts")
		}
	})
}
