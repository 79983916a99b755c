// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"

	"github.com/wasmplane/wasmplane/plugins/sign"
)

// largestRoot bounds a root of trust, in bytes. Sigstore's public one has some 6 KB.
const largestRoot = 1 << 20

// ParseRoot reads a root of trust in Sigstore's form (trusted_root.json).
func ParseRoot(text []byte) (root.TrustedMaterial, error) {
	if len(text) > largestRoot {
		return nil, fmt.Errorf("a root of trust has at most %d bytes", largestRoot)
	}
	r, err := root.NewTrustedRootFromJSON(text)
	if err != nil {
		return nil, fmt.Errorf("expected a root of trust in Sigstore's form (trusted_root.json): %w", err)
	}
	return r, nil
}

// Own is a root of trust of single parts, each in PEM, or empty. What is given takes the place of that part of the base.
type Own struct {
	Base         root.TrustedMaterial // nil = none
	Authorities  []byte               // certificates of who gives certificates to signers
	Log, CertLog []byte               // public keys of logs of signatures, and of certificates
	Time         []byte               // certificates of an authority of time: its own first, its root last
}

// Material makes the root of trust.
func (o Own) Material() (root.TrustedMaterial, error) {
	m := &material{base: o.Base}
	if m.base == nil {
		m.base = &root.BaseTrustedMaterial{}
	}
	var err error
	if len(o.Log) > 0 {
		if m.logs, err = logs(o.Log); err != nil {
			return nil, fmt.Errorf("the key of the transparency log: %w", err)
		}
	}
	if len(o.CertLog) > 0 {
		if m.certLogs, err = logs(o.CertLog); err != nil {
			return nil, fmt.Errorf("the key of the log of certificates: %w", err)
		}
	}
	if len(o.Authorities) > 0 {
		if m.authorities, err = authorities(o.Authorities); err != nil {
			return nil, fmt.Errorf("the root certificates: %w", err)
		}
	}
	if len(o.Time) > 0 {
		if m.times, err = times(o.Time); err != nil {
			return nil, fmt.Errorf("the certificates of the time authority: %w", err)
		}
	}
	return m, nil
}

type material struct {
	base           root.TrustedMaterial
	authorities    []root.CertificateAuthority
	logs, certLogs map[string]*root.TransparencyLog
	times          []root.TimestampingAuthority
}

func (m *material) TimestampingAuthorities() []root.TimestampingAuthority {
	if m.times != nil {
		return m.times
	}
	return m.base.TimestampingAuthorities()
}

func (m *material) FulcioCertificateAuthorities() []root.CertificateAuthority {
	if m.authorities != nil {
		return m.authorities
	}
	return m.base.FulcioCertificateAuthorities()
}

func (m *material) RekorLogs() map[string]*root.TransparencyLog {
	if m.logs != nil {
		return m.logs
	}
	return m.base.RekorLogs()
}

func (m *material) CTLogs() map[string]*root.TransparencyLog {
	if m.certLogs != nil {
		return m.certLogs
	}
	return m.base.CTLogs()
}

func (m *material) PublicKeyVerifier(id string) (root.TimeConstrainedVerifier, error) {
	return m.base.PublicKeyVerifier(id)
}

func logs(text []byte) (map[string]*root.TransparencyLog, error) {
	keys, err := sign.ParsePublicKeys(text)
	if err != nil {
		return nil, err
	}
	out := map[string]*root.TransparencyLog{}
	for _, key := range keys {
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			return nil, err
		}
		id := sha256.Sum256(der)
		out[hex.EncodeToString(id[:])] = &root.TransparencyLog{
			ID: id[:], HashFunc: crypto.SHA256, SignatureHashFunc: crypto.SHA256, PublicKey: key, ValidityPeriodStart: time.Unix(0, 0),
		}
	}
	return out, nil
}

func selfSigned(c *x509.Certificate) bool { return bytes.Equal(c.RawSubject, c.RawIssuer) }

func authorities(text []byte) (out []root.CertificateAuthority, err error) {
	list, err := Certificates(text)
	if err != nil {
		return nil, err
	}
	var between []*x509.Certificate
	for _, c := range list {
		if !selfSigned(c) {
			between = append(between, c)
		}
	}
	for _, c := range list {
		if selfSigned(c) {
			out = append(out, &root.FulcioCertificateAuthority{Root: c, Intermediates: between})
		}
	}
	if len(out) == 0 {
		return nil, errors.New("none of them is a root, which signs itself")
	}
	return out, nil
}

func times(text []byte) ([]root.TimestampingAuthority, error) {
	list, err := Certificates(text)
	if err != nil {
		return nil, err
	}
	a := &root.SigstoreTimestampingAuthority{}
	for _, c := range list {
		switch {
		case !c.IsCA && a.Leaf == nil:
			a.Leaf = c
		case selfSigned(c):
			a.Root = c
		default:
			a.Intermediates = append(a.Intermediates, c)
		}
	}
	if a.Root == nil {
		return nil, errors.New("none of them is a root, which signs itself")
	}
	return []root.TimestampingAuthority{a}, nil
}

// Certified is the key of a certificate that is trusted by itself, or by the last of a chain, and is valid now.
func Certified(certificate, chain []byte, now time.Time) (crypto.PublicKey, error) {
	list, err := Certificates(certificate)
	if err != nil {
		return nil, err
	}
	if len(list) != 1 {
		return nil, fmt.Errorf("expected one certificate, found %d", len(list))
	}
	leaf := list[0]
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return nil, fmt.Errorf("the certificate is valid from %s to %s only", leaf.NotBefore.UTC().Format(time.RFC3339),
			leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	above, err := Certificates(chain)
	if err != nil {
		return nil, fmt.Errorf("its chain: %w", err)
	}
	if len(above) == 0 {
		return leaf.PublicKey, nil
	}
	o := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	o.Roots.AddCert(above[len(above)-1])
	for _, c := range above[:len(above)-1] {
		o.Intermediates.AddCert(c)
	}
	if _, err := leaf.Verify(o); err != nil {
		return nil, fmt.Errorf("the chain does not certify it: %w", err)
	}
	return leaf.PublicKey, nil
}
