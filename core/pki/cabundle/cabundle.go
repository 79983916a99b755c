// SPDX-License-Identifier: Apache-2.0

// Package cabundle reads and writes the certificates of authorities: bundles in PEM,
// pools for TLS, and the pin that a machine knows an authority by before it has its
// certificate.
package cabundle

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync"
)

// Pin names an authority by its public key, as kubeadm's hashes of authorities do:
// "sha256:" and the digest of the subject public key info (RFC 7469, section 2.4). It
// stays the same when the authority is signed again with its own key.
func Pin(authority *x509.Certificate) string {
	sum := sha256.Sum256(authority.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Encode writes certificates in PEM.
func Encode(certs ...*x509.Certificate) (text []byte) {
	for _, c := range certs {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return text
}

// Parse reads certificates in PEM, at least one.
func Parse(text []byte) (all []*x509.Certificate, err error) {
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

// Read reads the certificates (PEM) of a file, at least one.
func Read(file string) ([]*x509.Certificate, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return all, nil
}

// Pool is one of certificates.
func Pool(certs ...*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certs {
		p.AddCert(c)
	}
	return p
}

// Follow answers a pool of the certificates in a file, which is read again when it changes. What
// cannot be read then changes nothing.
func Follow(file string) (func() *x509.CertPool, error) {
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
		certs, err := Read(file)
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
