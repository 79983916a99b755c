// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/sha256"
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
