// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
)

// Pin names an authority by its public key, as kubeadm's hashes of authorities do:
// "sha256:" and the digest of the subject public key info (RFC 7469, section 2.4). It
// stays the same when the authority is signed again with its own key.
func Pin(authority *x509.Certificate) string {
	sum := sha256.Sum256(authority.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
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
		chain.Certificate = append(append([][]byte{}, cert.Certificate...), authority().Raw)
		return &chain, nil
	}
	return c
}
