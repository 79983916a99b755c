// SPDX-License-Identifier: Apache-2.0

// Package trust says whether an image was signed, or something was attested of it, by whom a Signer describes: the holder of a
// key or of a certificate, or an identity to which a certificate authority of Sigstore's kind gave a
// certificate for some minutes (keyless).
//
// The verification is sigstore-go's. Nothing is fetched: roots of trust are given, and the entries of
// transparency logs and timestamps are those that lie beside a signature.
//
// Guarantees: a signature counts only for the digest that its payload names, or its statement has as a subject. A
// certificate is judged at a time that a trusted log or timestamp authority tells; one that is trusted by
// itself, now. An error says of each signature that was found why it does not count.
package trust

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/tlog"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/wasmplane/wasmplane/plugins/sign"
	"github.com/wasmplane/wasmplane/plugins/sign/evidence"
)

// Identity is whose certificates count: everything that is given has to be so.
type Identity struct {
	Issuer, IssuerRegExp, Subject, SubjectRegExp string
}

// Signer is whose signatures count.
type Signer struct {
	// Key, and the hash of what it signs (SHA-256 where zero); or Identities.
	Key        crypto.PublicKey
	Hash       crypto.Hash
	Identities []Identity
	// Extensions are what a certificate says besides, by name or object identifier.
	Extensions map[string]string
	// Roots are what is trusted: authorities of certificates and of time, and logs.
	Roots root.TrustedMaterial
	// NoLog: a signature need not be in a transparency log; NoSCT: nor its certificate.
	NoLog, NoSCT bool
	// Annotations that a signature's payload has to have.
	Annotations map[string]string
}

// cosignPredicate is of statements that are signatures of an image and say nothing else.
const cosignPredicate = "https://sigstore.dev/cosign/sign/v1"

// mostReasons bounds what an error tells.
const mostReasons = 3

// because joins the reasons why nothing counts.
func because(what string, reasons []string) error {
	if len(reasons) == 0 {
		return fmt.Errorf("there is no %s", what)
	}
	text := strings.Join(reasons[:min(len(reasons), mostReasons)], "; ")
	if more := len(reasons) - mostReasons; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return fmt.Errorf("no %s counts: %s", what, text)
}

// Image says why an image of a digest is not signed by the signer; nil: it is.
func (s *Signer) Image(digest string, found *evidence.Found) error {
	var reasons []string
	for _, one := range found.Signatures {
		err := s.simple(digest, &one)
		if err == nil {
			return nil
		}
		reasons = append(reasons, err.Error())
	}
	for _, text := range found.Bundles {
		result, err := s.bundle(digest, text)
		switch {
		case err != nil:
		case result == nil:
			return nil // a signature of the manifest itself
		case result.PredicateType != cosignPredicate:
			continue // it says something of the image: that is no signature of it
		case len(s.Annotations) > 0:
			err = errors.New("a bundle has no annotations")
		default:
			return nil
		}
		reasons = append(reasons, err.Error())
	}
	return because("signature", reasons)
}

// simple judges a signature of a payload.
func (s *Signer) simple(digest string, one *evidence.Signature) error {
	sum := sha256.Sum256(one.Payload)
	e, err := s.entity(&one.Proof)
	if err != nil {
		return err
	}
	e.content = bundle.NewMessageSignature(sum[:], "SHA2_256", one.Signature)
	if err := s.judge(e, verify.WithArtifact(bytes.NewReader(one.Payload))); err != nil {
		return err
	}
	return sign.CheckPayload(one.Payload, digest, s.Annotations)
}

// Statement is what was attested of an image.
type Statement struct {
	PredicateType string          `json:"predicateType"`
	Predicate     json.RawMessage `json:"predicate"`
	Subject       []struct {
		Digest map[string]string `json:"digest"`
	} `json:"subject"`
}

// Attested are the statements of a type that the signer makes of an image. There is at least one, or an error.
func (s *Signer) Attested(digest, predicateType string, found *evidence.Found) ([]Statement, error) {
	var out []Statement
	var reasons []string
	take := func(st *Statement, err error) {
		switch {
		case err != nil:
			reasons = append(reasons, err.Error())
		case st != nil && st.PredicateType == predicateType:
			out = append(out, *st)
		case st != nil:
			reasons = append(reasons, "one is of type "+st.PredicateType)
		}
	}
	for _, one := range found.Attestations {
		take(s.envelope(digest, &one))
	}
	for _, text := range found.Bundles {
		take(s.bundle(digest, text))
	}
	if len(out) == 0 {
		return nil, because("attestation of type "+predicateType, reasons)
	}
	return out, nil
}

func (s *Signer) envelope(digest string, one *evidence.Attestation) (*Statement, error) {
	e, err := s.entity(&one.Proof)
	if err != nil {
		return nil, err
	}
	var env dsse.Envelope
	if err := json.Unmarshal(one.Envelope, &env); err != nil {
		return nil, fmt.Errorf("its envelope is no JSON: %w", err)
	}
	e.content = &bundle.Envelope{Envelope: &env}
	return s.statement(e, digest)
}

// bundle judges a Sigstore bundle. Without a statement it is a signature of the manifest.
func (s *Signer) bundle(digest string, text []byte) (*Statement, error) {
	b := &bundle.Bundle{}
	if err := b.UnmarshalJSON(text); err != nil {
		return nil, fmt.Errorf("a bundle cannot be read: %w", err)
	}
	content, err := b.SignatureContent()
	if err != nil {
		return nil, fmt.Errorf("a bundle cannot be read: %w", err)
	}
	if content.EnvelopeContent() != nil {
		return s.statement(b, digest)
	}
	raw, err := digestBytes(digest)
	if err != nil {
		return nil, err
	}
	return nil, s.judge(b, verify.WithArtifactDigest("sha256", raw))
}

// statement judges an envelope, and holds its subjects against the digest.
func (s *Signer) statement(e verify.SignedEntity, digest string) (*Statement, error) {
	raw, err := digestBytes(digest)
	if err != nil {
		return nil, err
	}
	if err := s.judge(e, verify.WithArtifactDigest("sha256", raw)); err != nil {
		return nil, err
	}
	content, err := e.SignatureContent()
	if err != nil {
		return nil, err
	}
	payload, err := content.EnvelopeContent().RawEnvelope().DecodeB64Payload()
	if err != nil {
		return nil, err
	}
	st := &Statement{}
	if err := json.Unmarshal(payload, st); err != nil {
		return nil, fmt.Errorf("its statement is no JSON: %w", err)
	}
	for _, subject := range st.Subject { // the library has looked already; who reads this need not know that
		if "sha256:"+subject.Digest["sha256"] == digest {
			return st, nil
		}
	}
	return nil, errors.New("it is about another image")
}

func digestBytes(digest string) ([]byte, error) {
	text, ok := strings.CutPrefix(digest, "sha256:")
	if !ok {
		return nil, fmt.Errorf("digest %q: expected one by SHA-256", digest)
	}
	return hex.DecodeString(text)
}

// judge verifies an entity by the signer's rules.
func (s *Signer) judge(e verify.SignedEntity, artifact verify.ArtifactPolicyOption) error {
	material := s.material()
	options, err := s.times(e)
	if err != nil {
		return err
	}
	policy := []verify.PolicyOption{}
	if s.Key != nil {
		policy = append(policy, verify.WithKey())
		if c, err := e.VerificationContent(); err != nil || c.Certificate() != nil {
			return errors.New("it was made with a certificate, and a key was expected")
		}
	} else if !s.NoSCT {
		options = append(options, verify.WithSignedCertificateTimestamps(1))
	}
	for _, id := range s.Identities {
		one, err := s.identity(id)
		if err != nil {
			return err
		}
		policy = append(policy, verify.WithCertificateIdentity(one))
	}
	v, err := verify.NewVerifier(material, options...)
	if err != nil {
		return err
	}
	if _, err := v.Verify(e, verify.NewPolicy(artifact, policy...)); err != nil {
		return plain(err)
	}
	return nil
}

// times says which of the times that lie beside a signature are looked at.
func (s *Signer) times(e verify.SignedEntity) ([]verify.VerifierOption, error) {
	stamps, err := e.Timestamps()
	if err != nil {
		return nil, fmt.Errorf("its timestamps cannot be read: %w", err)
	}
	stamped := len(stamps) > 0 && s.Roots != nil && len(s.Roots.TimestampingAuthorities()) > 0
	switch {
	case !s.NoLog:
		return []verify.VerifierOption{verify.WithTransparencyLog(1), verify.WithObserverTimestamps(1)}, nil
	case stamped:
		return []verify.VerifierOption{verify.WithSignedTimestamps(1)}, nil
	case s.Key != nil:
		return []verify.VerifierOption{verify.WithNoObserverTimestamps()}, nil
	}
	return []verify.VerifierOption{verify.WithCurrentTime()}, nil
}

// material is what is trusted, the key among it.
func (s *Signer) material() root.TrustedMaterial {
	material := s.Roots
	if material == nil {
		material = &root.BaseTrustedMaterial{}
	}
	if s.Key == nil {
		return material
	}
	hash := s.Hash
	if hash == 0 {
		hash = crypto.SHA256
	}
	key := root.NewTrustedPublicKeyMaterial(func(string) (root.TimeConstrainedVerifier, error) {
		v, err := signature.LoadVerifier(s.Key, hash)
		if err != nil {
			return nil, err
		}
		return root.NewExpiringKey(v, time.Time{}, time.Time{}), nil
	})
	return root.TrustedMaterialCollection{key, material}
}

func (s *Signer) identity(id Identity) (verify.CertificateIdentity, error) {
	return verify.NewShortCertificateIdentity(id.Issuer, whole(id.IssuerRegExp), id.Subject, whole(id.SubjectRegExp))
}

// whole anchors an expression: what matches a part of a subject is another subject.
func whole(expression string) string {
	if expression == "" {
		return ""
	}
	return "^(?:" + expression + ")$"
}

// plain leaves of the library's errors what tells an author something.
func plain(err error) error {
	text := err.Error()
	for _, c := range []struct{ has, says string }{
		{"integrated time outside certificate validity", "its certificate was not valid when it was made"},
		{"failed to verify log inclusion", "it is in no transparency log that is trusted"},
		{"failed to verify timestamps", "no time that is trusted says when it was made"},
		{"certificate has expired or is not yet valid", "its certificate was not valid when it was made"},
		{"failed to verify leaf certificate", "its certificate is of no authority that is trusted"},
		{"failed to verify signed certificate timestamp", "its certificate is in no log that is trusted"},
		{"failed to verify certificate identity", "it was made by somebody else: " + afterColon(text, "failed to verify certificate identity: ")},
		{"provided artifact digest does not match", "it is about another image"},
		{"expected key signature, not certificate", "it was made with a certificate, and a key was expected"},
		{"failed to verify signature", "it was made by another key, or what it signs was changed"},
		{"failed to get signature verifier", "it was made by a key, and a certificate was expected"},
		{"can't verify certificate identities", "it was made by a key, and a certificate was expected"},
	} {
		if strings.Contains(text, c.has) {
			return errors.New(c.says)
		}
	}
	return err
}

func afterColon(text, prefix string) string {
	_, rest, _ := strings.Cut(text, prefix)
	return rest
}

// entity is a signature in cosign's older form.
type entity struct {
	verify.BaseSignedEntity
	content verify.SignatureContent
	by      verify.VerificationContent
	entries []*tlog.Entry
	stamps  [][]byte
}

func (e *entity) HasInclusionPromise() bool                          { return len(e.entries) > 0 }
func (e *entity) SignatureContent() (verify.SignatureContent, error) { return e.content, nil }
func (e *entity) Timestamps() ([][]byte, error)                      { return e.stamps, nil }
func (e *entity) TlogEntries() ([]*tlog.Entry, error)                { return e.entries, nil }
func (e *entity) Version() (string, error)                           { return "0.1", nil }

func (e *entity) VerificationContent() (verify.VerificationContent, error) { return e.by, nil }

// certified is a certificate with those that lie beside it.
type certified struct {
	verify.VerificationContent
	chain []*x509.Certificate
}

func (c *certified) Intermediates() []*x509.Certificate { return c.chain }

// logged is the entry of a transparency log as cosign keeps it.
type logged struct {
	SignedEntryTimestamp []byte
	Payload              struct {
		Body           string `json:"body"`
		IntegratedTime int64  `json:"integratedTime"`
		LogIndex       int64  `json:"logIndex"`
		LogID          string `json:"logID"`
	}
}

func (s *Signer) entity(p *evidence.Proof) (*entity, error) {
	e := &entity{by: &bundle.PublicKey{}}
	if len(p.Certificate) > 0 {
		list, err := Certificates(p.Certificate)
		if err != nil || len(list) == 0 {
			return nil, errors.New("its certificate cannot be read")
		}
		chain, err := Certificates(p.Chain)
		if err != nil {
			return nil, fmt.Errorf("the chain of its certificate cannot be read: %w", err)
		}
		if s.Key == nil {
			e.by = &certified{bundle.NewCertificate(list[0]), chain}
		}
	}
	if len(p.Log) > 0 {
		var l logged
		body, err := []byte(nil), json.Unmarshal(p.Log, &l)
		if err == nil {
			body, err = base64.StdEncoding.DecodeString(l.Payload.Body)
		}
		id, problem := hex.DecodeString(l.Payload.LogID)
		if err = errors.Join(err, problem); err != nil {
			return nil, errors.New("its entry in a transparency log cannot be read")
		}
		entry, err := tlog.NewEntry(body, l.Payload.IntegratedTime, l.Payload.LogIndex, id, l.SignedEntryTimestamp, nil) //nolint:staticcheck // cosign's older form has entries of Rekor v1 only
		if err != nil {
			return nil, errors.New("its entry in a transparency log cannot be read")
		}
		e.entries = append(e.entries, entry)
	}
	if len(p.Time) > 0 {
		var stamp struct{ SignedRFC3161Timestamp []byte }
		if json.Unmarshal(p.Time, &stamp) == nil && len(stamp.SignedRFC3161Timestamp) > 0 {
			e.stamps = append(e.stamps, stamp.SignedRFC3161Timestamp)
		}
	}
	return e, nil
}

// mostCertificates bounds a chain: building one is work that grows with what it is built of.
const mostCertificates = 12

// Certificates reads the certificates of PEM text.
func Certificates(text []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for len(bytes.TrimSpace(text)) > 0 {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return nil, errors.New("expected certificates in PEM (-----BEGIN CERTIFICATE-----)")
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("expected certificates, found a %s", block.Type)
		}
		if len(out) == mostCertificates {
			return nil, fmt.Errorf("there are more than %d certificates", mostCertificates)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, cert)
	}
	return out, nil
}

// Check says what is wrong with an identity.
func (id Identity) Check() error {
	if id.Issuer == "" && id.IssuerRegExp == "" || id.Subject == "" && id.SubjectRegExp == "" {
		return errors.New("an issuer (issuer, issuerRegExp) and a subject (subject, subjectRegExp) are needed")
	}
	for _, e := range []string{id.IssuerRegExp, id.SubjectRegExp} {
		if _, err := regexp.Compile(e); err != nil {
			return err
		}
	}
	return nil
}
