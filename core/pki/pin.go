// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"os"
	"slices"
	"sync"
)

// Pin names an authority by its public key, as kubeadm's hashes of authorities do:
// "sha256:" and the digest of the subject public key info (RFC 7469, section 2.4). It
// stays the same when the authority is signed again with its own key.
func Pin(authority *x509.Certificate) string {
	sum := sha256.Sum256(authority.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Bundle writes certificates in PEM.
func Bundle(certs ...*x509.Certificate) (text []byte) {
	for _, c := range certs {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return text
}

// ParseBundle reads certificates in PEM, at least one.
func ParseBundle(text []byte) (all []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, cert)
	}
	if len(all) == 0 {
		return nil, errors.New("expected at least one PEM block CERTIFICATE")
	}
	return all, nil
}

// WithAuthority makes a configuration of ServerTLS send the authority's certificate
// behind the server's own: a machine that joins knows the authority by its Pin only, and
// has it from the handshake.
func WithAuthority(c *tls.Config, authority func() *x509.Certificate) *tls.Config {
	c = c.Clone()
	leaf := c.GetCertificate
	c.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := leaf(hello)
		if err != nil {
			return nil, err
		}
		chain := *cert
		// Right behind the leaf: what else is in the chain is for those who know an earlier one.
		// An intermediate is there already.
		if own := authority().Raw; len(cert.Certificate) < 2 || !bytes.Equal(cert.Certificate[1], own) {
			chain.Certificate = slices.Insert(slices.Clone(cert.Certificate), 1, own)
		}
		return &chain, nil
	}
	return c
}

// Pool is one of certificates.
func Pool(certs ...*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certs {
		p.AddCert(c)
	}
	return p
}

// RootsOf is a pool of the certificates in a file, which is read again when it changes. What
// cannot be read then changes nothing.
func RootsOf(file string) (func() *x509.CertPool, error) {
	var mu sync.Mutex
	var pool *x509.CertPool
	var seen os.FileInfo
	read := func() error {
		now, err := os.Stat(file)
		if err != nil {
			return err
		}
		if seen != nil && os.SameFile(now, seen) && now.ModTime().Equal(seen.ModTime()) && now.Size() == seen.Size() {
			return nil
		}
		certs, err := ReadCertificates(file)
		if err != nil {
			return err
		}
		pool, seen = Pool(certs...), now
		return nil
	}
	if err := read(); err != nil {
		return nil, err
	}
	return func() *x509.CertPool {
		mu.Lock()
		defer mu.Unlock()
		_ = read() // the file that was read last stays
		return pool
	}, nil
}
